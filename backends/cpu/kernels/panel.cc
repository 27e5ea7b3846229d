// What products that a library computes need of the kernels: panels of expanded weights, x in 8 bits, and what follows
// the sums.
//
// Memory: a panel of up to kPanelTiles weight tiles is expanded by 32 columns in L1 and written once, as rows of
// [kPanelRows] floats or of pairs of bf16, or from floats to four columns of 8 bits a word: what matrix libraries call
// blocks of 16 x 64 (BA16a64b, BA16a64b2a, BA16a64b4a).
#include "backends/cpu/kernels/dequantize.h"
#include "backends/cpu/kernels/linear_item.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

typedef uint32_t VecWordPacked __attribute__((vector_size(4 * kLanes), aligned(4)));

static_assert(kPanelStep % kTileColumns == 0, "whole dequantize calls");
inline int64_t Padded(int64_t columns) { return (columns + kPanelStep - 1) / kPanelStep * kPanelStep; }

// bf16 to nearest even in the low half of each lane; NaN stays NaN.
OCTET_INLINE VecWord RoundToBf16(Vec x) {
  const VecWord bits = reinterpret_cast<VecWord>(x), high = bits >> 16;
  const VecWord rounded = (bits + 0x7fff + (high & 1)) >> 16;
  return (bits & 0x7fffffff) > 0x7f800000 ? high | 0x40 : rounded;
}

// out: of one tile, rows kPanelRows words apart; zeros behind the last column up to a multiple of kPanelStep.
template <bool Bf16>
OCTET_INLINE void ExpandTile(const Tile& tile, int64_t column, int64_t columns, uint32_t* out) {
  DequantizeFn* const dequantize = DequantizeOf(tile.type);
  alignas(64) float part[kTileColumns * kTileRows];
  for (int64_t c = 0; c < Padded(columns); c += kTileColumns) {
    const int64_t left = columns - c > 0 ? columns - c : 0, count = left < kTileColumns ? left : kTileColumns;
    if (count > 0) dequantize(tile.data, column + c, count, part);
    for (int64_t i = count; i < kTileColumns; ++i) {
      __builtin_memset(part + i * kTileRows, 0, kTileRows * sizeof(float));
    }
    if constexpr (Bf16) {
      for (int64_t i = 0; i < kTileColumns; i += 2, out += kPanelRows) {
        for (int r = 0; r < kTileRows; r += kLanes) {
          const VecWord even = RoundToBf16(Load(part + i * kTileRows + r)),
                        odd = RoundToBf16(Load(part + (i + 1) * kTileRows + r));
          *reinterpret_cast<VecWordPacked*>(out + r) = even | odd << 16;
        }
      }
    } else {
      for (int64_t i = 0; i < kTileColumns; ++i, out += kPanelRows) {
        __builtin_memcpy(out, part + i * kTileRows, kTileRows * sizeof(float));
      }
    }
  }
}

template <bool Bf16>
void ExpandPanel(const Tile* tiles, int num_tiles, int64_t column, int64_t columns, void* panel) {
  auto* out = static_cast<uint32_t*>(panel);
  for (int t = 0; t < num_tiles; ++t) ExpandTile<Bf16>(tiles[t], column, columns, out + t * kTileRows);
  // Products with the tiles that the last panel lacks are not read; zeros are quick and finite.
  const int64_t rows = Bf16 ? Padded(columns) / 2 : Padded(columns);
  const auto missing = static_cast<size_t>(kPanelRows - num_tiles * kTileRows);
  for (int64_t i = 0; i < rows && missing > 0; ++i) {
    __builtin_memset(out + i * kPanelRows + num_tiles * kTileRows, 0, missing * sizeof(uint32_t));
  }
}

// Adding it to |x| <= 127 rounds to an integer, which then is the sum's low byte.
constexpr float kRound = 12582912.0f;            // 1.5 * 2^23
constexpr float kTop = 127.0f, kLeast = 1e-30f;  // a largest element below that counts as zero

OCTET_INLINE Vec Magnitude(Vec x) { return reinterpret_cast<Vec>(reinterpret_cast<VecWord>(x) & 0x7fffffff); }

