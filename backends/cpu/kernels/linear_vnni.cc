// y = x W^T + bias + residual for a few tokens, straight on the codes of GGUF blocks with VPDPBUSD.
//
//   x = scale (256 h + l) by 32 columns, in 16 bits of the block's largest |x|
//   y = sum over blocks of scale (d (256 h . codes + l . codes) + m sum of x)
//
// with d and m as dequantize.h has them; codes are unsigned as they lie (those of Q8_0 plus 128), and what they are too
// large by is taken off the sum. Sums of a block are exact in 32 bits, and rounding x costs 1/65024 of the block's
// largest, far below what 8 bits would (2^-8) at no cost: the weights' way from memory is what takes the time. Lanes
// are the 16 rows of a tile; a word of it holds columns 0, 2, 4, 6 in its low nibbles and 1, 3, 5, 7 in its high ones,
// so x is packed in that order and broadcast. Blocks are added in order: a token's result is the same in every call of
// this kernel. Tiles of floats go the way of linear.cc.
#include <immintrin.h>

#include "backends/cpu/kernels/linear_block.h"
#include "backends/cpu/kernels/linear_item.h"
#include "backends/cpu/kernels/planes.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

static_assert(kLanes == kTileRows, "a vector has the rows of a tile");
constexpr int64_t kStepTokens = 4;  // that share the way of codes from L1: eight gain nothing

// Sanitizers make of this file's unrolled loops a minute of compiling.
#ifdef OCTET_CPU_SANITIZED
#define OCTET_UNROLL
#else
#define OCTET_UNROLL _Pragma("GCC unroll 4")
#endif

// x of 32 columns. Word 2 i of a plane: columns 8 i + 0, 2, 4, 6; word 2 i + 1: 8 i + 1, 3, 5, 7.
struct XBlock {
  int32_t high[8], low[8];
  float scale;
  int32_t sum[2];  // of 256 h + l, of 16 columns each
  int32_t unused;
};
static_assert(sizeof(XBlock) == kXBlockBytes, "glue makes room by it");

void QuantizeX(const float* x, int64_t columns, uint8_t* out) {
  // Bytes of 8 columns: the even ones, then the odd ones.
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  for (int64_t c = 0; c < columns; c += 32, out += sizeof(XBlock)) {
    XBlock block{};
    const Vec a = Load(x + c), b = Load(x + c + 16);
    const float top = MaxLanes(VecMax(VecMax(a, -a), VecMax(b, -b)));  // anything where x is not finite
    block.scale = top / kPlanesTop;
    // A block that is not finite makes its products NaN; one too small for the factor counts as zeros.
    const float inverse = top >= kLeast ? kPlanesTop / top : 0.0f;
    __m512i n[2] = {_mm512_cvtps_epi32(a * inverse), _mm512_cvtps_epi32(b * inverse)};
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    const auto not_finite = [&](Vec v) {
      return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(v), exponent), exponent);
    };
    if ((not_finite(a) | not_finite(b)) != 0) {
      block.scale = __builtin_nanf("");
      n[0] = n[1] = _mm512_setzero_si512();
    }
    const auto bytes = [&](__m512i first, __m512i second) {
      const __m256i both =
          _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(first)), _mm512_cvtepi32_epi8(second), 1);
      return _mm256_shuffle_epi8(both, order);
    };
    __m512i high[2];
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_srai_epi32(_mm512_add_epi32(n[i], _mm512_set1_epi32(128)), 8);
      block.sum[i] = _mm512_reduce_add_epi32(n[i]);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block.high), bytes(high[0], high[1]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block.low), bytes(n[0], n[1]));  // n - 256 h, as its lowest byte
    __builtin_memcpy(out, &block, sizeof block);
  }
}

// Codes of word `word` (8 columns) as bytes: columns 0, 2, 4, 6 and 1, 3, 5, 7.
struct Codes {
  __m512i even, odd;
};

