#include "core/model/model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

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
        absl::StrCat(device.id(), " computes attention only and cannot run a model; use ", "another device"));
  }
  auto config = ReadModelConfig(file);
  if (!config.ok()) return config.status();
  std::unique_ptr<Model> model(new Model(device, file, *std::move(config), options));
  const size_t layers = static_cast<size_t>(model->config_.layers);
  model->layers_.resize(layers);
  model->k_bias_.resize(layers);
  model->needs_k_offsets_.resize(layers);
  if (auto status = model->PrepareGlobals(); !status.ok()) return status;
  for (int32_t i = 0; i < model->config_.layers; ++i) {
    if (auto status = model->PrepareLayer(i); !status.ok()) return status;
  }
  if (auto status = model->PlanWeights(); !status.ok()) return status;
  return model;
}

absl::StatusOr<const GgufTensor*> Model::Matrix(const std::string& name, int64_t rows, int64_t columns) const {
  const GgufTensor* tensor = file_->FindTensor(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->path(), " has no tensor '", name, "', which a ", config_.architecture, " model needs"));
  }
  if (tensor->rows != rows || tensor->row_elements() != columns) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' of ", file_->path(), " is ", tensor->rows,
                                                   " x ", tensor->row_elements(),
                                                   ", and the model's description asks for ", rows, " x ", columns));
  }
  return tensor;
}

