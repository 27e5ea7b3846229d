#include "core/model/model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/model/weight_rules.h"

namespace octet {
namespace {

bool IsIdentity(const std::vector<float>& factors) {
  return std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1.0f; });
}

WeightPart PartOf(const GgufTensor& tensor, const float* row_scale = nullptr) {
  return {.dtype = tensor.type,
          .rows = tensor.rows,
          .row_stride_bytes = tensor.row_bytes,
          .data = tensor.data,
          .row_scale = row_scale};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Prepare(Device& device, const GgufFile& file,
                                                      const ModelOptions& options) {
  if (device.dense() == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(device.id(), " computes attention only and cannot run a model; use another device"));
  }
  auto config = ReadModelConfig(file);
  if (!config.ok()) return config.status();
  std::unique_ptr<Model> model(new Model(device, file, *std::move(config), options));
  auto tensors = FindModelTensors(file, model->config_);
  if (!tensors.ok()) return tensors.status();
  const size_t layers = tensors->layers.size();
  model->layers_.resize(layers);
  model->k_bias_.resize(layers);
  model->needs_k_offsets_.resize(layers);
  if (auto status = model->PrepareGlobals(*tensors); !status.ok()) return status;
  for (size_t i = 0; i < layers; ++i) {
    if (auto status = model->PrepareLayer(static_cast<int32_t>(i), tensors->layers[i]); !status.ok()) return status;
  }
  if (auto status = model->PlanWeights(); !status.ok()) return status;
  return model;
}

absl::StatusOr<std::vector<float>> Model::Vector(const GgufTensor* tensor) const {
  std::vector<float> values;
  if (tensor == nullptr) return values;
  values.resize(static_cast<size_t>(tensor->row_elements()));
  if (auto status = DequantizeTensorRow(*tensor, 0, values.data()); !status.ok()) return status;
  for (float value : values) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", QuoteName(tensor->name), " of ", file_->path(), " holds a value that is not finite"));
    }
  }
  return values;
}

Tensor Model::AddConstant(const std::vector<float>& values) {
  const uint64_t offset = constants_.size() * sizeof(float);
  constants_.insert(constants_.end(), values.begin(), values.end());
  constexpr size_t kAlign = 64;  // floats: 256 bytes
  constants_.resize((constants_.size() + kAlign - 1) / kAlign * kAlign);
  return MakeTensor(nullptr, DType::kF32, {static_cast<int64_t>(values.size())}, offset);
}

const float* Model::KeepRowScale(std::vector<float> scale) {
  row_scales_.push_back(std::make_unique<std::vector<float>>(std::move(scale)));
  return row_scales_.back()->data();
}

absl::Status Model::PrepareGlobals(const ModelTensors& tensors) {
  packed_.push_back({.parts = {PartOf(*tensors.token_embd)},
                     .columns = config_.hidden_size,
                     .linear = config_.tied_head,
                     .embed = true,
                     .target = &embedding_,
                     .name = "token_embd.weight"});
  if (!config_.tied_head) {
    packed_.push_back({.parts = {PartOf(*tensors.output)},
                       .columns = config_.hidden_size,
                       .target = &head_,
                       .name = "output.weight"});
  }
  auto norm = Vector(tensors.output_norm);
  if (!norm.ok()) return norm.status();
  output_norm_ = AddConstant(*norm);

  auto factors = Vector(tensors.rope_freqs);
  if (!factors.ok()) return factors.status();
  if (std::any_of(factors->begin(), factors->end(), [](float f) { return f <= 0; })) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", QuoteName(tensors.rope_freqs->name), " of ",
                                                   file_->path(), " holds a factor that is not positive"));
  }
  for (const RopeConfig::Base& base : config_.rope.bases) {
    rope_angles_.push_back(MakeRopeAngles(base, config_.rope.rotary_dims, *factors));
  }
  return absl::OkStatus();
}

