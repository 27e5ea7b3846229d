// Expands 32 columns of a weight tile to f32 [32][16], in L1: the weights that gguf_blocks.h defines. All products are
// exact in f32, and so is d * q - bias * d; the sum of Q4_1, Q5_1 and the difference of the K types are rounded once.
#ifndef OCTET_BACKENDS_CPU_KERNELS_DEQUANTIZE_H_
#define OCTET_BACKENDS_CPU_KERNELS_DEQUANTIZE_H_

#include "backends/cpu/kernels/tile_format.h"
#include "backends/cpu/kernels/vec.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

typedef uint32_t VecWordUnaligned __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef uint16_t VecShortUnaligned __attribute__((vector_size(2 * kLanes), aligned(2)));

OCTET_INLINE VecWord LoadWords(const uint8_t* p) { return *reinterpret_cast<const VecWordUnaligned*>(p); }
OCTET_INLINE Vec ToFloat(VecWord x) { return __builtin_convertvector(reinterpret_cast<VecInt>(x), Vec); }

// half.h's HalfToFloat for the low 16 bits of each lane; the others are zero.
OCTET_INLINE Vec HalfToVec(VecWord half) {
  const VecWord sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
  const VecWord finite = (magnitude << 13) + 0x38000000;
  const VecWord subnormal = reinterpret_cast<VecWord>(ToFloat(magnitude) * 0x1p-24f);
  const VecWord bits = magnitude >= 0x7c00 ? finite + 0x38000000 : magnitude < 0x0400 ? subnormal : finite;
  return reinterpret_cast<Vec>(sign | bits);
}

// out = d * code + m for 32 columns of one vector of rows; pointers are at the vector's words. Q6_K has two pairs (d,
// m).
template <int Type>
OCTET_INLINE void ExpandSub(const uint8_t* codes, VecWord fifth, const uint8_t* upper, const Vec* d, const Vec* m,
                            float* __restrict out) {
#pragma GCC unroll 4
  for (int word = 0; word < 4; ++word) {
    const VecWord w = LoadWords(codes + word * 4 * kTileRows);
    VecWord two{};
    if constexpr (Type == OCTET_Q6_K) two = LoadWords(upper + word / 2 * 4 * kTileRows);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const int column = 8 * word + i;
      VecWord q = (w >> (4 * i)) & 15;
      if constexpr (Type == OCTET_Q6_K) q |= ((two >> (8 * (i / 2) + 4 * (word % 2) + 2 * (i % 2))) & 3) << 4;
      if constexpr (TileFormatOf(Type).high >= 0 && Type != OCTET_Q6_K) {
        q |= ((fifth >> (8 * (i / 2) + 2 * word + i % 2)) & 1) << 4;
      }
      const int part = Type == OCTET_Q6_K ? column / 16 : 0;
      Store(out + column * kTileRows, ToFloat(q) * d[part] + m[part]);
    }
  }
}

// Byte `byte` of each word.
template <bool Signed>
OCTET_INLINE Vec ByteToVec(VecWord w, int byte) {
  if constexpr (!Signed) return ToFloat((w >> (8 * byte)) & 255);
  return __builtin_convertvector(reinterpret_cast<VecInt>(w << (24 - 8 * byte)) >> 24, Vec);
}

