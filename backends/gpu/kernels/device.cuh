// Device functions that kernels share: warps, element conversions, cache rows, the Hadamard transform.
//
// Arithmetic that docs/numerics.md fixes goes through the _rn intrinsics, which no compiler contracts.
#ifndef OCTET_BACKENDS_GPU_KERNELS_DEVICE_CUH_
#define OCTET_BACKENDS_GPU_KERNELS_DEVICE_CUH_

#include <cstdint>

#include "backends/gpu/kernels/kernels.h"
#include "octet/half.h"

namespace octet_gpu {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int WarpOfBlock() { return static_cast<int>(threadIdx.x) / kWarp; }
template <typename T>
__device__ __forceinline__ T ShflXor(T v, int mask) {
  return __shfl_xor_sync(kAllLanes, v, mask);
}

// In every lane; added in a fixed tree.
template <typename T>
__device__ __forceinline__ T WarpSum(T v) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v += ShflXor(v, mask);
  return v;
}
__device__ __forceinline__ uint32_t WarpMax(uint32_t v) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v = max(v, ShflXor(v, mask));
  return v;
}

__device__ __forceinline__ float LoadElement(Element element, const void* data, int64_t i) {
  switch (element) {
    case Element::kF32:
      return static_cast<const float*>(data)[i];
    case Element::kF16:
      return octet::HalfToFloat(static_cast<const uint16_t*>(data)[i]);
    case Element::kBF16:
      return octet::Bf16ToFloat(static_cast<const uint16_t*>(data)[i]);
    default:
      return static_cast<float>(static_cast<const int8_t*>(data)[i]);
  }
}

// To nearest even.
__device__ __forceinline__ void StoreElement(Element element, void* data, int64_t i, float x) {
  if (element == Element::kF32) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<uint16_t*>(data)[i] = element == Element::kF16 ? octet::FloatToHalf(x) : octet::FloatToBf16(x);
  }
}

__device__ __forceinline__ int64_t RowOffset(const int64_t* stride, int64_t page, int64_t head, int64_t token) {
  return page * stride[0] + head * stride[1] + token * stride[2];
}

__device__ __forceinline__ float LoadScale(const uint8_t* p, bool bf16, int64_t i) {
  if (bf16) return octet::Bf16ToFloat(reinterpret_cast<const uint16_t*>(p)[i]);
  return reinterpret_cast<const float*>(p)[i];
}
__device__ __forceinline__ void StoreScale(uint8_t* p, bool bf16, int64_t i, float x) {
  if (bf16) {
    reinterpret_cast<uint16_t*>(p)[i] = octet::FloatToBf16(x);
  } else {
    reinterpret_cast<float*>(p)[i] = x;
  }
}

// The static scale or zero of a channel.
__device__ __forceinline__ float StaticValue(const Side& side, const float* values, int64_t stride, int64_t head,
                                             int channel) {
  if (values == nullptr) return 0.0f;
  switch (side.scales) {
    case Scales::kHead:
      return values[head * stride];
    case Scales::kChannel:
      return values[head * stride + channel];
    default:
      return values[0];
  }
}

// One cached row as stored values: scale * code + zero, rotated still.
class CachedRow {
 public:
  __device__ CachedRow(const Side& side, int64_t page, int64_t head, int64_t token)
      : side_(side), head_(head), data_(side.data + RowOffset(side.data_stride, page, head, token)) {
    if (side.scales != Scales::kToken) return;
    scale_ = side.scale + RowOffset(side.scale_stride, page, head, token);
    if (side.asymmetric) zero_ = side.zero + RowOffset(side.zero_stride, page, head, token);
  }

  __device__ float At(int channel) const {
    const float code = LoadElement(side_.element, data_, channel);
    float scale = 1.0f, zero = 0.0f;
    if (side_.scales == Scales::kNone) return code;
    if (side_.scales == Scales::kToken) {
      const int group = channel / side_.group;
      scale = LoadScale(scale_, side_.scale_bf16, group);
      if (side_.asymmetric) zero = LoadScale(zero_, side_.zero_bf16, group);
    } else {
      scale = StaticValue(side_, side_.static_scale, side_.static_scale_stride, head_, channel);
      zero = StaticValue(side_, side_.static_zero, side_.static_zero_stride, head_, channel);
    }
    return __fadd_rn(__fmul_rn(code, scale), zero);
  }

 private:
  const Side& side_;
  const int64_t head_;
  const uint8_t *data_, *scale_ = nullptr, *zero_ = nullptr;
};

// In place on x[n] in shared memory, by a whole block of threads, which has met before and meets after: per `block`
// channels butterflies (a + b, a - b) at stride 1, 2, 4, ..., then times factor. The order is part of the contract.
__device__ __forceinline__ void Hadamard(float* x, int n, int block, float factor) {
  if (block <= 0) return;
  for (int stride = 1; stride < block; stride *= 2) {
    for (int i = static_cast<int>(threadIdx.x); i < n / 2; i += static_cast<int>(blockDim.x)) {
      const int at = i / stride * 2 * stride + i % stride;
      const float a = x[at], b = x[at + stride];
      x[at] = __fadd_rn(a, b);
      x[at + stride] = __fsub_rn(a, b);
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) x[i] = __fmul_rn(x[i], factor);
  __syncthreads();
}

// The row of the offset table for a position; null where there is no table, or no such row.
__device__ __forceinline__ const float* OffsetRow(const OffsetTable& table, int64_t position, int64_t head) {
  if (table.data == nullptr || position < 0 || position / table.block_tokens >= table.blocks) return nullptr;
  return table.data + position / table.block_tokens * table.block_stride + head * table.head_stride;
}

}  // namespace
}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_KERNELS_DEVICE_CUH_
