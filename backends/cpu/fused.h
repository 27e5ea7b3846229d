// Operations of the CPU backend that do the work of several in one pass: the append of a packed QKV.
#ifndef OCTET_BACKENDS_CPU_FUSED_H_
#define OCTET_BACKENDS_CPU_FUSED_H_

#include "backends/cpu/context.h"
#include "octet/fused_ops.h"

namespace octet_cpu {

// Thread-safe: holds no state.
class Fused final : public octet::FusedOps {
 public:
  explicit Fused(const Context& context) : context_(context) {}

  octet::Support Supports(octet::FusedEntry entry, const octet::AttentionDesc& desc) const override;
  octet::Status QkvAppend(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                          const octet::QkvAppendArgs& args) override;
  octet::Status Sample(octet::Stream& stream, const octet::SampleArgs& args) override;

 private:
  const Context& context_;
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_FUSED_H_
