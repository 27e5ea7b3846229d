#include "core/model/runner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

constexpr uint64_t kAlignment = 256;

uint64_t Align(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// [tokens][count][head_dim] inside packed rows, from column `first` on.
Tensor Heads(const Tensor& rows, int64_t first, int64_t count, int64_t head_dim) {
  Tensor t = MakeTensor(rows.buffer, DType::kF32, {rows.shape[0], count, head_dim},
                        rows.offset + static_cast<uint64_t>(first) * sizeof(float));
  t.stride[0] = rows.stride[0];
  return t;
}

#define RETURN_IF_DEVICE_ERROR(expr)                                    \
  do {                                                                  \
    if (Status status_ = (expr); !status_.ok()) return ToAbsl(status_); \
  } while (false)
#define RETURN_IF_ERROR(expr)                                         \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

}  // namespace

absl::StatusOr<std::unique_ptr<Runner>> Runner::Prepare(const Model& model, const RunnerOptions& options) {
  const ModelConfig& c = model.config();
  if (options.max_model_len < 1 || options.max_model_len > c.context_length) {
    return absl::InvalidArgumentError(absl::StrCat("the model's context is ", c.context_length, " tokens, and ",
                                                   options.max_model_len, " were asked for"));
  }
  if (options.max_num_seqs < 1 || options.kv.page_tokens < 1 || options.max_logit_rows < options.max_num_seqs ||
      options.max_logit_rows > model.options().max_step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.max_num_seqs, " sequences, ", options.max_logit_rows, " rows of logits and pages of ",
        options.kv.page_tokens, " tokens were asked for; a step of at most ", model.options().max_step_tokens,
        " tokens needs 1 or more of each, a row per sequence and no more rows than tokens"));
  }
  const int64_t pages = (options.max_model_len + options.kv.page_tokens - 1) / options.kv.page_tokens *
                        static_cast<int64_t>(options.max_num_seqs);
  if (pages > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("the KV cache would need ", pages, " pages of ",
                                                   options.kv.page_tokens, " tokens, and at most ", INT32_MAX,
                                                   " can be numbered; ask for larger pages or fewer tokens"));
  }
  std::unique_ptr<Runner> runner(new Runner(model, options));
  const bool default_recipe = options.kv.dtype == DType::kI8 && options.kv.recipe == Int8Recipe::kDefault;
  runner->balanced_ = default_recipe;
  const int32_t offset_layers = default_recipe ? static_cast<int32_t>(model.k_offset_layers().size()) : 0;

  KvShape shape;
  shape.kv_heads = static_cast<int32_t>(c.kv_heads);
  shape.k_head_dim = static_cast<int32_t>(c.head_dim);
  shape.v_head_dim = static_cast<int32_t>(c.v_head_dim);
  shape.num_pages = static_cast<int32_t>(pages);
  shape.has_k_offsets = offset_layers > 0;
  auto layout = MakeKvLayout(runner->device_.quant(), options.kv, shape);
  if (!layout.ok()) return layout.status();
  auto plan = PagedCache::Plan(*layout, static_cast<int32_t>(c.num_layers()), offset_layers, options.max_model_len);
  if (!plan.ok()) return plan.status();
  runner->plan_.kv = *plan;
  runner->plan_.weights = model.weight_bytes();
  runner->plan_.constants = model.constant_bytes();

  uint64_t workspace = 0;
  for (const LayerConfig& layer : c.layers) {
    const auto same = [&](const Attention& a) { return a.window == layer.window; };
    auto found = std::find_if(runner->attention_.begin(), runner->attention_.end(), same);
    if (found == runner->attention_.end()) {
      Attention attention;
      attention.window = layer.window;
      attention.desc.q_heads = static_cast<int32_t>(c.q_heads);
      attention.desc.window = static_cast<int32_t>(layer.window);
      attention.desc.scale = c.attention_scale;
      attention.desc.softcap = c.attention_softcap;
      attention.desc.exact = model.options().exact;
      attention.desc.kv = &runner->plan_.kv.layout;
      attention.desc.limits = {.requests = options.max_num_seqs,
                               .query_tokens = model.options().max_step_tokens,
                               .kv_len = options.max_model_len,
                               .pages = pages};
      const Support support = runner->device_.attention().Supports(attention.desc);
      if (support.level == 0) {
        return absl::UnimplementedError(absl::StrCat(runner->device_.id(), " has no attention for this model with a ",
                                                     DTypeName(options.kv.dtype), " KV cache: ", support.reason));
      }
      runner->attention_kernel_ = support.kernel;
      runner->support_level_ = std::min(runner->support_level_, support.level);
      attention.workspace_bytes = support.workspace_bytes;
      attention.workspace_offset = workspace;
      workspace += Align(support.workspace_bytes);
      runner->attention_.push_back(std::move(attention));
      found = runner->attention_.end() - 1;
    }
    runner->attention_of_layer_.push_back(static_cast<size_t>(found - runner->attention_.begin()));
  }
  if (FusedOps* fused = runner->device_.fused(); fused != nullptr) {
    int32_t level = 2;
    for (const Attention& attention : runner->attention_) {
      level = std::min(level, fused->Supports(FusedEntry::kQkvAppend, attention.desc).level);
    }
    runner->fused_ = level > 0;
    if (level > 0) runner->support_level_ = std::min(runner->support_level_, level);
  }
  runner->linear_workspace_offset_ = workspace;
  runner->plan_.workspace = workspace + model.linear_workspace_bytes();
  runner->LayOut();
  runner->plan_.activations = runner->at_.end;
  return runner;
}

