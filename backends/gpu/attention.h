// Attention of the GPU backends: plans whose step lies in device memory, so that a captured run replays with the next
// step's lengths and pages.
#ifndef OCTET_BACKENDS_GPU_ATTENTION_H_
#define OCTET_BACKENDS_GPU_ATTENTION_H_

#include <memory>
#include <span>

#include "backends/gpu/attention_kernels.h"
#include "backends/gpu/device.h"
#include "octet/attention_backend.h"

namespace octet_gpu {

class Attention final : public octet::AttentionBackend {
 public:
  // `kernels`: the best first, kPlainAttention last; static storage.
  Attention(Context& context, std::span<const AttentionKernel* const> kernels) : context_(context), kernels_(kernels) {}

  octet::Support Supports(const octet::AttentionDesc& desc) const override;
  octet::StatusOr<std::unique_ptr<octet::AttentionPlan>> MakePlan(const octet::AttentionDesc& desc,
                                                                  octet::Buffer* workspace, uint64_t offset) override;
  octet::Status Refill(octet::Stream& stream, octet::AttentionPlan& plan, const octet::Batch& batch) override;
  octet::Status Run(octet::Stream& stream, const octet::AttentionPlan& plan, const octet::KvLayer& layer,
                    const octet::AttentionArgs& args) override;

 private:
  // The first kernel that takes such plans.
  const AttentionKernel& KernelFor(const octet::AttentionDesc& desc) const;
  uint64_t WorkspaceBytes(const octet::AttentionDesc& desc) const;

  Context& context_;
  const std::span<const AttentionKernel* const> kernels_;
};

}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_ATTENTION_H_
