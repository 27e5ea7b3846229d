// y = x W^T + bias + residual for a few tokens, straight on the codes of GGUF blocks with products of bytes.
//
//   x = scale (256 h + l) by 32 columns, in 16 bits of the block's largest |x|
//   y = sum over blocks of scale (d (256 h . codes + l . codes) + m sum of x)
//
// with d and m as dequantize.h has them; codes are unsigned as they lie, and what they are too large by is taken off
// the sum. Sums of a block are exact in 32 bits, and rounding x costs 1/65024 of the block's largest, far below what 8
// bits would (2^-8) at no cost: the weights' way from memory is what takes the time. Lanes are the 16 rows of a tile,
// or 8 of them; a word of it holds columns 0, 2, 4, 6 in its low nibbles and 1, 3, 5, 7 in its high ones, so x is
// packed in that order and broadcast. Codes of Q8_0 are signed bytes: 128 is added for VPDPBUSD, and where sums of two
// products would not fit 16 bits they are widened and multiplied by x in 16 bits instead. Blocks are added in order: a
// token's result has the same bytes in every call, and whatever the instruction set. While a tile is multiplied the
// next one is fetched, which the processor by itself does too late where arithmetic takes most of the time.
#include "backends/cpu/kernels/byte_sums.h"
#include "backends/cpu/kernels/dequantize.h"
#include "backends/cpu/kernels/linear_item.h"
#include "backends/cpu/kernels/planes.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

static_assert(kTileRows % kLanes == 0, "vectors have rows of one tile");
constexpr int kTileVecs = kTileRows / kLanes;
constexpr int64_t kItemRows = kTilesPerItem * kTileRows;
constexpr int64_t kStepTokens = kLanes == 16 ? 8 : 4;  // whose sums fit the registers beside each other

// Sanitizers make of this file's unrolled loops a minute of compiling.
#ifdef OCTET_CPU_SANITIZED
#define OCTET_UNROLL
#else
#define OCTET_UNROLL _Pragma("GCC unroll 8")
#endif

// x of 32 columns. Word 2 i of a plane: columns 8 i + 0, 2, 4, 6; word 2 i + 1: 8 i + 1, 3, 5, 7.
struct XBlock {
  int32_t high[8], low[8];
  float scale;
  int32_t sum[2];    // of 256 h + l, of 16 columns each
  float scaled_sum;  // of both, times scale
};
static_assert(sizeof(XBlock) == kXBlockBytes, "glue makes room by it");

// Codes of word `word` (8 columns) as bytes: columns 0, 2, 4, 6 and 1, 3, 5, 7.
struct Codes {
  VecWord even, odd;
};

// For kLanes rows of a group, whose words begin at `words`: unsigned, those of Q8_0 as they are stored.
template <int Type>
OCTET_INLINE Codes CodesOf(const uint8_t* words, int sub, int word) {
  constexpr TileFormat f = TileFormatOf(Type);
  constexpr int64_t kWord = 4 * kTileRows;  // bytes
  if constexpr (Type == OCTET_Q8_0) {
    const uint8_t* at = words + f.codes + 2 * word * kWord;
    return {LoadWords(at), LoadWords(at + kWord)};
  }
  const VecWord w = LoadWords(words + f.codes + (4 * sub + word) * kWord);
  Codes codes = {w & 0x0f0f0f0f, (w >> 4) & 0x0f0f0f0f};
  const auto shifted = [](VecWord v, int left) { return left >= 0 ? v << left : v >> -left; };
  if constexpr (Type == OCTET_Q6_K) {
    const VecWord two = LoadWords(words + f.high + (2 * sub + word / 2) * kWord);
    codes.even |= shifted(two, 4 - word % 2 * 4) & 0x30303030;
    codes.odd |= shifted(two, 2 - word % 2 * 4) & 0x30303030;
  } else if constexpr (f.high >= 0) {
    const VecWord fifth = LoadWords(words + f.high + sub * kWord);
    codes.even |= shifted(fifth, 4 - 2 * word) & 0x10101010;
    codes.odd |= shifted(fifth, 3 - 2 * word) & 0x10101010;
  }
  return codes;
}

// What codes are too large by, as they are stored.
constexpr int32_t ExcessOf(int32_t type) {
  return type == OCTET_Q4_0 ? 8 : type == OCTET_Q5_0 ? 16 : type == OCTET_Q6_K ? 32 : 0;
}

// d and, where codes have no excess, m of the rows in a sub-block of 32 columns; two d where scales have 16 columns.
struct BlockScales {
  Vec d[2], m;
};

