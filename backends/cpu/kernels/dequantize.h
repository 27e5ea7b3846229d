// Expands 32 columns of a weight tile to f32 [32][16], in L1: the weights that gguf_blocks.h defines, bit for bit (all
// products are exact in f32; the sum of Q4_1, Q5_1 and the difference of the K types are rounded once).
#ifndef OCTET_BACKENDS_CPU_KERNELS_DEQUANTIZE_H_
#define OCTET_BACKENDS_CPU_KERNELS_DEQUANTIZE_H_

#include "backends/cpu/kernels/tile_format.h"
#include "backends/cpu/kernels/vec.h"
#include "octet/half.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

OCTET_INLINE void LoadHalf16(const uint8_t* p, float* out) {
  uint16_t bits[kTileRows];
  __builtin_memcpy(bits, p, sizeof bits);
  for (int r = 0; r < kTileRows; ++r) out[r] = octet::HalfToFloat(bits[r]);
}

// out[c][r] = scale[r] * (code + bias) + min[r]; the codes of columns [begin, begin + count) are code(c, r).
template <typename Code>
OCTET_INLINE void Expand(int begin, int count, const float* scale, const float* min, float* __restrict out, Code code) {
  for (int c = begin; c < begin + count; ++c) {
    float* __restrict row = out + c * kTileRows;
    for (int r = 0; r < kTileRows; ++r) {
      const float w = scale[r] * static_cast<float>(code(c, r));
      row[r] = min != nullptr ? w + min[r] : w;
    }
  }
}

template <int Type>
static void Dequantize(const uint8_t* tile, int64_t column, int64_t count, float* __restrict out) {
  constexpr TileFormat f = TileFormatOf(Type);
  const uint8_t* group = tile + column / f.columns * f.bytes;
  if constexpr (Type == OCTET_F32) {
    __builtin_memcpy(out, group, static_cast<size_t>(count) * 64);
    return;
  } else if constexpr (Type == OCTET_F16 || Type == OCTET_BF16) {
    for (int64_t i = 0; i < count * kTileRows; ++i) {
      uint16_t bits;
      __builtin_memcpy(&bits, group + 2 * i, 2);
      out[i] = Type == OCTET_F16 ? octet::HalfToFloat(bits) : octet::Bf16ToFloat(bits);
    }
    return;
  } else {
    const int sub = static_cast<int>(column % f.columns) / kTileColumns;
    float d[kTileRows], m[kTileRows];
    LoadHalf16(group, d);
    if constexpr (f.m >= 0) LoadHalf16(group + f.m, m);
    const uint8_t* codes = group + f.codes + sub * (Type == OCTET_Q8_0 ? 512 : 256);
    const auto low = [codes](int c, int r) { return codes[c * kTileRows + r] & 15; };
    const auto high = [codes](int c, int r) { return codes[(c - 16) * kTileRows + r] >> 4; };
    if constexpr (Type == OCTET_Q8_0) {
      const int8_t* q = reinterpret_cast<const int8_t*>(codes);
      Expand(0, 32, d, nullptr, out, [q](int c, int r) { return q[c * kTileRows + r]; });
    } else if constexpr (Type == OCTET_Q4_0) {
      Expand(0, 16, d, nullptr, out, [low](int c, int r) { return low(c, r) - 8; });
      Expand(16, 16, d, nullptr, out, [high](int c, int r) { return high(c, r) - 8; });
    } else if constexpr (Type == OCTET_Q6_K) {
      const uint8_t* upper = group + f.high + sub * 128;
      const int8_t* scales = reinterpret_cast<const int8_t*>(group + f.scales) + sub * 2 * kTileRows;
      float s[2][kTileRows];
      for (int i = 0; i < 2; ++i) {
        for (int r = 0; r < kTileRows; ++r) s[i][r] = d[r] * static_cast<float>(scales[i * kTileRows + r]);
      }
      for (int part = 0; part < 4; ++part) {  // 8 columns that share a bit field
        const auto two = [upper, part](int c, int r) { return upper[(c & 7) * kTileRows + r] >> (2 * part) & 3; };
        if (part < 2) {
          Expand(8 * part, 8, s[0], nullptr, out, [&](int c, int r) { return (low(c, r) | two(c, r) << 4) - 32; });
        } else {
          Expand(8 * part, 8, s[1], nullptr, out, [&](int c, int r) { return (high(c, r) | two(c, r) << 4) - 32; });
        }
      }
    } else {
      if constexpr (f.scales >= 0) {  // the K types
        const uint8_t* scales = group + f.scales + sub * kTileRows;
        const uint8_t* mins = group + f.mins + sub * kTileRows;
        for (int r = 0; r < kTileRows; ++r) {
          d[r] *= static_cast<float>(scales[r]);
          m[r] *= -static_cast<float>(mins[r]);
        }
      }
      const float* min = f.m >= 0 ? m : nullptr;
      if constexpr (f.high >= 0) {
        uint32_t fifth[kTileRows];
        __builtin_memcpy(fifth, group + f.high + sub * 64, sizeof fifth);
        constexpr int bias = Type == OCTET_Q5_0 ? 16 : 0;
        const auto five = [&fifth](int c, int r) { return static_cast<int>(fifth[r] >> c & 1) << 4; };
        Expand(0, 16, d, min, out, [&](int c, int r) { return (low(c, r) | five(c, r)) - bias; });
        Expand(16, 16, d, min, out, [&](int c, int r) { return (high(c, r) | five(c, r)) - bias; });
      } else {
        Expand(0, 16, d, min, out, low);
        Expand(16, 16, d, min, out, high);
      }
    }
  }
}

// Columns [column, column + count) of a tile; column is a multiple of 32, count at most 32 and 32 for block types.
typedef void DequantizeFn(const uint8_t* tile, int64_t column, int64_t count, float* __restrict out);

static DequantizeFn* DequantizeOf(int32_t type) {
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
