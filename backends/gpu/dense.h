// The dense part of a transformer on a GPU: arithmetic in f32, activations in f32, f16 or bf16, weights in GGUF's own
// blocks.
#ifndef OCTET_BACKENDS_GPU_DENSE_H_
#define OCTET_BACKENDS_GPU_DENSE_H_

#include "backends/gpu/device.h"
#include "octet/dense_ops.h"

namespace octet_gpu {

class Dense final : public octet::DenseOps {
 public:
  explicit Dense(Context& context) : context_(context) {}

  octet::Support SupportsWeight(const octet::WeightDesc& desc) const override;
  octet::StatusOr<octet::Weight*> PrepareWeight(octet::Stream& stream, const octet::WeightDesc& desc) override;
  void ReleaseWeight(octet::Weight* weight) override;
  octet::Status Linear(octet::Stream& stream, const octet::LinearArgs& args) override;
  octet::Status Embed(octet::Stream& stream, const octet::Weight& weight, const octet::Tensor& ids, float scale,
                      const octet::Tensor& y) override;
  octet::Status Norm(octet::Stream& stream, octet::NormKind kind, const octet::Tensor& x, const octet::Tensor& gain,
                     const octet::Tensor* bias, float eps, const octet::Tensor& y) override;
  octet::Status Rope(octet::Stream& stream, const octet::Tensor& x, const octet::Tensor& positions,
                     const octet::Tensor& cos_sin, bool interleaved) override;
  octet::Status Activate(octet::Stream& stream, octet::Activation kind, const octet::Tensor& x,
                         const octet::Tensor& y) override;
  octet::Status Add(octet::Stream& stream, const octet::Tensor& x, const octet::Tensor& y) override;
  octet::Status GatherRows(octet::Stream& stream, const octet::Tensor& x, const octet::Tensor& rows,
                           const octet::Tensor& y) override;

 private:
  Context& context_;
};

}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_DENSE_H_
