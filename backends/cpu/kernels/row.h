// Addresses and element conversions of cache rows, shared by append, gather and attention.
#ifndef OCTET_BACKENDS_CPU_KERNELS_ROW_H_
#define OCTET_BACKENDS_CPU_KERNELS_ROW_H_

#include "backends/cpu/kernels/vec.h"
#include "octet/half.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

OCTET_INLINE int64_t RowOffset(const int64_t* stride, int64_t page, int64_t head, int64_t token) {
  return page * stride[0] + head * stride[1] + token * stride[2];
}

OCTET_INLINE float LoadScale(const uint8_t* p, bool bf16) {
  if (bf16) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return octet::Bf16ToFloat(bits);
  }
  float value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

OCTET_INLINE void StoreScale(uint8_t* p, bool bf16, float value) {
  if (bf16) {
    const uint16_t bits = octet::FloatToBf16(value);
    __builtin_memcpy(p, &bits, sizeof bits);
  } else {
    __builtin_memcpy(p, &value, sizeof value);
  }
}

OCTET_INLINE int64_t ElementSize(Element element) {
  return element == Element::kF32 ? 4 : element == Element::kI8 ? 1 : 2;
}

// n elements as they stand (codes as numbers) to f32.
OCTET_INLINE void LoadRow(Element element, const void* data, int64_t n, float* __restrict out) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  switch (element) {
    case Element::kF32:
      __builtin_memcpy(out, p, static_cast<size_t>(n) * sizeof(float));
      break;
    case Element::kF16:
    case Element::kBF16:
      for (int64_t i = 0; i < n; ++i) {
        uint16_t bits;
        __builtin_memcpy(&bits, p + 2 * i, sizeof bits);
        out[i] = element == Element::kF16 ? octet::HalfToFloat(bits) : octet::Bf16ToFloat(bits);
      }
      break;
    case Element::kI8: {
      const int8_t* codes = reinterpret_cast<const int8_t*>(p);
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]);
      break;
    }
  }
}

// f32 to a row of float elements, to nearest, ties to even.
OCTET_INLINE void StoreRow(Element element, const float* __restrict x, int64_t n, void* data) {
  uint8_t* p = static_cast<uint8_t*>(data);
  if (element == Element::kF32) {
    __builtin_memcpy(p, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = element == Element::kF16 ? octet::FloatToHalf(x[i]) : octet::FloatToBf16(x[i]);
    __builtin_memcpy(p + 2 * i, &bits, sizeof bits);
  }
}

// The static scale or zero of `channel`.
OCTET_INLINE float StaticValue(const Side& side, const float* values, int64_t stride, int64_t head, int channel) {
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

// Cached row (page, head, token) as stored values: scale * code + zero, rotated still.
OCTET_INLINE void DecodeRow(const Side& side, int64_t page, int64_t head, int64_t token, float* __restrict out) {
  const int n = side.head_dim;
  LoadRow(side.element, side.data + RowOffset(side.data_stride, page, head, token), n, out);
  if (side.scales == Scales::kNone) return;
  if (side.scales == Scales::kToken) {
    const uint8_t* scales = side.scale + RowOffset(side.scale_stride, page, head, token);
    const uint8_t* zeros = side.asymmetric ? side.zero + RowOffset(side.zero_stride, page, head, token) : nullptr;
    for (int c = 0, g = 0; c < n; c += side.group, ++g) {
      const float scale = LoadScale(scales + g * (side.scale_bf16 ? 2 : 4), side.scale_bf16);
      const float zero = zeros != nullptr ? LoadScale(zeros + g * (side.zero_bf16 ? 2 : 4), side.zero_bf16) : 0.0f;
      for (int i = c; i < c + side.group; ++i) out[i] = out[i] * scale + zero;
    }
    return;
  }
  for (int c = 0; c < n; ++c) {
    out[c] = out[c] * StaticValue(side, side.static_scale, side.static_scale_stride, head, c) +
             StaticValue(side, side.static_zero, side.static_zero_stride, head, c);
  }
}

// One butterfly between lanes `Step` apart: a + b, and a - b as a + (-b).
template <int Step>
OCTET_INLINE Vec Butterfly(Vec v) {
  VecWord sign{};
  for (int i = 0; i < kLanes; ++i) sign[i] = (i & Step) != 0 ? 0x80000000u : 0u;
  return SwapLanes<Step>(v) + reinterpret_cast<Vec>(reinterpret_cast<VecWord>(v) ^ sign);
}

// In place, per block of `block` channels: butterflies (a + b, a - b) at stride 1, 2, 4, ..., then times 1/sqrt(block)
// rounded once. Its own inverse but for rounding. The order is part of the contract (docs/numerics.md).
OCTET_INLINE void Hadamard(float* __restrict x, int n, int block) {
  if (block <= 0) return;
  const float factor = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(block)));
  int first = 1;
  if (block >= kLanes) {
    for (int i = 0; i < n; i += kLanes) {
      Vec v = Butterfly<2>(Butterfly<1>(Load(x + i)));
      if constexpr (kLanes >= 8) v = Butterfly<4>(v);
      if constexpr (kLanes >= 16) v = Butterfly<8>(v);
      Store(x + i, v);
    }
    first = kLanes;
  }
  for (int stride = first; stride < block; stride *= 2) {
    for (int start = 0; start < n; start += 2 * stride) {
      for (int i = start; i < start + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  for (int i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_ROW_H_
