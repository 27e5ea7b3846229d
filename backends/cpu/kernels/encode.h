// One row of K or V to what a cache stores, bit for bit as docs/numerics.md says: Walsh-Hadamard rotation and
//   dynamic  a = max|x| per group; any x not finite: scale NaN, codes 0; a < 1e-30: scale 0, codes 0; else
//            scale = a / 127, code = clamp(round_half_even(x * (127 / a)), -127, 127). bf16 scales: s = bf16(a / 127),
//            code from x * (1 / s). Asymmetric: zero = (min + max) * 0.5 rounded to its type, then the same
//            of x - zero.
//   static   code = clamp(round_half_even((x - zero) * (1 / scale)), -127, 127). No scale of the row could
//            carry a NaN, so +inf saturates to 127, -inf to -127, and NaN becomes 0.
//   float    f32 as it is, f16 and bf16 to nearest even.
// For files compiled with -ffp-contract=off: a fused multiply-add would change codes.
#ifndef OCTET_BACKENDS_CPU_KERNELS_ENCODE_H_
#define OCTET_BACKENDS_CPU_KERNELS_ENCODE_H_

#include "backends/cpu/kernels/row.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

// The row of the offset table for a token's position, or null.
OCTET_INLINE const float* OffsetRow(const OffsetTable& table, const int32_t* positions, int64_t token, int64_t head) {
  if (table.data == nullptr) return nullptr;
  return table.data + positions[token] / table.block_tokens * table.block_stride + head * table.head_stride;
}

// Clamped first, which changes nothing below 127.5 and makes the rounding by addition valid; NaN gives 0.
OCTET_INLINE int8_t ToCode(float v) {
  const float low = v > -127.0f ? v : -127.0f;
  const float clamped = low < 127.0f ? low : 127.0f;
  const float magic = 12582912.0f;  // 1.5 * 2^23
  const float rounded = (clamped + magic) - magic;
  return v != v ? static_cast<int8_t>(0) : static_cast<int8_t>(static_cast<int32_t>(rounded));
}

OCTET_INLINE float Absolute(float x) { return octet::FloatFromBits(octet::FloatBits(x) & 0x7fffffff); }

// One scale (and zero) for n channels.
static inline void QuantizeGroup(const Side& side, const float* x, int n, int8_t* codes, uint8_t* scale_out,
                                 uint8_t* zero_out) {
  float zero = 0.0f;
  bool finite = true;
  for (int i = 0; i < n; ++i) finite &= Absolute(x[i]) <= 3.402823466e+38f;
  if (side.asymmetric && finite) {
    float low = x[0], high = x[0];
    for (int i = 1; i < n; ++i) {
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
    }
    zero = (low + high) * 0.5f;
    if (side.zero_bf16) zero = octet::Bf16ToFloat(octet::FloatToBf16(zero));
  }
  uint32_t top = 0;  // bits of a: magnitudes order like their bits, and infinities stay on top
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = octet::FloatBits(x[i] - zero) & 0x7fffffff;
    top = bits > top ? bits : top;
  }
  const float a = octet::FloatFromBits(top);
  finite &= top < 0x7f800000;

  float scale = 0.0f, inverse = 0.0f;
  if (!finite) {
    scale = octet::FloatFromBits(0x7fc00000);
  } else if (!(a < 1e-30f)) {
    scale = a / 127.0f;
    inverse = 127.0f / a;
    if (side.scale_bf16) {
      scale = octet::Bf16ToFloat(octet::FloatToBf16(scale));
      inverse = 1.0f / scale;
    }
  }
  if (finite) {
    for (int i = 0; i < n; ++i) codes[i] = ToCode((x[i] - zero) * inverse);
  } else {
    __builtin_memset(codes, 0, static_cast<size_t>(n));
  }
  StoreScale(scale_out, side.scale_bf16, scale);
  if (side.asymmetric) StoreScale(zero_out, side.zero_bf16, zero);
}

// x is overwritten by its rotation.
static inline void EncodeRow(const Side& side, float* x, int64_t page, int64_t head, int64_t token) {
  const int n = side.head_dim;
  Hadamard(x, n, side.rotation);
  uint8_t* data = side.data + RowOffset(side.data_stride, page, head, token);
  if (side.scales == Scales::kNone) return StoreRow(side.element, x, n, data);
  int8_t* codes = reinterpret_cast<int8_t*>(data);
  if (side.scales == Scales::kToken) {
    uint8_t* scales = side.scale + RowOffset(side.scale_stride, page, head, token);
    uint8_t* zeros = side.asymmetric ? side.zero + RowOffset(side.zero_stride, page, head, token) : nullptr;
    for (int c = 0, g = 0; c < n; c += side.group, ++g) {
      QuantizeGroup(side, x + c, side.group, codes + c, scales + g * (side.scale_bf16 ? 2 : 4),
                    zeros != nullptr ? zeros + g * (side.zero_bf16 ? 2 : 4) : nullptr);
    }
    return;
  }
  for (int c = 0; c < n; ++c) {
    const float zero = StaticValue(side, side.static_zero, side.static_zero_stride, head, c);
    codes[c] = ToCode((x[c] - zero) * (1.0f / StaticValue(side, side.static_scale, side.static_scale_stride, head, c)));
  }
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_ENCODE_H_
