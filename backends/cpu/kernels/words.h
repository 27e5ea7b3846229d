// Vectors of integers as wide as Vec, for kernels that multiply 16-bit words: one source for AVX2 and AVX-512, with or
// without the instructions that multiply and add at once. "In lanes" means: within each 128 bits.
#ifndef OCTET_BACKENDS_CPU_KERNELS_WORDS_H_
#define OCTET_BACKENDS_CPU_KERNELS_WORDS_H_

#include <immintrin.h>

#include "backends/cpu/kernels/vec.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

#if OCTET_CPU_LANES == 16
typedef __m512i Bits;
#define OCTET_BITS(name) _mm512_##name
#else
typedef __m256i Bits;
#define OCTET_BITS(name) _mm256_##name
#endif

OCTET_INLINE Bits LoadBits(const void* p) {
#if OCTET_CPU_LANES == 16
  return _mm512_loadu_si512(p);
#else
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
#endif
}
OCTET_INLINE void StoreBits(void* p, Bits v) {
#if OCTET_CPU_LANES == 16
  _mm512_storeu_si512(p, v);
#else
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
#endif
}
OCTET_INLINE Bits SplatBits(int32_t x) { return OCTET_BITS(set1_epi32)(x); }

// Lane i is the 16 bytes at rows[4 i] + byte; 8 of them and zeros where `half`.
OCTET_INLINE Bits LoadPieces(const int8_t* const* rows, int byte, bool half) {
  const auto piece = [&](int i) {
    const auto* p = reinterpret_cast<const __m128i*>(rows[4 * i] + byte);
    return half ? _mm_loadl_epi64(p) : _mm_loadu_si128(p);
  };
#if OCTET_CPU_LANES == 16
  Bits v = _mm512_castsi128_si512(piece(0));
  v = _mm512_inserti32x4(v, piece(1), 1);
  v = _mm512_inserti32x4(v, piece(2), 2);
  return _mm512_inserti32x4(v, piece(3), 3);
#else
  return _mm256_inserti128_si256(_mm256_castsi128_si256(piece(0)), piece(1), 1);
#endif
}

OCTET_INLINE Bits InterleaveLow8(Bits a, Bits b) { return OCTET_BITS(unpacklo_epi8)(a, b); }
OCTET_INLINE Bits InterleaveHigh8(Bits a, Bits b) { return OCTET_BITS(unpackhi_epi8)(a, b); }
OCTET_INLINE Bits InterleaveLow16(Bits a, Bits b) { return OCTET_BITS(unpacklo_epi16)(a, b); }
OCTET_INLINE Bits InterleaveHigh16(Bits a, Bits b) { return OCTET_BITS(unpackhi_epi16)(a, b); }
OCTET_INLINE Bits InterleaveLow32(Bits a, Bits b) { return OCTET_BITS(unpacklo_epi32)(a, b); }
OCTET_INLINE Bits InterleaveHigh32(Bits a, Bits b) { return OCTET_BITS(unpackhi_epi32)(a, b); }
OCTET_INLINE Bits InterleaveLow64(Bits a, Bits b) { return OCTET_BITS(unpacklo_epi64)(a, b); }
OCTET_INLINE Bits InterleaveHigh64(Bits a, Bits b) { return OCTET_BITS(unpackhi_epi64)(a, b); }

// Bytes 0 and 2, and 1 and 3, of each four as words.
OCTET_INLINE Bits EvenBytes(Bits v) { return OCTET_BITS(srai_epi16)(OCTET_BITS(slli_epi16)(v, 8), 8); }
OCTET_INLINE Bits OddBytes(Bits v) { return OCTET_BITS(srai_epi16)(v, 8); }

// To nearest, ties to even.
OCTET_INLINE Bits Round(Vec v) { return OCTET_BITS(cvtps_epi32)(v); }
OCTET_INLINE Vec ToVec(Bits v) { return OCTET_BITS(cvtepi32_ps)(v); }
// Words of a and b, saturated, four of each by turns.
OCTET_INLINE Bits PackWords(Bits a, Bits b) { return OCTET_BITS(packs_epi32)(a, b); }

// Adds both products of each pair of words.
OCTET_INLINE Bits AddPairs(Bits sum, Bits a, Bits b) {
#if OCTET_CPU_LANES == 16 && defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, b);
#elif OCTET_CPU_LANES == 8 && defined(__AVXVNNI__)
  return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
  return OCTET_BITS(add_epi32)(sum, OCTET_BITS(madd_epi16)(a, b));
#endif
}

#undef OCTET_BITS

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_WORDS_H_
