// Cache operations of the CPU backend: canonical order, any strides.
#ifndef OCTET_BACKENDS_CPU_QUANT_H_
#define OCTET_BACKENDS_CPU_QUANT_H_

#include "backends/cpu/context.h"
#include "octet/quant_ops.h"

namespace octet_cpu {

// What every operation on a layout needs: one that the kernels know, with every row inside layer_bytes.
octet::Status CheckPlacedLayout(const octet::KvLayout& layout);

// K or V of a layer as the kernels see it. Expects CheckLayerInside to have passed.
Side KSide(const octet::KvLayout& layout, const octet::KvLayer& layer);
Side VSide(const octet::KvLayout& layout, const octet::KvLayer& layer);       // KSide where V is K's row
Side KExtraSide(const octet::KvLayout& layout, const octet::KvLayer& layer);  // head_dim 0 where there is none
OffsetTable OffsetsOf(const octet::KvLayout& layout, const octet::KvLayer& layer);

class Quant final : public octet::QuantOps {
 public:
  explicit Quant(const Context& context) : context_(context) {}

  octet::Status ChooseLayout(octet::KvLayout& layout) const override;
  octet::Support Supports(const octet::KvLayout& layout, octet::DType input) const override;
  octet::Status Append(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                       const octet::KvTokens& tokens) override;
  octet::Status Gather(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                       const octet::KvTokens& tokens) override;
  octet::Status CopyPages(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                          const octet::Tensor& pairs) override;
  octet::Status ExportPages(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                            const octet::Tensor& pages, octet::Buffer& canonical, uint64_t offset) override;
  octet::Status ImportPages(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                            const octet::Tensor& pages, octet::Buffer& canonical, uint64_t offset) override;

 private:
  octet::Status RunRows(const octet::KvLayout& layout, const octet::KvLayer& layer, const octet::KvTokens& tokens,
                        bool gather);
  octet::Status Exchange(const octet::KvLayout& layout, const octet::KvLayer& layer, const octet::Tensor& pages,
                         octet::Buffer& canonical, uint64_t offset, bool to_canonical);

  const Context& context_;
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_QUANT_H_