Runner::~Runner() {
  // A step that failed may have left work on the stream; its error was told then.
  if (stream_) device_.Drain(stream_.get());
}

void Runner::LayOut() {
  const ModelConfig& c = model_.config();
  const uint64_t tokens = static_cast<uint64_t>(model_.options().max_step_tokens);
  const uint64_t rows = static_cast<uint64_t>(options_.max_logit_rows);
  const uint64_t qkv = static_cast<uint64_t>((c.q_heads + c.kv_heads) * c.head_dim + c.kv_heads * c.v_head_dim);
  uint64_t next = 0;
  const auto place = [&next](uint64_t elements, uint64_t size) {
    const uint64_t at = next;
    next += Align(elements * size);
    return at;
  };
  const uint64_t hidden = static_cast<uint64_t>(c.hidden_size), ffn = static_cast<uint64_t>(c.ffn_size);
  at_.x = place(tokens * hidden, 4);
  at_.qkv = place(tokens * qkv, 4);
  at_.attn = place(tokens * static_cast<uint64_t>(c.q_heads * c.v_head_dim), 4);
  at_.ffn = place(tokens * 2 * ffn, 4);
  at_.act = place(tokens * ffn, 4);
  at_.tmp = place(c.post_attention_norm || c.post_ffn_norm ? tokens * hidden : 0, 4);
  at_.last = place(rows * hidden, 4);
  at_.logits = place(rows * static_cast<uint64_t>(c.vocab_size), 4);
  at_.ids = place(tokens, 4);
  at_.positions = place(tokens, 4);
  at_.slots = place(tokens, 8);
  at_.rows = place(rows, 4);
  at_.cos_sin = next;
  next += Align(static_cast<uint64_t>(options_.max_model_len) * static_cast<uint64_t>(c.rope.rotary_dims) * 4) *
          c.rope.bases.size();
  at_.end = next;
}

absl::Status Runner::Allocate() {
  const ModelConfig& c = model_.config();
  auto stream = device_.CreateStream();
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  KOffsetTables offsets;
  if (plan_.kv.offset_bytes > 0) offsets = model_.MakeKOffsetTables(options_.max_model_len);
  auto cache = PagedCache::Create(device_, stream_.get(), plan_.kv, offsets);
  if (!cache.ok()) return cache.status();
  auto activations = device_.Alloc(plan_.activations);
  if (!activations.ok()) return activations.status();
  activations_ = *std::move(activations);
  if (plan_.workspace > 0) {
    auto workspace = device_.Alloc(plan_.workspace);
    if (!workspace.ok()) return workspace.status();
    workspace_ = *std::move(workspace);
  }
  for (Attention& attention : attention_) {
    auto plan = device_.attention().MakePlan(attention.desc, workspace_.get(), attention.workspace_offset);
    if (!plan.ok()) return ToAbsl(plan.status());
    attention.plan = *std::move(plan);
  }

  const int64_t pairs = c.rope.rotary_dims / 2;
  std::vector<float> table(static_cast<size_t>(options_.max_model_len * pairs * 2));
  for (size_t base = 0; base < c.rope.bases.size(); ++base) {
    const uint64_t offset = at_.cos_sin + base * Align(table.size() * sizeof(float));
    const RopeAngles& angles = model_.rope_angles(base);
    for (int64_t position = 0; position < options_.max_model_len; ++position) {
      for (int64_t p = 0; p < pairs; ++p) {
        const double angle = static_cast<double>(position) * angles.frequency[static_cast<size_t>(p)];
        float* cos_sin = table.data() + (position * pairs + p) * 2;
        cos_sin[0] = static_cast<float>(angles.magnitude * std::cos(angle));
        cos_sin[1] = static_cast<float>(angles.magnitude * std::sin(angle));
      }
    }
    RETURN_IF_ERROR(
        device_.Write(stream_.get(), activations_.get(), offset, table.data(), table.size() * sizeof(float)));
    RETURN_IF_ERROR(device_.Sync(stream_.get()));
    cos_sin_.push_back(View(offset, DType::kF32, {options_.max_model_len, pairs, 2}));
  }

  const size_t tokens = static_cast<size_t>(model_.options().max_step_tokens);
  const size_t seqs = static_cast<size_t>(options_.max_num_seqs);
  ids_.reserve(tokens);
  positions_.reserve(tokens);
  slots_.reserve(tokens);
  rows_.reserve(static_cast<size_t>(options_.max_logit_rows));
  q_start_.reserve(seqs + 1);
  kv_len_.reserve(seqs);
  page_start_.reserve(seqs + 1);
  pages_.reserve(static_cast<size_t>(plan_.kv.layout.num_pages));
  logits_.resize(static_cast<size_t>(options_.max_logit_rows) * static_cast<size_t>(c.vocab_size));
  cache_ = *std::move(cache);
  return absl::OkStatus();
}

