// Vectors of one instruction set: GCC vector extensions at the width of OCTET_CPU_LANES floats, and an exponential.
//
// Included by kernel files only. Everything is static inside the namespace of the instruction set, and library headers
// stay out, so that the linker cannot merge a function compiled for AVX-512 into the portable path.
#ifndef OCTET_BACKENDS_CPU_KERNELS_VEC_H_
#define OCTET_BACKENDS_CPU_KERNELS_VEC_H_

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/kernels/kernels.h"

#define OCTET_INLINE static inline __attribute__((always_inline))

namespace octet_cpu {
namespace OCTET_CPU_ISA {

constexpr int kLanes = OCTET_CPU_LANES;
typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float VecUnaligned __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef int32_t VecInt __attribute__((vector_size(4 * kLanes)));
typedef uint32_t VecWord __attribute__((vector_size(4 * kLanes)));

OCTET_INLINE Vec Load(const float* p) { return *reinterpret_cast<const VecUnaligned*>(p); }
OCTET_INLINE void Store(float* p, Vec v) { *reinterpret_cast<VecUnaligned*>(p) = v; }
OCTET_INLINE Vec Splat(float x) { return x - Vec{}; }

// a where the mask's lanes are -1, else b.
OCTET_INLINE Vec Select(VecInt mask, Vec a, Vec b) { return mask ? a : b; }
OCTET_INLINE Vec VecMax(Vec a, Vec b) { return Select(a > b, a, b); }

// Lane i gets lane i ^ Step.
template <int Step>
OCTET_INLINE Vec SwapLanes(Vec v) {
#define OCTET_LANE(i) (((i) ^ Step) % kLanes)
#define OCTET_FOUR(i) OCTET_LANE(i), OCTET_LANE(i + 1), OCTET_LANE(i + 2), OCTET_LANE(i + 3)
#if OCTET_CPU_LANES == 16
  return __builtin_shufflevector(v, v, OCTET_FOUR(0), OCTET_FOUR(4), OCTET_FOUR(8), OCTET_FOUR(12));
#elif OCTET_CPU_LANES == 8
  return __builtin_shufflevector(v, v, OCTET_FOUR(0), OCTET_FOUR(4));
#else
  return __builtin_shufflevector(v, v, OCTET_FOUR(0));
#endif
#undef OCTET_FOUR
#undef OCTET_LANE
}

// Lanes are added in a fixed tree.
OCTET_INLINE float SumLanes(Vec v) {
  if constexpr (kLanes >= 16) v += SwapLanes<8>(v);
  if constexpr (kLanes >= 8) v += SwapLanes<4>(v);
  v += SwapLanes<2>(v);
  v += SwapLanes<1>(v);
  return v[0];
}

// Where a lane is NaN: any lane.
OCTET_INLINE float MaxLanes(Vec v) {
  if constexpr (kLanes >= 16) v = VecMax(v, SwapLanes<8>(v));
  if constexpr (kLanes >= 8) v = VecMax(v, SwapLanes<4>(v));
  v = VecMax(v, SwapLanes<2>(v));
  v = VecMax(v, SwapLanes<1>(v));
  return v[0];
}

// e^x within 1.5 ulp for x <= 88; 0 below -87.3 (results there would be denormal); NaN for NaN. Cephes expf.
OCTET_INLINE Vec Exp(Vec x) {
  const Vec low = Splat(-87.3f), high = Splat(88.0f);
  const Vec y = Select(x > high, high, Select(x < low, low, x));
  const Vec magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = y * 1.44269504f + magic;
  const Vec n = shifted - magic;
  const Vec r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits of `shifted` hold n; those of a NaN hold anything, so the sum may wrap.
  const VecWord power = (reinterpret_cast<VecWord>(shifted) << 23) + 0x3f800000u;
  return Select(x < low, Vec{}, p * reinterpret_cast<Vec>(power));
}

// tanh x: a rational function below 0.625, where 1 - 2 / (e^2x + 1) would cancel. Cephes tanhf.
OCTET_INLINE Vec Tanh(Vec x) {
  const Vec magnitude = Select(x < Vec{}, -x, x);
  const Vec z = x * x;
  Vec p = Splat(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Vec small = x + x * (z * p);
  const Vec clamped = Select(magnitude > Splat(15.0f), Splat(15.0f), magnitude);
  const Vec large = 1.0f - 2.0f / (Exp(clamped + clamped) + 1.0f);
  return Select(magnitude < Splat(0.625f), small, Select(x < Vec{}, -large, large));
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_VEC_H_