// For the rows [row, row + kLanes) of a group.
template <int Type>
OCTET_INLINE BlockScales ScalesOf(const uint8_t* group, int row, int sub) {
  constexpr TileFormat f = TileFormatOf(Type);
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  const auto floats = [](Halves h) { return reinterpret_cast<Vec>(OCTET_MM(cvtph_ps)(reinterpret_cast<HalfBits>(h))); };
  const uint8_t* const words = group + 4 * row;
  BlockScales s{};
  if constexpr (f.m >= 0) {
    const VecWord both = LoadWords(words);
    s.d[0] = floats(__builtin_convertvector(both, Halves));
    s.m = floats(__builtin_convertvector(both >> 16, Halves));
  } else {
    Halves d;
    __builtin_memcpy(&d, group + 2 * row, sizeof d);
    s.d[0] = floats(d);
  }
  if constexpr (f.mins >= 0) {
    const int word = sub / 4 * 4 * kTileRows;
    s.d[0] *= ByteToVec<false>(LoadWords(words + f.scales + word), sub % 4);
    s.m *= -ByteToVec<false>(LoadWords(words + f.mins + word), sub % 4);
  }
  if constexpr (Type == OCTET_Q6_K) {
    const VecWord w = LoadWords(words + f.scales + sub / 2 * 4 * kTileRows) >> (16 * (sub % 2));
    s.d[1] = s.d[0] * ByteToVec<true>(w, 1);
    s.d[0] *= ByteToVec<true>(w, 0);
  }
  return s;
}

// What the sums of one block of x, in integers, add to a row's result. Products of d first: the same bytes in every
// kernel.
OCTET_INLINE Vec AddBlock(Vec total, VecInt sum, Vec d, const XBlock& x) {
  return MultiplyAdd(d * x.scale, __builtin_convertvector(sum, Vec), total);
}
OCTET_INLINE Vec AddMins(Vec total, Vec m, const XBlock& x) { return MultiplyAdd(m, Splat(x.scaled_sum), total); }

__m256i Merge(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8); }

void QuantizeX(const float* x, int64_t columns, uint8_t* out) {
  constexpr int kVecs = 32 / kLanes;
  // Bytes of 8 columns: the even ones, then the odd ones.
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  for (int64_t c = 0; c < columns; c += 32, out += sizeof(XBlock)) {
    XBlock block{};
    Vec v[kVecs];
    Vec most{};
    Vec zero{};  // NaN where x is not finite
    for (int i = 0; i < kVecs; ++i) {
      v[i] = Load(x + c + i * kLanes);
      most = VecMax(most, VecMax(v[i], -v[i]));
      zero += v[i] * 0.0f;
    }
    const float top = MaxLanes(most);  // anything where x is not finite
    const bool finite = SumLanes(zero) == 0.0f;
    // A block that is not finite makes its products NaN; one too small for the factor counts as zeros.
    block.scale = finite ? top / kPlanesTop : __builtin_nanf("");
    const float inverse = finite && top >= kLeast ? kPlanesTop / top : 0.0f;
    __m256i n[2];  // 16 columns each, in 16 bits
    for (int i = 0; i < 2; ++i) {
#if OCTET_CPU_LANES == 16
      n[i] = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v[i] * inverse));
#else
      n[i] = _mm256_permute4x64_epi64(
          _mm256_packs_epi32(_mm256_cvtps_epi32(v[2 * i] * inverse), _mm256_cvtps_epi32(v[2 * i + 1] * inverse)), 0xd8);
#endif
      if (!finite) n[i] = _mm256_setzero_si256();
    }
    const auto high = [](__m256i m) { return _mm256_srai_epi16(_mm256_add_epi16(m, _mm256_set1_epi16(128)), 8); };
    const auto low = [](__m256i m) { return _mm256_srai_epi16(_mm256_slli_epi16(m, 8), 8); };  // n - 256 h
    const auto store = [&](__m256i a, __m256i b, int32_t* plane) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(plane), _mm256_shuffle_epi8(Merge(a, b), order));
    };
    store(high(n[0]), high(n[1]), block.high);
    store(low(n[0]), low(n[1]), block.low);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums = _mm256_hadd_epi32(_mm256_madd_epi16(n[0], ones), _mm256_madd_epi16(n[1], ones));
    sums = _mm256_hadd_epi32(sums, sums);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(block.sum),
                     _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
    block.scaled_sum = block.scale * static_cast<float>(block.sum[0] + block.sum[1]);
    __builtin_memcpy(out, &block, sizeof block);
  }
}

// The largest code, those of Q8_0 plus 128.
constexpr int LargestOf(int32_t type) {
  return type == OCTET_Q8_0 ? 255 : type == OCTET_Q6_K ? 63 : TileFormatOf(type).high >= 0 ? 31 : 15;
}