absl::Status Runner::CheckBatch(std::span<const SequenceInput> batch) const {
  size_t tokens = 0, rows = 0;
  for (const SequenceInput& sequence : batch) {
    // cached is bounded first, so that the sum cannot overflow.
    const int64_t cached = std::clamp<int64_t>(sequence.cached, 0, options_.max_model_len);
    const int64_t len = cached + static_cast<int64_t>(sequence.tokens.size());
    if (sequence.tokens.empty() || sequence.cached != cached || sequence.pages == nullptr ||
        len > options_.max_model_len ||
        len > static_cast<int64_t>(sequence.pages->pages().size()) * plan_.kv.layout.page_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("a sequence of ", len, " tokens was given to a step that takes ",
                                                     options_.max_model_len, ", or its pages do not cover it"));
    }
    for (int32_t token : sequence.tokens) {
      if (token < 0 || token >= model_.config().vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", token, " is outside the model's vocabulary of ", model_.config().vocab_size));
      }
    }
    tokens += sequence.tokens.size();
    rows += sequence.all_logits ? sequence.tokens.size() : 1;
  }
  if (batch.empty() || batch.size() > static_cast<size_t>(options_.max_num_seqs) ||
      tokens > static_cast<size_t>(model_.options().max_step_tokens) ||
      rows > static_cast<size_t>(options_.max_logit_rows)) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", batch.size(), " sequences, ", tokens, " tokens and ",
                                                   rows, " rows of logits was asked for; it takes 1 to ",
                                                   options_.max_num_seqs, ", ", model_.options().max_step_tokens,
                                                   " and ", options_.max_logit_rows));
  }
  return absl::OkStatus();
}

void Runner::FillBatch(std::span<const SequenceInput> batch) {
  for (auto* v : {&ids_, &positions_, &rows_, &q_start_, &kv_len_, &page_start_, &pages_}) v->clear();
  slots_.clear();
  q_start_.push_back(0);
  page_start_.push_back(0);
  for (const SequenceInput& sequence : batch) {
    for (size_t i = 0; i < sequence.tokens.size(); ++i) {
      const int64_t position = sequence.cached + static_cast<int64_t>(i);
      if (sequence.all_logits || i + 1 == sequence.tokens.size()) rows_.push_back(static_cast<int32_t>(ids_.size()));
      ids_.push_back(sequence.tokens[i]);
      positions_.push_back(static_cast<int32_t>(position));
      slots_.push_back(sequence.pages->Slot(position));
    }
    const int64_t len = sequence.cached + static_cast<int64_t>(sequence.tokens.size());
    const int64_t page_tokens = plan_.kv.layout.page_tokens;
    const auto used = sequence.pages->pages().first(static_cast<size_t>((len + page_tokens - 1) / page_tokens));
    pages_.insert(pages_.end(), used.begin(), used.end());
    q_start_.push_back(static_cast<int32_t>(ids_.size()));
    kv_len_.push_back(static_cast<int32_t>(len));
    page_start_.push_back(static_cast<int32_t>(pages_.size()));
  }
  tokens_ = static_cast<int32_t>(ids_.size());
}