absl::StatusOr<std::vector<float>> Model::Vector(const std::string& name, int64_t n, bool required) const {
  std::vector<float> values;
  if (!required && file_->FindTensor(name) == nullptr) return values;
  auto tensor = Matrix(name, 1, n);
  if (!tensor.ok()) return tensor.status();
  values.resize(static_cast<size_t>(n));
  if (auto status = DequantizeTensorRow(**tensor, 0, values.data()); !status.ok()) return status;
  for (float value : values) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", name, "' of ", file_->path(), " holds a value that is not finite"));
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

absl::Status Model::PrepareGlobals() {
  auto embedding = Matrix("token_embd.weight", config_.vocab_size, config_.hidden_size);
  if (!embedding.ok()) return embedding.status();
  packed_.push_back({.parts = {PartOf(**embedding)},
                     .columns = config_.hidden_size,
                     .linear = config_.tied_head,
                     .embed = true,
                     .target = &embedding_,
                     .name = "token_embd.weight"});
  if (!config_.tied_head) {
    auto head = Matrix("output.weight", config_.vocab_size, config_.hidden_size);
    if (!head.ok()) return head.status();
    packed_.push_back(
        {.parts = {PartOf(**head)}, .columns = config_.hidden_size, .target = &head_, .name = "output.weight"});
  }
  auto norm = Vector("output_norm.weight", config_.hidden_size, true);
  if (!norm.ok()) return norm.status();
  output_norm_ = AddConstant(*norm);

  std::vector<float> factors;
  if (config_.rope.has_freq_factors) {
    auto read = Vector("rope_freqs.weight", config_.rope.dims / 2, true);
    if (!read.ok()) return read.status();
    factors = *std::move(read);
  }
  for (double theta : config_.rope.thetas) {
    std::vector<double> frequency(static_cast<size_t>(config_.rope.dims / 2));
    for (size_t p = 0; p < frequency.size(); ++p) {
      frequency[p] = std::pow(theta, -2.0 * static_cast<double>(p) / config_.rope.dims) / config_.rope.scaling_factor;
      if (!factors.empty()) frequency[p] /= factors[p];
    }
    frequencies_.push_back(std::move(frequency));
  }
  return absl::OkStatus();
}

absl::Status Model::PrepareLayer(int32_t index) {
  const ModelConfig& c = config_;
  LayerWeights& layer = layers_[static_cast<size_t>(index)];
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t q_rows = static_cast<int64_t>(c.q_heads) * c.k_head_dim;
  const int64_t k_rows = static_cast<int64_t>(c.kv_heads) * c.k_head_dim;
  const int64_t v_rows = static_cast<int64_t>(c.kv_heads) * c.v_head_dim;
  absl::Status failed;
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns) -> const GgufTensor* {
    auto tensor = Matrix(prefix + name, rows, columns);
    if (!tensor.ok() && failed.ok()) failed = tensor.status();
    return tensor.ok() ? *tensor : nullptr;
  };
  const auto vector = [&](const char* name, int64_t n, bool required) -> std::vector<float> {
    auto values = Vector(prefix + name, n, required);
    if (!values.ok() && failed.ok()) failed = values.status();
    return values.ok() ? *std::move(values) : std::vector<float>();
  };

  const GgufTensor* q = matrix("attn_q.weight", q_rows, c.hidden_size);
  const GgufTensor* k = matrix("attn_k.weight", k_rows, c.hidden_size);
  const GgufTensor* v = matrix("attn_v.weight", v_rows, c.hidden_size);
  const GgufTensor* o = matrix("attn_output.weight", c.hidden_size, static_cast<int64_t>(c.q_heads) * c.v_head_dim);
  const GgufTensor* gate = matrix("ffn_gate.weight", c.ffn_size, c.hidden_size);
  const GgufTensor* up = matrix("ffn_up.weight", c.ffn_size, c.hidden_size);
  const GgufTensor* down = matrix("ffn_down.weight", c.hidden_size, c.ffn_size);
  const std::vector<float> attn_norm = vector("attn_norm.weight", c.hidden_size, true);
  const std::vector<float> ffn_norm = vector("ffn_norm.weight", c.hidden_size, true);
  const std::vector<float> q_bias = vector("attn_q.bias", q_rows, c.has_qkv_bias);
  std::vector<float> k_bias = vector("attn_k.bias", k_rows, c.has_qkv_bias);
  const std::vector<float> v_bias = vector("attn_v.bias", v_rows, c.has_qkv_bias);
  const std::vector<float> o_bias = vector("attn_output.bias", c.hidden_size, false);
  std::vector<float> q_norm = vector("attn_q_norm.weight", c.k_head_dim, c.has_qk_norm);
  std::vector<float> k_norm = vector("attn_k_norm.weight", c.k_head_dim, c.has_qk_norm);
  const std::vector<float> post_attn = vector("post_attention_norm.weight", c.hidden_size, c.has_post_norms);
  const std::vector<float> post_ffn = vector("post_ffw_norm.weight", c.hidden_size, c.has_post_norms);
  if (!failed.ok()) return failed;

  // K offsets where a bias dominates; otherwise outlying pairs are evened out in the weights themselves.
  const float *q_scale = nullptr, *k_scale = nullptr;
  if (!k_bias.empty()) {
    auto norms = RowNorms(*k, attn_norm);
    if (!norms.ok()) return norms.status();
    needs_k_offsets_[static_cast<size_t>(index)] =
        KOffsetNeed(k_bias, *norms, c.kv_heads, rope_pairs()) > kOffsetNeedThreshold;
    k_bias_[static_cast<size_t>(index)] = k_bias;
  } else if (!k_norm.empty()) {
    const std::vector<double> size(k_norm.begin(), k_norm.end());
    const std::vector<float> factors = KPairFactors(size, 1, rope_pairs());
    if (!IsIdentity(factors)) {
      balanced_layers_.push_back(index);
      for (size_t i = 0; i < factors.size(); ++i) {
        k_norm[i] /= factors[i];
        q_norm[i] *= factors[i];
      }
    }
  } else {
    auto norms = RowNorms(*k, attn_norm);
    if (!norms.ok()) return norms.status();
    std::vector<float> factors = KPairFactors(*norms, c.kv_heads, rope_pairs());
    if (!IsIdentity(factors)) {
      balanced_layers_.push_back(index);
      std::vector<float> for_q(static_cast<size_t>(q_rows));
      const size_t head_dim = static_cast<size_t>(c.k_head_dim);
      const size_t group = static_cast<size_t>(c.q_heads / c.kv_heads);
      for (size_t r = 0; r < for_q.size(); ++r) for_q[r] = factors[r / head_dim / group * head_dim + r % head_dim];
      for (float& f : factors) f = 1.0f / f;
      q_scale = KeepRowScale(std::move(for_q));
      k_scale = KeepRowScale(std::move(factors));
    }
  }

  packed_.push_back({.parts = {PartOf(*q, q_scale), PartOf(*k, k_scale), PartOf(*v)},
                     .columns = c.hidden_size,
                     .target = &layer.qkv,
                     .name = prefix + "attn_qkv"});
  packed_.push_back(
      {.parts = {PartOf(*o)}, .columns = o->row_elements(), .target = &layer.o, .name = prefix + "attn_output"});
  packed_.push_back({.parts = {PartOf(*gate), PartOf(*up)},
                     .columns = c.hidden_size,
                     .target = &layer.gate_up,
                     .name = prefix + "ffn_gate_up"});
  packed_.push_back(
      {.parts = {PartOf(*down)}, .columns = c.ffn_size, .target = &layer.down, .name = prefix + "ffn_down"});

  layer.attn_norm = AddConstant(attn_norm);
  layer.ffn_norm = AddConstant(ffn_norm);
  if (c.has_qkv_bias) {
    std::vector<float> bias = q_bias;
    bias.insert(bias.end(), k_bias.begin(), k_bias.end());
    bias.insert(bias.end(), v_bias.begin(), v_bias.end());
    layer.qkv_bias = AddConstant(bias);
  }
  if (!o_bias.empty()) layer.o_bias = AddConstant(o_bias);
  if (c.has_qk_norm) {
    layer.q_norm = AddConstant(q_norm);
    layer.k_norm = AddConstant(k_norm);
  }
  if (c.has_post_norms) {
    layer.post_attn_norm = AddConstant(post_attn);
    layer.post_ffn_norm = AddConstant(post_ffn);
  }
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
    support_level_ = std::min(support_level_, support.level);
    linear_workspace_bytes_ = std::max(linear_workspace_bytes_, support.workspace_bytes);
  }
  return absl::OkStatus();
}