absl::Status Model::PrepareLayer(int32_t index, const LayerTensors& tensors) {
  const ModelConfig& c = config_;
  LayerWeights& layer = layers_[static_cast<size_t>(index)];
  const std::string prefix = absl::StrCat("blk.", index, ".");
  absl::Status failed;
  const auto vector = [&](const GgufTensor* tensor) -> std::vector<float> {
    auto values = Vector(tensor);
    if (!values.ok() && failed.ok()) failed = values.status();
    return values.ok() ? *std::move(values) : std::vector<float>();
  };
  const std::vector<float> attn_norm = vector(tensors.attn_norm), ffn_norm = vector(tensors.ffn_norm);
  const std::vector<float> q_bias = vector(tensors.attn_q_bias), k_bias = vector(tensors.attn_k_bias),
                           v_bias = vector(tensors.attn_v_bias);
  const std::vector<float> q_norm = vector(tensors.attn_q_norm), k_norm = vector(tensors.attn_k_norm);
  const std::vector<float> post_attention = vector(tensors.post_attention_norm),
                           post_ffn = vector(tensors.post_ffn_norm);
  if (!failed.ok()) return failed;

  const int32_t kv_heads = static_cast<int32_t>(c.kv_heads);
  // K offsets where a bias dominates; otherwise K's channels are evened out in the weights themselves.
  const float *q_scale = nullptr, *k_scale = nullptr;
  std::vector<float> balanced_q_norm, balanced_k_norm;
  if (!k_bias.empty()) {
    auto norms = RowNorms(*tensors.attn_k, attn_norm);
    if (!norms.ok()) return norms.status();
    needs_k_offsets_[static_cast<size_t>(index)] =
        KOffsetNeed(k_bias, *norms, kv_heads, rope_pairs()) > kOffsetNeedThreshold;
    k_bias_[static_cast<size_t>(index)] = k_bias;
  } else if (!k_norm.empty()) {
    const std::vector<float> factors = BalanceGains(k_norm, q_norm, rope_pairs());
    if (!IsIdentity(factors)) balanced_layers_.push_back(index);
    balanced_q_norm = q_norm;
    balanced_k_norm = k_norm;
    for (size_t i = 0; i < factors.size(); ++i) {
      balanced_k_norm[i] /= factors[i];
      balanced_q_norm[i] *= factors[i];
    }
  } else {
    auto norms = RowNorms(*tensors.attn_k, attn_norm);
    if (!norms.ok()) return norms.status();
    std::vector<float> factors = KPairFactors(*norms, kv_heads, rope_pairs());
    if (!IsIdentity(factors)) {
      balanced_layers_.push_back(index);
      std::vector<float> for_q(static_cast<size_t>(c.q_heads * c.head_dim));
      const size_t head_dim = static_cast<size_t>(c.head_dim);
      const size_t group = static_cast<size_t>(c.q_heads / c.kv_heads);
      for (size_t r = 0; r < for_q.size(); ++r) for_q[r] = factors[r / head_dim / group * head_dim + r % head_dim];
      for (float& f : factors) f = 1.0f / f;
      q_scale = KeepRowScale(std::move(for_q));
      k_scale = KeepRowScale(std::move(factors));
    }
  }

  const auto pack = [&](std::vector<WeightPart> parts, int64_t columns, OwnedWeight* target, const char* name) {
    packed_.push_back({.parts = std::move(parts), .columns = columns, .target = target, .name = prefix + name});
  };
  pack({PartOf(*tensors.attn_q, q_scale), PartOf(*tensors.attn_k, k_scale), PartOf(*tensors.attn_v)}, c.hidden_size,
       &layer.qkv, "attn_qkv");
  pack({PartOf(*tensors.attn_output)}, c.q_heads * c.v_head_dim, &layer.o, "attn_output");
  pack({PartOf(*tensors.ffn_gate), PartOf(*tensors.ffn_up)}, c.hidden_size, &layer.gate_up, "ffn_gate_up");
  pack({PartOf(*tensors.ffn_down)}, c.ffn_size, &layer.down, "ffn_down");

  const auto constant = [this](const std::vector<float>& values) {
    return values.empty() ? std::nullopt : std::optional<Tensor>(AddConstant(values));
  };
  std::vector<float> bias = q_bias;
  bias.insert(bias.end(), k_bias.begin(), k_bias.end());
  bias.insert(bias.end(), v_bias.begin(), v_bias.end());
  layer.attn_norm = constant(attn_norm);
  layer.ffn_norm = constant(ffn_norm);
  layer.qkv_bias = constant(bias);
  layer.q_norm = constant(q_norm);
  layer.k_norm = constant(k_norm);
  layer.balanced_q_norm = constant(balanced_q_norm);
  layer.balanced_k_norm = constant(balanced_k_norm);
  layer.post_attn_norm = constant(post_attention);
  layer.post_ffn_norm = constant(post_ffn);
  return absl::OkStatus();
}

