// The dense part of a transformer on the CPU: arithmetic in f32 (where a weight is fast, products in integers for a few
// tokens and, with AMX, in bf16 for more), activations in f32, f16 or bf16, weights in their stored bits.
#ifndef OCTET_BACKENDS_CPU_DENSE_H_
#define OCTET_BACKENDS_CPU_DENSE_H_

#include <atomic>

#include "backends/cpu/context.h"
#include "backends/cpu/float_rows.h"
#include "octet/dense_ops.h"

namespace octet_cpu {

class Dense final : public octet::DenseOps {
 public:
  // `held` counts the bytes of live weights and scratch; both outlive this.
  Dense(const Context& context, std::atomic<uint64_t>* held) : context_(context), held_(held), scratch_(held) {}

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
  const Context& context_;
  std::atomic<uint64_t>* held_;
  ScratchPool scratch_;  // has its own lock
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_DENSE_H_
