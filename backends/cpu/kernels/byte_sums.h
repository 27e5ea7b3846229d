// Sums of products of unsigned codes and 16-bit numbers in two planes (planes.h) in the lanes of a vector, by what the
// instruction set has for bytes: VPDPBUSD of AVX-512 VNNI or AVX-VNNI, else VPMADDUBSW, whose sums of two products stay
// in 16 bits as long as they are exact there. Included by files that are compiled for AVX2 at least.
#ifndef OCTET_BACKENDS_CPU_KERNELS_BYTE_SUMS_H_
#define OCTET_BACKENDS_CPU_KERNELS_BYTE_SUMS_H_

#include <immintrin.h>

#include "backends/cpu/kernels/vec.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

#if OCTET_CPU_LANES == 16
#define OCTET_MM(name) _mm512_##name
typedef __m512i Bits;
typedef __m512 Floats;
typedef __m256i HalfBits;
#else
#define OCTET_MM(name) _mm256_##name
typedef __m256i Bits;
typedef __m256 Floats;
typedef __m128i HalfBits;
#endif

template <typename V>
OCTET_INLINE Bits ToBits(V v) {
  return reinterpret_cast<Bits>(v);
}
OCTET_INLINE VecInt ToInts(Bits v) { return reinterpret_cast<VecInt>(v); }
OCTET_INLINE Bits SplatWord(int32_t x) { return OCTET_MM(set1_epi32)(x); }

// a * b + c, rounded once whatever the compiler makes of expressions.
OCTET_INLINE Vec MultiplyAdd(Vec a, Vec b, Vec c) {
  return reinterpret_cast<Vec>(
      OCTET_MM(fmadd_ps)(reinterpret_cast<Floats>(a), reinterpret_cast<Floats>(b), reinterpret_cast<Floats>(c)));
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kSumsIn32Bits = true;
#else
constexpr bool kSumsIn32Bits = false;
#endif

// So many words of four codes up to `largest` fit a PlaneSum.
static constexpr int WordsPerSum(int largest) { return kSumsIn32Bits ? 8 : INT16_MAX / (2 * 128 * largest); }

// Sums of codes times one plane of x.
struct PlaneSum {
  Bits sum = Bits{};

  // sum += the four codes of each lane times the four bytes of x.
  __attribute__((always_inline)) void Add(Bits codes, int32_t x) {
#if defined(__AVX512VNNI__)
    sum = _mm512_dpbusd_epi32(sum, codes, SplatWord(x));
#elif defined(__AVXVNNI__)
    sum = _mm256_dpbusd_avx_epi32(sum, codes, SplatWord(x));
#else
    sum = OCTET_MM(add_epi16)(sum, OCTET_MM(maddubs_epi16)(codes, SplatWord(x)));
    asm("" : "+v"(sum));  // else gcc 12 adds in a tree and keeps all products until then, on the stack
#endif
  }
};

// 256 high + low.
OCTET_INLINE VecInt JoinPlanes(PlaneSum high, PlaneSum low) {
  if constexpr (kSumsIn32Bits) return (ToInts(high.sum) << 8) + ToInts(low.sum);
  return ToInts(OCTET_MM(madd_epi16)(high.sum, OCTET_MM(set1_epi16)(256))) +
         ToInts(OCTET_MM(madd_epi16)(low.sum, OCTET_MM(set1_epi16)(1)));
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_BYTE_SUMS_H_
