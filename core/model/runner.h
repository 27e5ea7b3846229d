// Runs steps of a model over a ragged batch: prompts, pieces of prompts and single tokens of many sequences at once.
// Owns the KV cache, the attention plans and the activations; everything is sized once, before the first step.
#ifndef OCTET_CORE_MODEL_RUNNER_H_
#define OCTET_CORE_MODEL_RUNNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/kv/paged_cache.h"
#include "core/loader/device.h"
#include "core/model/model.h"

namespace octet {

struct RunnerOptions {
  KvOptions kv;
  int64_t max_model_len = 0;   // tokens of one sequence, prompt and answer
  int32_t max_num_seqs = 1;    // in one step
  int32_t max_logit_rows = 1;  // rows of logits of one step; at least max_num_seqs
};

// Bytes on the device, per purpose; known before anything is allocated.
struct MemoryPlan {
  KvPlan kv;
  uint64_t weights = 0, constants = 0, activations = 0, workspace = 0;
  uint64_t own_bytes() const { return kv.total() + activations + workspace; }  // without what the model brings
  uint64_t total() const { return own_bytes() + weights + constants; }
};

// One sequence's part of a step.
struct SequenceInput {
  std::span<const int32_t> tokens;   // new tokens, at least one
  int64_t cached = 0;                // tokens of the sequence that are in the cache already
  const PageTable* pages = nullptr;  // reserved for cached + tokens.size() tokens
  bool all_logits = false;           // a row of logits per new token instead of one for the last
};

// Thread-compatible: one thread at a time. The model must outlive it.
class Runner {
 public:
  // InvalidArgument when the options do not fit the model, Unimplemented with the device's reason.
  static absl::StatusOr<std::unique_ptr<Runner>> Prepare(const Model& model, const RunnerOptions& options);
  ~Runner();

  const MemoryPlan& plan() const { return plan_; }
  const RunnerOptions& options() const { return options_; }
  // New tokens that one step takes, over all sequences.
  int32_t max_step_tokens() const { return model_.options().max_step_tokens; }
  // Which attention kernel the device will run.
  const std::string& attention_kernel() const { return attention_kernel_; }
  // The lowest support level of the device's operations here: 1 correct but slow, 2 native.
  int32_t support_level() const { return support_level_; }

  // Takes the planned memory; once. ResourceExhausted when the device has too little: such a runner cannot be used, and
  // gives back what it has when it is destroyed.
  absl::Status Allocate();

  // Valid after Allocate, as is Step.
  PagedCache& cache() { return *cache_; }

  // Appends the batch to the cache, and returns logits [rows][vocab_size] in host memory, valid until the next step:
  // one row per sequence, in order, or one per new token where all_logits is set. Does not allocate. InvalidArgument
  // for a batch beyond the options; nothing is computed then.
  absl::StatusOr<std::span<const float>> Step(std::span<const SequenceInput> batch);

 private:
  // The attention of all layers with one window.
  struct Attention {
    int64_t window = 0;
    AttentionDesc desc;
    uint64_t workspace_bytes = 0, workspace_offset = 0;
    std::unique_ptr<AttentionPlan> plan;
  };
  // Where each activation starts in the activation buffer, bytes.
  struct Offsets {
    uint64_t x, qkv, attn, ffn, act, tmp, last, logits, ids, positions, slots, rows, cos_sin, end;
  };

  Runner(const Model& model, const RunnerOptions& options)
      : model_(model), device_(model.device()), options_(options) {}

  void LayOut();
  absl::Status CheckBatch(std::span<const SequenceInput> batch) const;
  void FillBatch(std::span<const SequenceInput> batch);
  absl::Status UploadBatch();
  absl::Status RunLayer(int32_t index);
  absl::Status ReadLogits();
  // Q, K and V of a layer from x, K and V to the cache: bias, norms, RoPE and append in one call or one after the
  // other.
  absl::Status AppendQkv(int32_t index, const Tensor& x, const Tensor& qkv, const Tensor& q);
  absl::Status Linear(const Weight& weight, const Tensor& x, const Tensor& y, const std::optional<Tensor>& bias,
                      const std::optional<Tensor>& norm, const Tensor* residual);
  Tensor View(uint64_t offset, DType type, std::initializer_list<int64_t> shape) const {
    return MakeTensor(activations_.get(), type, shape, offset);
  }

  const Model& model_;
  Device& device_;
  RunnerOptions options_;
  MemoryPlan plan_;
  Offsets at_{};
  std::vector<size_t> attention_of_layer_;  // into attention_
  std::string attention_kernel_;
  bool balanced_ = false;  // K is written with the factors of the default INT8 recipe
  bool fused_ = false;     // the device takes bias, norms, RoPE and append in one call, for every layer
  int32_t support_level_ = 2;
  uint64_t linear_workspace_offset_ = 0;

  // In this order, so that plans end before their workspace, and buffers before the stream that used them.
  OwnedStream stream_;
  OwnedBuffer activations_, workspace_;
  std::unique_ptr<PagedCache> cache_;
  std::vector<Attention> attention_;  // one per distinct window
  std::vector<Tensor> cos_sin_;       // per RoPE base

  // The step in progress, in host memory; reserved for the largest batch.
  int32_t tokens_ = 0;
  std::vector<int32_t> ids_, positions_, rows_, q_start_, kv_len_, page_start_, pages_;
  std::vector<int64_t> slots_;
  std::vector<float> logits_;
};

}  // namespace octet

#endif  // OCTET_CORE_MODEL_RUNNER_H_