absl::Status Runner::UploadBatch() {
  const auto write = [this](uint64_t offset, const auto& values) {
    return device_.Write(stream_.get(), activations_.get(), offset, values.data(), values.size() * sizeof(values[0]));
  };
  RETURN_IF_ERROR(write(at_.ids, ids_));
  RETURN_IF_ERROR(write(at_.positions, positions_));
  RETURN_IF_ERROR(write(at_.slots, slots_));
  RETURN_IF_ERROR(write(at_.rows, rows_));
  Batch batch;
  batch.requests = static_cast<int32_t>(kv_len_.size());
  batch.q_start = q_start_.data();
  batch.kv_len = kv_len_.data();
  batch.page_start = page_start_.data();
  batch.pages = pages_.data();
  for (Attention& attention : attention_) {
    RETURN_IF_DEVICE_ERROR(device_.attention().Refill(*stream_.get(), *attention.plan, batch));
  }
  return absl::OkStatus();
}

absl::Status Runner::Linear(const Weight& weight, const Tensor& x, const Tensor& y, const std::optional<Tensor>& bias,
                            const std::optional<Tensor>& norm, const Tensor* residual) {
  LinearArgs args;
  args.x = &x;
  args.y = &y;
  args.bias = bias ? &*bias : nullptr;
  args.norm_gain = norm ? &*norm : nullptr;
  args.norm_eps = model_.config().norm_eps;
  args.residual = residual;
  args.w = &weight;
  args.workspace = workspace_.get();
  args.workspace_offset = linear_workspace_offset_;
  return ToAbsl(device_.dense()->Linear(*stream_.get(), args));
}

absl::Status Runner::AppendQkv(int32_t index, const Tensor& x, const Tensor& qkv, const Tensor& q) {
  const ModelConfig& c = model_.config();
  const LayerWeights& w = model_.layer(index);
  const KvLayer& kv_layer = cache_->layer(index);
  Stream& stream = *stream_.get();
  const Tensor positions = View(at_.positions, DType::kI32, {tokens_});
  const Tensor slots = View(at_.slots, DType::kI64, {tokens_});
  const Tensor& cos_sin = cos_sin_[static_cast<size_t>(c.layers[static_cast<size_t>(index)].rope)];
  const Tensor *q_gain = nullptr, *k_gain = nullptr;
  if (w.q_norm) {
    q_gain = balanced_ && w.balanced_q_norm ? &*w.balanced_q_norm : &*w.q_norm;
    k_gain = balanced_ && w.balanced_k_norm ? &*w.balanced_k_norm : &*w.k_norm;
  }
  if (fused_) {
    RETURN_IF_ERROR(Linear(*w.qkv.get(), x, qkv, std::nullopt, w.attn_norm, nullptr));
    const QkvAppendArgs args{.rope_interleaved = c.rope.interleaved,
                             .qk_norm_eps = c.norm_eps,
                             .qkv = &qkv,
                             .bias = w.qkv_bias ? &*w.qkv_bias : nullptr,
                             .q_gain = q_gain,
                             .k_gain = k_gain,
                             .cos_sin = &cos_sin,
                             .positions = &positions,
                             .slots = &slots,
                             .q_out = &q};
    return ToAbsl(device_.fused()->QkvAppend(stream, plan_.kv.layout, kv_layer, args));
  }

  DenseOps& dense = *device_.dense();
  const Tensor k = Heads(qkv, c.q_heads * c.head_dim, c.kv_heads, c.head_dim);
  const Tensor v = Heads(qkv, (c.q_heads + c.kv_heads) * c.head_dim, c.kv_heads, c.v_head_dim);
  RETURN_IF_ERROR(Linear(*w.qkv.get(), x, qkv, w.qkv_bias, w.attn_norm, nullptr));
  if (q_gain != nullptr) {
    RETURN_IF_DEVICE_ERROR(dense.Norm(stream, NormKind::kRms, q, *q_gain, nullptr, c.norm_eps, q));
    RETURN_IF_DEVICE_ERROR(dense.Norm(stream, NormKind::kRms, k, *k_gain, nullptr, c.norm_eps, k));
  }
  RETURN_IF_DEVICE_ERROR(dense.Rope(stream, q, positions, cos_sin, c.rope.interleaved));
  RETURN_IF_DEVICE_ERROR(dense.Rope(stream, k, positions, cos_sin, c.rope.interleaved));
  const KvTokens kv_tokens{.k = &k, .v = &v, .slots = &slots, .positions = &positions};
  return ToAbsl(device_.quant().Append(stream, plan_.kv.layout, kv_layer, kv_tokens));
}

