// Cache operations of the GPU backends: canonical order, any strides.
#ifndef OCTET_BACKENDS_GPU_QUANT_H_
#define OCTET_BACKENDS_GPU_QUANT_H_

#include "backends/gpu/device.h"
#include "backends/gpu/kernels/kernels.h"
#include "octet/quant_ops.h"

namespace octet_gpu {

// How kernels name an element type of activations and caches.
inline Element ElementOf(octet::DType type) {
  switch (type) {
    case octet::DType::kF16:
      return Element::kF16;
    case octet::DType::kBF16:
      return Element::kBF16;
    case octet::DType::kI8:
      return Element::kI8;
    default:
      return Element::kF32;
  }
}

// What every operation on a layout needs: one that the kernels know, with every row inside layer_bytes and elements
// where loads of their size may be.
octet::Status CheckPlacedLayout(const octet::KvLayout& layout);

// K or V of a layer as the kernels see it. Expects CheckLayerInside to have passed.
Side KSide(const octet::KvLayout& layout, const octet::KvLayer& layer);
Side VSide(const octet::KvLayout& layout, const octet::KvLayer& layer);       // KSide where V is K's row
Side KExtraSide(const octet::KvLayout& layout, const octet::KvLayer& layer);  // head_dim 0 where there is none
OffsetTable OffsetsOf(const octet::KvLayout& layout, const octet::KvLayer& layer);

class Quant final : public octet::QuantOps {
 public:
  explicit Quant(Context& context) : context_(context) {}

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
  octet::Status RunRows(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                        const octet::KvTokens& tokens, bool gather);
  octet::Status Exchange(octet::Stream& stream, const octet::KvLayout& layout, const octet::KvLayer& layer,
                         const octet::Tensor& pages, octet::Buffer& canonical, uint64_t offset, bool to_canonical);

  Context& context_;
};

}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_QUANT_H_