// sum[t] of words [first, first + Words) of a block, of codes and 256 h + l of x[t * stride].
template <int Type, int Tokens, int Words>
OCTET_INLINE void SumWords(const uint8_t* words, int sub, int first, const XBlock* x, int64_t stride, VecInt* sum) {
  // Words of 8 columns whose sums fit a vector.
  constexpr int kFit = WordsPerSum(LargestOf(Type)) / 2, kStep = kFit < Words ? kFit : Words;
  static_assert(Words % kStep == 0);
  OCTET_UNROLL
  for (int step = 0; step < Words; step += kStep) {
    PlaneSum high[Tokens], low[Tokens];
    OCTET_UNROLL
    for (int i = 0; i < kStep; ++i) {
      const int word = first + step + i;
      Codes codes = CodesOf<Type>(words, sub, word);
      if constexpr (Type == OCTET_Q8_0) codes = {codes.even ^ 0x80808080, codes.odd ^ 0x80808080};
      OCTET_UNROLL
      for (int t = 0; t < Tokens; ++t) {
        const XBlock& block = x[t * stride];
        high[t].Add(ToBits(codes.even), block.high[2 * word]);
        low[t].Add(ToBits(codes.even), block.low[2 * word]);
        high[t].Add(ToBits(codes.odd), block.high[2 * word + 1]);
        low[t].Add(ToBits(codes.odd), block.low[2 * word + 1]);
      }
    }
    OCTET_UNROLL
    for (int t = 0; t < Tokens; ++t) {
      const VecInt part = JoinPlanes(high[t], low[t]);
      sum[t] = step == 0 ? part : sum[t] + part;
    }
  }
  constexpr int32_t kExcess = Type == OCTET_Q8_0 ? 128 : ExcessOf(Type);
  if constexpr (kExcess != 0) {
    for (int t = 0; t < Tokens; ++t) {
      const XBlock& block = x[t * stride];
      sum[t] -= kExcess * (Words == 4 ? block.sum[0] + block.sum[1] : block.sum[first / 2]);
    }
  }
}

// The same of a block of Q8_0 with x in 16 bits, two codes of a word at a time.
template <int Tokens>
OCTET_INLINE void SumShorts(const uint8_t* words, const XBlock* x, int64_t stride, VecInt* sum) {
  alignas(32) int32_t even[Tokens][8], odd[Tokens][8];  // of bytes 0 and 2, and 1 and 3, of a word
  for (int t = 0; t < Tokens; ++t) {
    const XBlock& block = x[t * stride];
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.high));
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.low));
    const __m256i upper = _mm256_set1_epi16(static_cast<int16_t>(0xff00));
    _mm256_store_si256(reinterpret_cast<__m256i*>(even[t]),
                       _mm256_add_epi16(_mm256_slli_epi16(high, 8), _mm256_srai_epi16(_mm256_slli_epi16(low, 8), 8)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(odd[t]),
                       _mm256_add_epi16(_mm256_and_si256(high, upper), _mm256_srai_epi16(low, 8)));
    sum[t] = VecInt{};
  }
  OCTET_UNROLL
  for (int word = 0; word < 8; ++word) {
    const Bits codes = ToBits(LoadWords(words + TileFormatOf(OCTET_Q8_0).codes + word * 4 * kTileRows));
    const Bits even_codes = OCTET_MM(srai_epi16)(OCTET_MM(slli_epi16)(codes, 8), 8);
    const Bits odd_codes = OCTET_MM(srai_epi16)(codes, 8);
    OCTET_UNROLL
    for (int t = 0; t < Tokens; ++t) {
      sum[t] += ToInts(OCTET_MM(madd_epi16)(even_codes, SplatWord(even[t][word])));
      sum[t] += ToInts(OCTET_MM(madd_epi16)(odd_codes, SplatWord(odd[t][word])));
      asm("" : "+v"(sum[t]));  // as in PlaneSum
    }
  }
}