WeightDesc Model::Describe(const Packed& packed) const {
  WeightDesc desc;
  desc.columns = packed.columns;
  desc.parts = packed.parts;
  desc.linear = packed.linear;
  desc.embed = packed.embed;
  desc.exact = options_.exact;
  desc.max_tokens = options_.max_step_tokens;
  return desc;
}

absl::Status Model::PlanWeights() {
  for (const Packed& packed : packed_) {
    const Support support = device_->dense()->SupportsWeight(Describe(packed));
    if (support.level == 0) {
      return absl::UnimplementedError(
          absl::StrCat(device_->id(), " cannot hold the weight '", packed.name, "': ", support.reason));
    }
    weight_bytes_ += support.resident_bytes;
    if (packed.linear) step_weight_bytes_ += support.resident_bytes;
    support_level_ = std::min(support_level_, support.level);
    linear_workspace_bytes_ = std::max(linear_workspace_bytes_, support.workspace_bytes);
  }
  return absl::OkStatus();
}

absl::Status Model::Upload(void (*progress)(double share, void* arg), void* arg) {
  auto stream = device_->CreateStream();
  if (!stream.ok()) return stream.status();
  {
    // Work under way may still read host memory, also after a failure.
    const DrainAtEnd drain(*device_, stream->get());
    if (auto status = UploadOn(stream->get(), progress, arg); !status.ok()) return status;
    if (auto status = device_->Sync(stream->get()); !status.ok()) return status;
  }
  row_scales_.clear();
  packed_.clear();
  return file_->CheckUnchanged();
}

absl::Status Model::UploadOn(octet_stream* stream, void (*progress)(double share, void* arg), void* arg) {
  auto buffer = device_->Alloc(constant_bytes());
  if (!buffer.ok()) return buffer.status();
  constant_buffer_ = *std::move(buffer);
  if (auto status = device_->Write(stream, constant_buffer_.get(), 0, constants_.data(), constant_bytes());
      !status.ok()) {
    return status;
  }
  const auto place = [this](std::optional<Tensor>& tensor) {
    if (tensor) tensor->buffer = constant_buffer_.get();
  };
  place(output_norm_);
  for (LayerWeights& layer : layers_) {
    for (auto* tensor : {&layer.attn_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm, &layer.balanced_q_norm,
                         &layer.balanced_k_norm, &layer.post_attn_norm, &layer.ffn_norm, &layer.post_ffn_norm}) {
      place(*tensor);
    }
  }
  size_t done = 0;
  for (Packed& packed : packed_) {
    auto weight = device_->PrepareWeight(stream, Describe(packed));
    if (!weight.ok()) return weight.status();
    *packed.target = *std::move(weight);
    // Without this the file's copy would stay in memory beside the device's. A device that still reads it gets the
    // pages again.
    for (const WeightPart& part : packed.parts) {
      file_->DropPages(
          {static_cast<const std::byte*>(part.data), static_cast<size_t>(part.rows * part.row_stride_bytes)});
    }
    if (progress != nullptr) progress(static_cast<double>(++done) / static_cast<double>(packed_.size()), arg);
  }
  return absl::OkStatus();
}

std::vector<int32_t> Model::k_offset_layers() const {
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < config_.num_layers(); ++i) {
    if (needs_k_offsets_[static_cast<size_t>(i)]) layers.push_back(i);
  }
  return layers;
}

KOffsetTables Model::MakeKOffsetTables(int64_t max_len) const {
  KOffsetTables tables(layers_.size());
  const int64_t blocks = (max_len + kOffsetBlock - 1) / kOffsetBlock;
  for (int32_t layer : k_offset_layers()) {
    const RopeAngles& angles = rope_angles_[static_cast<size_t>(config_.layers[static_cast<size_t>(layer)].rope)];
    tables[static_cast<size_t>(layer)] =
        MakeKOffsets(k_bias_[static_cast<size_t>(layer)], angles.frequency, angles.magnitude,
                     static_cast<int32_t>(config_.kv_heads), rope_pairs(), kOffsetBlock, blocks);
  }
  return tables;
}

RopePairs Model::rope_pairs() const {
  return {.head_dim = static_cast<int32_t>(config_.head_dim),
          .pairs = config_.rope.rotary_dims / 2,
          .interleaved = config_.rope.interleaved};
}

}  // namespace octet