absl::Status Model::Upload(void (*progress)(double share, void* arg), void* arg) {
  auto stream = device_->CreateStream();
  if (!stream.ok()) return stream.status();
  auto buffer = device_->Alloc(constant_bytes());
  if (!buffer.ok()) return buffer.status();
  constant_buffer_ = *std::move(buffer);
  if (auto status = device_->Write(stream->get(), constant_buffer_.get(), 0, constants_.data(), constant_bytes());
      !status.ok()) {
    return status;
  }
  const auto place = [this](std::optional<Tensor>& tensor) {
    if (tensor) tensor->buffer = constant_buffer_.get();
  };
  place(output_norm_);
  for (LayerWeights& layer : layers_) {
    for (auto* tensor : {&layer.attn_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm, &layer.o_bias,
                         &layer.post_attn_norm, &layer.ffn_norm, &layer.post_ffn_norm}) {
      place(*tensor);
    }
  }
  size_t done = 0;
  for (Packed& packed : packed_) {
    auto weight = device_->PrepareWeight(stream->get(), Describe(packed));
    if (!weight.ok()) return weight.status();
    *packed.target = *std::move(weight);
    if (progress != nullptr) progress(static_cast<double>(++done) / static_cast<double>(packed_.size()), arg);
  }
  if (auto status = device_->Sync(stream->get()); !status.ok()) return status;
  row_scales_.clear();
  packed_.clear();
  return absl::OkStatus();
}

std::vector<int32_t> Model::k_offset_layers() const {
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < config_.layers; ++i) {
    if (needs_k_offsets_[static_cast<size_t>(i)]) layers.push_back(i);
  }
  return layers;
}

KOffsetTables Model::MakeKOffsetTables(int64_t max_len) const {
  KOffsetTables tables(layers_.size());
  const int64_t blocks = (max_len + kOffsetBlock - 1) / kOffsetBlock;
  for (int32_t layer : k_offset_layers()) {
    tables[static_cast<size_t>(layer)] = MakeKOffsets(k_bias_[static_cast<size_t>(layer)], rope_frequency(layer),
                                                      config_.kv_heads, rope_pairs(), kOffsetBlock, blocks);
  }
  return tables;
}

const std::vector<double>& Model::rope_frequency(int32_t layer) const {
  return frequencies_[static_cast<size_t>(config_.per_layer[static_cast<size_t>(layer)].rope_index)];
}

RopePairs Model::rope_pairs() const {
  return {.head_dim = config_.k_head_dim, .pairs = config_.rope.dims / 2, .interleaved = config_.rope.interleaved};
}

}  // namespace octet