template <int Type>
OCTET_INLINE Codes CodesOf(const uint8_t* group, int sub, int word) {
  constexpr TileFormat f = TileFormatOf(Type);
  const __m512i nibbles = _mm512_set1_epi32(0x0f0f0f0f);
  if constexpr (Type == OCTET_Q8_0) {
    const __m512i flip = _mm512_set1_epi32(static_cast<int>(0x80808080u));
    const uint8_t* at = group + f.codes + 2 * word * 64;
    return {_mm512_xor_si512(_mm512_loadu_si512(at), flip), _mm512_xor_si512(_mm512_loadu_si512(at + 64), flip)};
  }
  const __m512i w = _mm512_loadu_si512(group + f.codes + sub * 256 + word * 64);
  Codes codes = {_mm512_and_si512(w, nibbles), _mm512_and_si512(_mm512_srli_epi32(w, 4), nibbles)};
  if constexpr (Type == OCTET_Q6_K) {
    // Two bits of 8 columns in 16 bits: a nibble of each pair of columns, spread to a byte.
    const __m512i pairs = _mm512_loadu_si512(group + f.high + sub * 128 + word / 2 * 64);
    __m512i t = word % 2 == 0 ? _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff)) : _mm512_srli_epi32(pairs, 16);
    t = _mm512_and_si512(_mm512_or_si512(t, _mm512_slli_epi32(t, 8)), _mm512_set1_epi32(0x00ff00ff));
    t = _mm512_and_si512(_mm512_or_si512(t, _mm512_slli_epi32(t, 4)), nibbles);
    const __m512i low = _mm512_slli_epi32(_mm512_and_si512(t, _mm512_set1_epi32(0x03030303)), 4);
    const __m512i high = _mm512_slli_epi32(_mm512_and_si512(t, _mm512_set1_epi32(0x0c0c0c0c)), 2);
    codes = {_mm512_or_si512(codes.even, low), _mm512_or_si512(codes.odd, high)};
  } else if constexpr (f.high >= 0) {
    // Fifth bits: byte `word` of the row's word to all of its bytes, then one bit of each.
    const __m512i fifth = _mm512_loadu_si512(group + f.high + sub * 64);
    const __m512i pick = _mm512_add_epi32(_mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0),
                                          _mm512_set1_epi32(0x01010101 * word));
    const __m512i bits = _mm512_shuffle_epi8(fifth, pick), sixteen = _mm512_set1_epi8(16);
    const __mmask64 even = _mm512_test_epi8_mask(bits, _mm512_set1_epi32(0x40100401));
    const __mmask64 odd = _mm512_test_epi8_mask(bits, _mm512_set1_epi32(static_cast<int>(0x80200802u)));
    codes = {_mm512_mask_add_epi8(codes.even, even, codes.even, sixteen),
             _mm512_mask_add_epi8(codes.odd, odd, codes.odd, sixteen)};
  }
  return codes;
}

// What codes are too large by.
constexpr int32_t ExcessOf(int32_t type) {
  return type == OCTET_Q4_0 ? 8 : type == OCTET_Q5_0 ? 16 : type == OCTET_Q6_K ? 32 : type == OCTET_Q8_0 ? 128 : 0;
}

// d and, where codes have no excess, m of the rows in a sub-block of 32 columns; two d where scales have 16 columns.
struct BlockScales {
  Vec d[2], m;
};

template <int Type>
OCTET_INLINE BlockScales ScalesOf(const uint8_t* group, int sub) {
  constexpr TileFormat f = TileFormatOf(Type);
  BlockScales s{};
  if constexpr (f.m >= 0) {
    const __m512i both = _mm512_loadu_si512(group);
    s.d[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
    s.m = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
  } else {
    s.d[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(group)));
  }
  if constexpr (f.mins >= 0) {
    const int word = sub / 4 * 4 * kTileRows;
    s.d[0] *= ByteToVec<false>(LoadWords(group + f.scales + word), sub % 4);
    s.m *= -ByteToVec<false>(LoadWords(group + f.mins + word), sub % 4);
  }
  if constexpr (Type == OCTET_Q6_K) {
    const VecWord w = LoadWords(group + f.scales + sub / 2 * 4 * kTileRows) >> (16 * (sub % 2));
    s.d[1] = s.d[0] * ByteToVec<true>(w, 1);
    s.d[0] *= ByteToVec<true>(w, 0);
  }
  return s;
}

