// The 16-bit float types, from their definitions: conversions from f32 round to nearest, ties to even, and are exact
// the other way. Assumes the default rounding mode. Reference: IEEE 754-2008 binary16; bfloat16 is binary32 cut to 8
// significant bits.
#ifndef OCTET_TESTS_REFERENCE_FLOAT_TYPES_H_
#define OCTET_TESTS_REFERENCE_FLOAT_TYPES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "octet/tensor.h"

namespace octet::reference {

// A binary format: significant bits (the hidden one included), exponent of the smallest normal and of the largest.
struct FloatFormat {
  int precision, min_exponent, max_exponent;
};
inline FloatFormat FormatOf(DType type) {
  if (type == DType::kF16) return {11, -14, 15};
  if (type == DType::kBF16) return {8, -126, 127};
  return {24, -126, 127};
}

// Distance between neighbours of x in the format: one unit in the last place.
inline double Ulp(DType type, double x) {
  const FloatFormat f = FormatOf(type);
  const double a = std::abs(x);
  const int exponent = a == 0 || !std::isfinite(a) ? f.min_exponent : std::max(std::ilogb(a), f.min_exponent);
  return std::ldexp(1.0, exponent - f.precision + 1);
}

inline uint16_t Encode16(DType type, float x) {
  const FloatFormat f = FormatOf(type);
  const int fraction_bits = f.precision - 1;
  const int infinity = (f.max_exponent - f.min_exponent + 2) << fraction_bits;
  const int sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return static_cast<uint16_t>(sign | infinity | 1 << (fraction_bits - 1));
  if (std::isinf(x)) return static_cast<uint16_t>(sign | infinity);
  const double a = std::abs(static_cast<double>(x));
  const int exponent = a == 0 ? f.min_exponent : std::max(std::ilogb(a), f.min_exponent);
  // Units in the last place: below 2^fraction_bits for subnormals; a carry out of it moves into the exponent.
  const int units = static_cast<int>(std::nearbyint(std::ldexp(a, fraction_bits - exponent)));
  const int bits = ((exponent - f.min_exponent) << fraction_bits) + units;
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

inline float Decode16(DType type, uint16_t bits) {
  const FloatFormat f = FormatOf(type);
  const int fraction_bits = f.precision - 1;
  const int exponent_field = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  float x;
  if (exponent_field == f.max_exponent - f.min_exponent + 2) {
    x = fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else {
    const int units = exponent_field == 0 ? fraction : fraction + (1 << fraction_bits);
    x = std::ldexp(static_cast<float>(units), f.min_exponent + std::max(exponent_field, 1) - 1 - fraction_bits);
  }
  return bits & 0x8000 ? -x : x;
}

// x as a value of the type.
inline float RoundTo(DType type, float x) { return type == DType::kF32 ? x : Decode16(type, Encode16(type, x)); }

// One element of F32, F16 or BF16 in memory.
inline void StoreFloat(DType type, float x, void* at) {
  if (type == DType::kF32) {
    std::memcpy(at, &x, sizeof(x));
  } else {
    const uint16_t bits = Encode16(type, x);
    std::memcpy(at, &bits, sizeof(bits));
  }
}
inline float LoadFloat(DType type, const void* at) {
  if (type == DType::kF32) {
    float x;
    std::memcpy(&x, at, sizeof(x));
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return Decode16(type, bits);
}

}  // namespace octet::reference

#endif  // OCTET_TESTS_REFERENCE_FLOAT_TYPES_H_
