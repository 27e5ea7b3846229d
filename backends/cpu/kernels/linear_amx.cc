// y = x W^T + bias + residual for more than a few tokens, with x and W rounded to bf16 and products summed in f32 by
// the tile unit of Intel's AMX (TDPBF16PS: 16 x 16 sums over 32 columns an instruction). Rounding a normal x costs a
// relative error of 2^-9, and W too where it is not stored in bf16; the unit takes denormals for zero.
//
// Memory as in linear.cc: an item reads its tiles once per run of tokens and expands a block of 256 columns x 64 rows
// to 32 KiB of pairs in L1, which are the unit's B operand as they lie; x is its A operand. Order of sums for every
// output: as the unit does it within 32 columns, those in order, then row scale, bias, residual; so a token's result is
// the same in every call of this kernel. Registers 0 to 3 hold sums, 4 and 5 x, 6 and 7 weights.
#include "backends/cpu/kernels/amx.h"
#include "backends/cpu/kernels/dequantize.h"
#include "backends/cpu/kernels/linear_item.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

constexpr int kUnit = 16;                                  // tokens and rows of a tile register
constexpr int64_t kUnitPairs = 16;                         // pairs of columns that one instruction takes
constexpr int64_t kOutStride = kTilesPerItem * kTileRows;  // floats
constexpr int64_t kPanelPairs = kBlockColumns / 2;

static_assert(kUnit == kTileRows && kMaxTokensPerItem % kUnit == 0, "whole tile registers");

struct AmxArgs {
  const uint16_t* x;  // [16 m][2 * pairs]
  int64_t x_stride;   // elements
  const uint32_t* w;  // tile t at w + t * kPanelPairs * 16: [pairs][16], the even column below
  int64_t pairs;      // a multiple of 16
  float* out;         // [16 m][kOutStride]
};

// out += x w for M * 16 tokens and T tiles, each 1 or 2.
template <int M, int T>
void Multiply(const AmxArgs& a) {
  constexpr int64_t kOutBytes = kOutStride * static_cast<int64_t>(sizeof(float));
  const int64_t x_bytes = a.x_stride * static_cast<int64_t>(sizeof(uint16_t));
  const uint16_t* x1 = a.x + kUnit * a.x_stride;
  const uint32_t* w1 = a.w + kPanelPairs * kTileRows;
  float* out1 = a.out + kUnit * kOutStride;
  FinishStores();
  _tile_loadd(0, a.out, kOutBytes);
  if constexpr (T == 2) _tile_loadd(1, a.out + kTileRows, kOutBytes);
  if constexpr (M == 2) _tile_loadd(2, out1, kOutBytes);
  if constexpr (M == 2 && T == 2) _tile_loadd(3, out1 + kTileRows, kOutBytes);
  for (int64_t k = 0; k < a.pairs; k += kUnitPairs) {
    _tile_loadd(4, a.x + 2 * k, x_bytes);
    _tile_loadd(6, a.w + k * kTileRows, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (T == 2) {
      _tile_loadd(7, w1 + k * kTileRows, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (M == 2) {
      _tile_loadd(5, x1 + 2 * k, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (T == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, a.out, kOutBytes);
  if constexpr (T == 2) _tile_stored(1, a.out + kTileRows, kOutBytes);
  if constexpr (M == 2) _tile_stored(2, out1, kOutBytes);
  if constexpr (M == 2 && T == 2) _tile_stored(3, out1 + kTileRows, kOutBytes);
}

// `units` times 16 tokens.
template <int T>
void MultiplyTokens(AmxArgs a, int64_t units) {
  for (; units >= 2; units -= 2) {
    Multiply<2, T>(a);
    a.x += 2 * kUnit * a.x_stride;
    a.out += 2 * kUnit * kOutStride;
  }
  if (units == 1) Multiply<1, T>(a);
}

// Two f32 columns of 16 rows as pairs, to nearest even. Vector extensions, where gcc 12 warns of its own intrinsics.
OCTET_INLINE VecWord ToPairs(const float* even, const float* odd) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  const auto half = [](const float* p) {
    return __builtin_convertvector(reinterpret_cast<Halves>(_mm512_cvtneps_pbh(_mm512_loadu_ps(p))), VecWord);
  };
  return half(even) | half(odd) << 16;
}

// panel [pairs][16] = columns [column, column + columns) of one tile, and zeros up to a multiple of 32 columns.
void ExpandPairs(const Tile& tile, int64_t column, int64_t columns, uint32_t* panel) {
  DequantizeFn* const dequantize = DequantizeOf(tile.type);
  alignas(64) float part[kTileColumns * kTileRows];
  for (int64_t c = 0; c < columns; c += kTileColumns) {
    const int64_t count = columns - c < kTileColumns ? columns - c : kTileColumns;
    dequantize(tile.data, column + c, count, part);
    for (int64_t i = count; i < kTileColumns; ++i) {
      __builtin_memset(part + i * kTileRows, 0, kTileRows * sizeof(float));
    }
    for (int64_t i = 0; i < kTileColumns; i += 2) {
      *reinterpret_cast<VecWordUnaligned*>(panel + (c + i) / 2 * kTileRows) =
          ToPairs(part + i * kTileRows, part + (i + 1) * kTileRows);
    }
  }
}

void LinearAmx(const LinearParams& p, int64_t begin, int64_t end) {
  alignas(64) uint32_t panel[kTilesPerItem * kPanelPairs * kTileRows];
  alignas(64) float total[kMaxTokensPerItem * kOutStride];
  const Tiles registers;
  for (int64_t index = begin; index < end; ++index) {
    const LinearItem item(p, index);
    const int64_t units = (item.tokens + kUnit - 1) / kUnit;
    __builtin_memset(total, 0, static_cast<size_t>(units * kUnit * kOutStride) * sizeof(float));
    for (int64_t column = 0; column < p.columns; column += kBlockColumns) {
      const int64_t columns = p.columns - column < kBlockColumns ? p.columns - column : kBlockColumns;
      for (int t = 0; t < item.num_tiles; ++t) {
        ExpandPairs(item.tiles[t], column, columns, panel + t * kPanelPairs * kTileRows);
      }
      AmxArgs a{};
      a.x = p.x_bf16 + item.token * p.x_bf16_stride + column;
      a.x_stride = p.x_bf16_stride;
      a.pairs = (columns + kTileColumns - 1) / kTileColumns * kUnitPairs;
      for (int t = 0; t < item.num_tiles; t += 2) {
        a.w = panel + t * kPanelPairs * kTileRows;
        a.out = total + t * kTileRows;
        if (t + 1 < item.num_tiles) {
          MultiplyTokens<2>(a, units);
        } else {
          MultiplyTokens<1>(a, units);
        }
      }
    }
    FinishItem(p, item, total);
  }
}

}  // namespace

void FillLinearAmx(KernelTable* table) { table->linear_bf16 = LinearAmx; }

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
