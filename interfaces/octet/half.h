// Conversions between float and the two 16-bit formats, IEEE binary16 and bfloat16, both carried as uint16_t bits.
//
// Every function has internal linkage and calls no library template, so one program may compile this header several
// times for different instruction sets without the linker mixing the copies; constexpr, so that GPU compilers take it
// for both sides. The bodies are free of branches, and choose with masks around float arithmetic, so that gcc 12
// vectorizes loops over them. Assumes the default rounding
// mode. IEEE 754-2008, sections 3.4 and 4.3.1.
#ifndef OCTET_HALF_H_
#define OCTET_HALF_H_

#include <cstdint>

namespace octet {
inline namespace v1 {

static constexpr uint32_t FloatBits(float value) { return __builtin_bit_cast(uint32_t, value); }
static constexpr float FloatFromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Exact. NaN keeps its sign and payload.
static constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  const uint32_t rebias = 0x38000000;  // 127 - 15 in float's exponent field
  const uint32_t finite = (magnitude << 13) + rebias + (magnitude >= 0x7c00 ? rebias : 0);
  // 0.5 + magnitude * 2^-24 is exact, and so is taking 0.5 away again.
  const uint32_t subnormal = FloatBits(FloatFromBits(0x3f000000 | (magnitude & 0x3ff)) - 0.5f);
  const uint32_t is_subnormal = 0 - static_cast<uint32_t>(magnitude < 0x0400);
  const uint32_t bits = (subnormal & is_subnormal) | (finite & ~is_subnormal);
  return FloatFromBits(sign | bits);
}

// Rounds to nearest, ties to even; 65520 and above become infinity; NaN stays NaN and becomes quiet.
static constexpr uint16_t FloatToHalf(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14 half has a spacing of 2^-24, which is float's spacing just above 0.5: the addition does the rounding.
  const uint32_t is_small = 0 - static_cast<uint32_t>(magnitude < 0x38800000);
  const uint32_t subnormal = FloatBits(FloatFromBits(magnitude & is_small) + 0.5f) - 0x3f000000;
  const uint32_t finite = (subnormal & is_small) | (normal & ~is_small);
  const uint32_t is_nan = 0 - static_cast<uint32_t>(magnitude > 0x7f800000);
  const uint32_t is_large = 0 - static_cast<uint32_t>(magnitude >= 0x47800000);
  const uint32_t half = (nan & is_nan) | (0x7c00 & is_large & ~is_nan) | (finite & ~is_large);
  return static_cast<uint16_t>(sign | half);
}

// Exact. NaN keeps its sign and payload.
static constexpr float Bf16ToFloat(uint16_t bf16) { return FloatFromBits(static_cast<uint32_t>(bf16) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN and becomes quiet.
static constexpr uint16_t FloatToBf16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t nan = (bits >> 16) | 0x40;
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

}  // namespace v1
}  // namespace octet

#endif  // OCTET_HALF_H_
