// Attention of the CPU backend: plans cut a step into items for the host's threads.
#ifndef OCTET_BACKENDS_CPU_ATTENTION_H_
#define OCTET_BACKENDS_CPU_ATTENTION_H_

#include <memory>

#include "backends/cpu/context.h"
#include "octet/attention_backend.h"

namespace octet_cpu {

class Attention final : public octet::AttentionBackend {
 public:
  explicit Attention(const Context& context) : context_(context) {}

  octet::Support Supports(const octet::AttentionDesc& desc) const override;
  octet::StatusOr<std::unique_ptr<octet::AttentionPlan>> MakePlan(const octet::AttentionDesc& desc,
                                                                  octet::Buffer* workspace, uint64_t offset) override;
  octet::Status Refill(octet::Stream& stream, octet::AttentionPlan& plan, const octet::Batch& batch) override;
  octet::Status Run(octet::Stream& stream, const octet::AttentionPlan& plan, const octet::KvLayer& layer,
                    const octet::AttentionArgs& args) override;

 private:
  const Context& context_;
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_ATTENTION_H_