// result[t] += rows [row, row + kLanes) of `groups` groups of a tile times token t's blocks, `stride` blocks apart.
// Meanwhile as much of what lies at `next` is fetched, a part for each vector of rows.
template <int Type, int Tokens>
OCTET_INLINE void MultiplyRows(const uint8_t* at, const uint8_t* next, int row, int64_t groups, const XBlock* x,
                               int64_t stride, Vec* result) {
  constexpr TileFormat f = TileFormatOf(Type);
  constexpr int kHalves = Type == OCTET_Q6_K ? 2 : 1, kSubs = f.columns / kTileColumns;
  constexpr int kFetch = (f.bytes + 64 * kSubs - 1) / (64 * kSubs);  // lines a block
  for (int64_t group = 0; group < groups; ++group, at += f.bytes, next += f.bytes) {
    for (int sub = 0; sub < kSubs; ++sub, ++x) {
      for (int line = row / kLanes; line < kFetch; line += kTileVecs) {
        __builtin_prefetch(next + (sub * kFetch + line) * 64, 0, 2);
      }
      const BlockScales scales = ScalesOf<Type>(at, row, sub);
      OCTET_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        VecInt sum[Tokens];
        if constexpr (Type == OCTET_Q8_0 && !kSumsIn32Bits) {
          SumShorts<Tokens>(at + 4 * row, x, stride, sum);
        } else {
          SumWords<Type, Tokens, 4 / kHalves>(at + 4 * row, sub, half * 2, x, stride, sum);
        }
        OCTET_UNROLL
        for (int t = 0; t < Tokens; ++t) {
          const XBlock& block = x[t * stride];
          result[t] = AddBlock(result[t], sum[t], scales.d[half], block);
          if constexpr (f.m >= 0) result[t] = AddMins(result[t], scales.m, block);
        }
      }
    }
  }
}

// total[t] = one tile's rows times token t's blocks. Where vectors have 8 rows, one takes its way over a part of the
// columns after the other: registers hold the sums of one only.
template <int Type, int Tokens>
void MultiplyTile(const uint8_t* tile, const uint8_t* next, int64_t columns, const XBlock* x, int64_t stride,
                  float* total) {
  constexpr TileFormat f = TileFormatOf(Type);
  const int64_t part = kTileVecs == 1 ? columns : kBlockColumns;
  Vec all[kTileVecs][Tokens] = {};
  for (int64_t column = 0; column < columns; column += part) {
    const int64_t left = columns - column, groups = (left < part ? left : part) / f.columns;
    for (int v = 0; v < kTileVecs; ++v) {
      Vec result[Tokens];
      for (int t = 0; t < Tokens; ++t) result[t] = all[v][t];
      MultiplyRows<Type, Tokens>(tile, next, v * kLanes, groups, x, stride, result);
      for (int t = 0; t < Tokens; ++t) all[v][t] = result[t];
    }
    tile += groups * f.bytes;
    next += groups * f.bytes;
    x += part / kTileColumns;
  }
  for (int t = 0; t < Tokens; ++t) {
    for (int v = 0; v < kTileVecs; ++v) Store(total + t * kItemRows + v * kLanes, all[v][t]);
  }
}

typedef void MultiplyFn(const uint8_t* tile, const uint8_t* next, int64_t columns, const XBlock* x, int64_t stride,
                        float* total);

// By 1, 2, 4 or kStepTokens tokens.
template <int Type>
MultiplyFn* MultiplyOf(int64_t tokens) {
  return tokens == kStepTokens ? MultiplyTile<Type, kStepTokens>
         : tokens == 4         ? MultiplyTile<Type, 4>
         : tokens == 2         ? MultiplyTile<Type, 2>
                               : MultiplyTile<Type, 1>;
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

void LinearInt8(const LinearParams& p, int64_t begin, int64_t end) {
  alignas(64) float total[kIntegerTokens * kItemRows];
  const int64_t stride = p.x_int8_stride / static_cast<int64_t>(sizeof(XBlock));
  for (int64_t index = begin; index < end; ++index) {
    const LinearItem item(p, index);
    const auto* x = reinterpret_cast<const XBlock*>(p.x_int8 + item.token * p.x_int8_stride);
    for (int i = 0; i < item.num_tiles; ++i) {
      const Tile& tile = item.tiles[i];
      float* const sums = total + i * kTileRows;
      if (!HasCodes(tile.type)) {
        p.sum_tile(p, tile, item.token, item.tokens, sums);
        continue;
      }
      for (int64_t t = 0, step = kStepTokens; t < item.tokens; t += step) {
        while (step > item.tokens - t) step /= 2;
        const bool last = t + step == item.tokens;  // earlier ones leave this tile in L1 to it
        const uint8_t* const next = tile.data + (last ? TileBytes(tile.type, p.columns) : 0);
        MultiplyOf(tile.type, step)(tile.data, next, p.columns, x + t * stride, stride, sums + t * kItemRows);
      }
    }
    FinishItem(p, item, item.token, item.tokens, total, kItemRows);
  }
}

}  // namespace

void FillLinearInt8(KernelTable* table) {
  table->linear_int8 = LinearInt8;
  table->quantize_x = QuantizeX;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