// total[t] = one tile's rows times token t's blocks, `stride` blocks apart.
template <int Type, int Tokens>
void MultiplyTile(const uint8_t* tile, int64_t columns, const XBlock* x, int64_t stride, float* total) {
  constexpr TileFormat f = TileFormatOf(Type);
  constexpr int kHalves = Type == OCTET_Q6_K ? 2 : 1;
  Vec sum[Tokens] = {};
  for (int64_t column = 0; column < columns; column += f.columns, tile += f.bytes) {
    for (int sub = 0; sub < f.columns / kTileColumns; ++sub, ++x) {
      const BlockScales scales = ScalesOf<Type>(tile, sub);
      OCTET_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        __m512i high[Tokens], low[Tokens];
        for (int t = 0; t < Tokens; ++t) high[t] = low[t] = _mm512_setzero_si512();
        OCTET_UNROLL
        for (int i = 0; i < 4 / kHalves; ++i) {
          const int word = half * 2 + i;
          const Codes codes = CodesOf<Type>(tile, sub, word);
          OCTET_UNROLL
          for (int t = 0; t < Tokens; ++t) {
            const XBlock& block = x[t * stride];
            high[t] = _mm512_dpbusd_epi32(high[t], codes.even, _mm512_set1_epi32(block.high[2 * word]));
            low[t] = _mm512_dpbusd_epi32(low[t], codes.even, _mm512_set1_epi32(block.low[2 * word]));
            high[t] = _mm512_dpbusd_epi32(high[t], codes.odd, _mm512_set1_epi32(block.high[2 * word + 1]));
            low[t] = _mm512_dpbusd_epi32(low[t], codes.odd, _mm512_set1_epi32(block.low[2 * word + 1]));
          }
        }
        OCTET_UNROLL
        for (int t = 0; t < Tokens; ++t) {
          const XBlock& block = x[t * stride];
          const int32_t x_sum = kHalves == 2 ? block.sum[half] : block.sum[0] + block.sum[1];
          __m512i n = _mm512_add_epi32(_mm512_slli_epi32(high[t], 8), low[t]);
          if constexpr (ExcessOf(Type) != 0) n = _mm512_sub_epi32(n, _mm512_set1_epi32(ExcessOf(Type) * x_sum));
          sum[t] += scales.d[half] * block.scale * _mm512_cvtepi32_ps(n);
          if constexpr (f.m >= 0) sum[t] += scales.m * (block.scale * static_cast<float>(x_sum));
        }
      }
    }
  }
  for (int t = 0; t < Tokens; ++t) Store(total + t * kTilesPerItem * kTileRows, sum[t]);
}

typedef void MultiplyFn(const uint8_t* tile, int64_t columns, const XBlock* x, int64_t stride, float* total);

// By 1, 2 or 4 tokens.
template <int Type>
MultiplyFn* MultiplyOf(int64_t tokens) {
  return tokens == 4 ? MultiplyTile<Type, 4> : tokens == 2 ? MultiplyTile<Type, 2> : MultiplyTile<Type, 1>;
}

MultiplyFn* MultiplyOf(int32_t type, int64_t tokens) {
  switch (type) {
    case OCTET_Q4_0:
      return MultiplyOf<OCTET_Q4_0>(tokens);
    case OCTET_Q4_1:
      return MultiplyOf<OCTET_Q4_1>(tokens);
    case OCTET_Q5_0:
      return MultiplyOf<OCTET_Q5_0>(tokens);
    case OCTET_Q5_1:
      return MultiplyOf<OCTET_Q5_1>(tokens);
    case OCTET_Q8_0:
      return MultiplyOf<OCTET_Q8_0>(tokens);
    case OCTET_Q4_K:
      return MultiplyOf<OCTET_Q4_K>(tokens);
    case OCTET_Q5_K:
      return MultiplyOf<OCTET_Q5_K>(tokens);
    default:
      return MultiplyOf<OCTET_Q6_K>(tokens);
  }
}

void LinearVnni(const LinearParams& p, int64_t begin, int64_t end) {
  alignas(64) float panel[kPanelFloats];
  alignas(64) float total[kIntegerTokens * kTilesPerItem * kTileRows];
  for (int64_t index = begin; index < end; ++index) {
    const LinearItem item(p, index);
    __builtin_memset(total, 0, sizeof total);
    const auto* x = reinterpret_cast<const XBlock*>(p.x_int8 + item.token * p.x_int8_stride);
    const int64_t stride = p.x_int8_stride / static_cast<int64_t>(sizeof(XBlock));
    for (int i = 0; i < item.num_tiles; ++i) {
      const Tile& tile = item.tiles[i];
      float* const sums = total + i * kTileRows;
      if (HasCodes(tile.type)) {
        for (int64_t t = 0, step = kStepTokens; t < item.tokens; t += step) {
          while (step > item.tokens - t) step /= 2;
          MultiplyOf(tile.type, step)(tile.data, p.columns, x + t * stride, stride,
                                      sums + t * kTilesPerItem * kTileRows);
        }
        continue;
      }
      for (int64_t column = 0; column < p.columns; column += kBlockColumns) {
        Block(p, &tile, 1, p.x + item.token * p.x_stride, item.tokens, column, Min(kBlockColumns, p.columns - column),
              panel, sums);
      }
    }
    FinishItem(p, item, item.token, item.tokens, total, kTilesPerItem * kTileRows);
  }
}

}  // namespace

void FillLinearVnni(KernelTable* table) {
  table->linear_int8 = LinearVnni;
  table->quantize_x = QuantizeX;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