void QuantizePanel(const float* panel, int64_t columns, uint32_t* codes, float* scales, int32_t* offsets) {
  for (int r = 0; r < kPanelRows; r += kLanes) {
    Vec top{}, finite{};
    for (int64_t c = 0; c < columns; ++c) {
      const Vec w = Load(panel + c * kPanelRows + r);
      top = VecMax(top, Magnitude(w));
      finite += w * 0.0f;  // NaN from the first that is not
    }
    const VecInt small = top < Splat(kLeast), damaged = finite != finite;
    const Vec inverse = Select(small | damaged, Vec{}, kTop / top);
    const Vec scale = Select(damaged, finite, Select(small, Vec{}, top * (1.0f / kTop)));
    Vec sum{};
    for (int64_t c = 0; c < columns; c += 4) {
      VecWord word{};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Vec w = Load(panel + (c + i) * kPanelRows + r);
        const Vec shifted = Select(damaged, Vec{}, w) * inverse + kRound;
        sum += shifted - kRound;
        word |= (reinterpret_cast<VecWord>(shifted) & 255) << (8 * i);
      }
      *reinterpret_cast<VecWordPacked*>(codes + c / 4 * kPanelRows + r) = word;
    }
    Store(scales + r, scale);
    const VecInt offset = __builtin_convertvector(sum * 128.0f, VecInt);  // exact: a panel has few columns
    __builtin_memcpy(offsets + r, &offset, sizeof offset);
  }
}

float QuantizeRow(const float* x, int64_t columns, uint8_t* codes) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  Vec tops{}, zeros{};
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    tops = VecMax(tops, Magnitude(Load(x + c)));
    zeros += Load(x + c) * 0.0f;  // NaN from the first that is not finite
  }
  float top = MaxLanes(tops), zero = SumLanes(zeros);
  for (; c < columns; ++c) {
    const float magnitude = __builtin_fabsf(x[c]);
    top = magnitude > top ? magnitude : top;
    zero += x[c] * 0.0f;
  }
  __builtin_memset(codes + columns, 0, static_cast<size_t>(Padded(columns) - columns));
  if (zero != zero || top < kLeast) {
    __builtin_memset(codes, 128, static_cast<size_t>(columns));
    return zero != zero ? zero : 0.0f;
  }
  const float inverse = kTop / top;
  for (c = 0; c + kLanes <= columns; c += kLanes) {
    const Vec shifted = Load(x + c) * inverse + (kRound + 128.0f);
    const Bytes bytes = __builtin_convertvector(reinterpret_cast<VecWord>(shifted), Bytes);
    __builtin_memcpy(codes + c, &bytes, sizeof bytes);
  }
  for (; c < columns; ++c) {
    const float shifted = x[c] * inverse + (kRound + 128.0f);
    __builtin_memcpy(codes + c, &shifted, 1);
  }
  return top * (1.0f / kTop);
}

void AddProducts(const int32_t* products, int64_t tokens, const float* x_scales, const float* scales,
                 const int32_t* offsets, bool add, float* sums) {
  for (int r = 0; r < kPanelRows; r += kLanes) {
    const Vec scale = Load(scales + r);
    VecInt offset;
    __builtin_memcpy(&offset, offsets + r, sizeof offset);
    for (int64_t t = 0; t < tokens; ++t) {
      VecInt product;
      __builtin_memcpy(&product, products + t * kPanelRows + r, sizeof product);
      const Vec value = __builtin_convertvector(product - offset, Vec) * (scale * x_scales[t]);
      float* const out = sums + t * kPanelRows + r;
      Store(out, add ? Load(out) + value : value);
    }
  }
}

void FinishPanel(const LinearParams& p, int64_t index, const float* sums) {
  const LinearItem item(p, index);
  FinishItem(p, item, item.token, item.tokens, sums, kPanelRows);
}

}  // namespace

void FillPanel(KernelTable* table) {
  table->expand = ExpandPanel<false>;
  table->expand_bf16 = ExpandPanel<true>;
  table->quantize_panel = QuantizePanel;
  table->quantize_row = QuantizeRow;
  table->add_products = AddProducts;
  table->finish = FinishPanel;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
