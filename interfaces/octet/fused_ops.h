// Optional parts of a backend: several operations in one call, and captured steps that replay. A backend without them
// is complete; core then composes the same results from the other tables.
#ifndef OCTET_FUSED_OPS_H_
#define OCTET_FUSED_OPS_H_

#include "octet/attention_backend.h"
#include "octet/kv_cache.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {

enum class FusedEntry : int32_t { kQkvAppend = OCTET_FUSED_QKV_APPEND, kSample = OCTET_FUSED_SAMPLE };

// See octet_qkv_append_args.
struct QkvAppendArgs {
  bool rope_interleaved = false;
  float qk_norm_eps = 0.0f;
  const Tensor* qkv = nullptr;
  const Tensor *bias = nullptr, *q_gain = nullptr, *k_gain = nullptr;
  const Tensor *cos_sin = nullptr, *positions = nullptr, *slots = nullptr;
  const Tensor* q_out = nullptr;
};

// See octet_sample_args.
struct SampleArgs {
  float softcap = 0.0f;
  const Tensor *logits = nullptr, *params = nullptr, *history = nullptr, *ids = nullptr, *logprobs = nullptr;
};

class FusedOps {
 public:
  virtual ~FusedOps() = default;
  virtual Support Supports(FusedEntry entry, const AttentionDesc& desc) const = 0;
  virtual Status QkvAppend(Stream& stream, const KvLayout& layout, const KvLayer& layer, const QkvAppendArgs& args) = 0;
  virtual Status Sample(Stream& stream, const SampleArgs& args) = 0;
};

// Between Begin and End work on the stream is recorded, not run.
class GraphOps {
 public:
  virtual ~GraphOps() = default;
  virtual Status Begin(Stream& stream) = 0;
  virtual StatusOr<octet_graph*> End(Stream& stream) = 0;
  virtual Status Launch(Stream& stream, octet_graph* graph) = 0;
  virtual void Release(octet_graph* graph) = 0;
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_FUSED_OPS_H_