// One sub-block of 32 columns for the rows [first_row, first_row + kLanes) of a group.
template <int Type>
OCTET_INLINE void ExpandVector(const uint8_t* group, int first_row, int sub, float* __restrict out) {
  constexpr TileFormat f = TileFormatOf(Type);
  const uint8_t* words = group + 4 * first_row;
  VecWord scale_bits;
  if constexpr (f.m >= 0) {
    scale_bits = LoadWords(words);
  } else {
    const auto* halves = reinterpret_cast<const VecShortUnaligned*>(group + 2 * first_row);
    scale_bits = __builtin_convertvector(*halves, VecWord);
  }
  Vec d[2] = {HalfToVec(scale_bits & 0xffff), Vec{}}, m[2] = {};
  if constexpr (Type == OCTET_Q8_0) {
#pragma GCC unroll 8
    for (int word = 0; word < 8; ++word) {
      const VecWord w = LoadWords(words + f.codes + word * 4 * kTileRows);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        Store(out + (word / 2 * 8 + 2 * i + word % 2) * kTileRows, ByteToVec<true>(w, i) * d[0]);
      }
    }
    return;
  }
  if constexpr (f.m >= 0) m[0] = HalfToVec(scale_bits >> 16);
  if constexpr (f.mins >= 0) {  // Q4_K, Q5_K
    const int word = sub / 4 * 4 * kTileRows;
    d[0] *= ByteToVec<false>(LoadWords(words + f.scales + word), sub % 4);
    m[0] *= -ByteToVec<false>(LoadWords(words + f.mins + word), sub % 4);
  }
  if constexpr (Type == OCTET_Q4_0) m[0] = d[0] * -8.0f;
  if constexpr (Type == OCTET_Q5_0) m[0] = d[0] * -16.0f;
  if constexpr (Type == OCTET_Q6_K) {
    const VecWord w = LoadWords(words + f.scales + sub / 2 * 4 * kTileRows) >> (16 * (sub % 2));
    d[1] = d[0] * ByteToVec<true>(w, 1);
    d[0] *= ByteToVec<true>(w, 0);
    m[0] = d[0] * -32.0f;
    m[1] = d[1] * -32.0f;
  }
  VecWord fifth{};
  const uint8_t* upper = nullptr;
  if constexpr (Type == OCTET_Q6_K) {
    upper = words + f.high + sub * 128;
  } else if constexpr (f.high >= 0) {
    fifth = LoadWords(words + f.high + sub * 64);
  }
  ExpandSub<Type>(words + f.codes + sub * 256, fifth, upper, d, m, out);
}

template <int Type>
static void Dequantize(const uint8_t* tile, int64_t column, int64_t count, float* __restrict out) {
  constexpr TileFormat f = TileFormatOf(Type);
  const uint8_t* group = tile + column / f.columns * f.bytes;
  if constexpr (Type == OCTET_F32) {
    __builtin_memcpy(out, group, static_cast<size_t>(count) * 64);
  } else if constexpr (f.columns == 2) {
    // An odd last column has a pair too: out holds 32 columns.
    for (int64_t c = 0; c < count; c += 2, group += f.bytes, out += 2 * kTileRows) {
      for (int r = 0; r < kTileRows; r += kLanes) {
        const VecWord w = LoadWords(group + 4 * r);
        if constexpr (Type == OCTET_F16) {
          Store(out + r, HalfToVec(w & 0xffff));
          Store(out + kTileRows + r, HalfToVec(w >> 16));
        } else {
          Store(out + r, reinterpret_cast<Vec>(w << 16));
          Store(out + kTileRows + r, reinterpret_cast<Vec>(w & 0xffff0000));
        }
      }
    }
  } else {
    const int sub = static_cast<int>(column % f.columns) / kTileColumns;
    for (int r = 0; r < kTileRows; r += kLanes) ExpandVector<Type>(group, r, sub, out + r);
  }
}

// Columns [column, column + count) of a tile; column is a multiple of 32, count at most 32 and 32 for block types.
typedef void DequantizeFn(const uint8_t* tile, int64_t column, int64_t count, float* __restrict out);

static inline DequantizeFn* DequantizeOf(int32_t type) {
  switch (type) {
    case OCTET_F32:
      return Dequantize<OCTET_F32>;
    case OCTET_F16:
      return Dequantize<OCTET_F16>;
    case OCTET_BF16:
      return Dequantize<OCTET_BF16>;
    case OCTET_Q4_0:
      return Dequantize<OCTET_Q4_0>;
    case OCTET_Q4_1:
      return Dequantize<OCTET_Q4_1>;
    case OCTET_Q5_0:
      return Dequantize<OCTET_Q5_0>;
    case OCTET_Q5_1:
      return Dequantize<OCTET_Q5_1>;
    case OCTET_Q8_0:
      return Dequantize<OCTET_Q8_0>;
    case OCTET_Q4_K:
      return Dequantize<OCTET_Q4_K>;
    case OCTET_Q5_K:
      return Dequantize<OCTET_Q5_K>;
    default:
      return Dequantize<OCTET_Q6_K>;
  }
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_DEQUANTIZE_H_