absl::Status Runner::RunLayer(int32_t index) {
  const ModelConfig& c = model_.config();
  const LayerWeights& w = model_.layer(index);
  DenseOps& dense = *device_.dense();
  Stream& stream = *stream_.get();
  const int64_t n = tokens_;

  const Tensor x = View(at_.x, DType::kF32, {n, c.hidden_size});
  const Tensor qkv = View(at_.qkv, DType::kF32, {n, (c.q_heads + c.kv_heads) * c.head_dim + c.kv_heads * c.v_head_dim});
  const Tensor q = Heads(qkv, 0, c.q_heads, c.head_dim);
  RETURN_IF_ERROR(AppendQkv(index, x, qkv, q));
  const KvLayer& kv_layer = cache_->layer(index);
  const Tensor out = View(at_.attn, DType::kF32, {n, c.q_heads, c.v_head_dim});
  const AttentionPlan& plan = *attention_[attention_of_layer_[static_cast<size_t>(index)]].plan;
  RETURN_IF_DEVICE_ERROR(device_.attention().Run(stream, plan, kv_layer, {.q = &q, .out = &out}));

  // x += [norm of] f(input): the tail of both halves of a layer.
  const auto add_to_x = [&](const Weight& weight, const Tensor& input,
                            const std::optional<Tensor>& post_norm) -> absl::Status {
    if (!post_norm) return Linear(weight, input, x, std::nullopt, std::nullopt, &x);
    const Tensor tmp = View(at_.tmp, DType::kF32, {n, c.hidden_size});
    RETURN_IF_ERROR(Linear(weight, input, tmp, std::nullopt, std::nullopt, nullptr));
    RETURN_IF_DEVICE_ERROR(dense.Norm(stream, NormKind::kRms, tmp, *post_norm, nullptr, c.norm_eps, tmp));
    RETURN_IF_DEVICE_ERROR(dense.Add(stream, tmp, x));
    return absl::OkStatus();
  };
  const Tensor attn = View(at_.attn, DType::kF32, {n, c.q_heads * c.v_head_dim});
  RETURN_IF_ERROR(add_to_x(*w.o.get(), attn, w.post_attn_norm));

  const Tensor ffn = View(at_.ffn, DType::kF32, {n, 2 * c.ffn_size});
  const Tensor act = View(at_.act, DType::kF32, {n, c.ffn_size});
  RETURN_IF_ERROR(Linear(*w.gate_up.get(), x, ffn, std::nullopt, w.ffn_norm, nullptr));
  RETURN_IF_DEVICE_ERROR(dense.Activate(stream, c.activation, ffn, act));
  return add_to_x(*w.down.get(), act, w.post_ffn_norm);
}

absl::Status Runner::ReadLogits() {
  const ModelConfig& c = model_.config();
  const int64_t rows = static_cast<int64_t>(rows_.size());
  const Tensor x = View(at_.x, DType::kF32, {tokens_, c.hidden_size});
  const Tensor selected = View(at_.rows, DType::kI32, {rows});
  const Tensor last = View(at_.last, DType::kF32, {rows, c.hidden_size});
  const Tensor logits = View(at_.logits, DType::kF32, {rows, c.vocab_size});
  RETURN_IF_DEVICE_ERROR(device_.dense()->GatherRows(*stream_.get(), x, selected, last));
  RETURN_IF_ERROR(Linear(model_.head(), last, logits, std::nullopt, model_.output_norm(), nullptr));
  const size_t values = static_cast<size_t>(rows * c.vocab_size);
  RETURN_IF_ERROR(device_.Read(stream_.get(), activations_.get(), at_.logits, logits_.data(), values * sizeof(float)));
  RETURN_IF_ERROR(device_.Sync(stream_.get()));
  if (const float cap = c.logit_softcap; cap > 0) {
    for (size_t i = 0; i < values; ++i) logits_[i] = cap * std::tanh(logits_[i] / cap);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Runner::Step(std::span<const SequenceInput> batch) {
  RETURN_IF_ERROR(CheckBatch(batch));
  FillBatch(batch);
  RETURN_IF_ERROR(UploadBatch());
  const ModelConfig& c = model_.config();
  const Tensor ids = View(at_.ids, DType::kI32, {tokens_});
  const Tensor x = View(at_.x, DType::kF32, {tokens_, c.hidden_size});
  RETURN_IF_DEVICE_ERROR(device_.dense()->Embed(*stream_.get(), model_.embedding(), ids, c.embedding_scale, x));
  for (int32_t i = 0; i < c.num_layers(); ++i) RETURN_IF_ERROR(RunLayer(i));
  RETURN_IF_ERROR(ReadLogits());
  return std::span<const float>(logits_.data(), rows_.size() * static_cast<size_t>(c.vocab_size));
}

}  // namespace octet
