// Attention of a ragged batch over a paged KV cache. A plan is made once for a capacity, refilled once per step for all
// layers, and run once per layer. Implemented by a backend, called by core through the loader.
#ifndef OCTET_ATTENTION_BACKEND_H_
#define OCTET_ATTENTION_BACKEND_H_

#include <memory>

#include "octet/kv_cache.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {

// Capacity of a plan for its whole life.
struct AttentionLimits {
  int32_t requests = 0, query_tokens = 0;
  int64_t kv_len = 0, pages = 0;
};

// As octet_attention_desc: score = softcap(scale * q.k) + ALiBi, masked by causal and window; out = softmax(score) v.
struct AttentionDesc {
  int32_t q_heads = 0;
  bool causal = true;
  int32_t window = 0;
  float scale = 1.0f;
  float softcap = 0.0f;
  DType q_type = DType::kF32, out_type = DType::kF32;
  bool exact = false;
  const KvLayout* kv = nullptr;
  AttentionLimits limits;
  const Tensor* alibi_slopes = nullptr;
};

// One step, in host memory: see octet_batch.
struct Batch {
  int32_t requests = 0;
  const int32_t* q_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* kv_begin = nullptr;
  const int32_t* page_start = nullptr;
  const int32_t* pages = nullptr;
};

struct AttentionArgs {
  const Tensor* q = nullptr;
  const Tensor* out = nullptr;
  const Tensor* lse = nullptr;
  const Tensor* mask = nullptr;
};

// Made by MakePlan, ended by its destructor, before its device is closed.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
};

// One object per open device; thread rule and errors as for QuantOps. The layout and tensors that a desc points to need
// to live for the call only.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  virtual Support Supports(const AttentionDesc& desc) const = 0;

  // `workspace` holds Supports' workspace_bytes from `offset` on and is the plan's until it ends; null when 0 bytes.
  virtual StatusOr<std::unique_ptr<AttentionPlan>> MakePlan(const AttentionDesc& desc, Buffer* workspace,
                                                            uint64_t offset) = 0;

  // The next step. Host arrays are copied before it returns. ResourceExhausted when the batch is beyond the limits.
  virtual Status Refill(Stream& stream, AttentionPlan& plan, const Batch& batch) = 0;

  // One layer of the step. Reads K and V from the pages only, also for the tokens just appended.
  virtual Status Run(Stream& stream, const AttentionPlan& plan, const KvLayer& layer, const AttentionArgs& args) = 0;
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_ATTENTION_BACKEND_H_
