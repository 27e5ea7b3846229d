// y = x W^T + bias + residual for more than a few tokens, with x and W rounded to bf16 and products summed in f32 by
// the tile unit of Intel's AMX (TDPBF16PS: 16 x 16 sums over 32 columns an instruction). Rounding a normal x costs a
// relative error of 2^-9, and W too where it is not stored in bf16; the unit takes denormals for zero.
//
// An item expands two weight tiles over up to kPanelColumns columns to pairs of bf16, 40 KiB in L1, which are the
// unit's B operand as they lie, and then takes 32 tokens after the other through them: their sums stay in registers 0
// to 3 over all of these columns. x is packed by pack_x as the A operands, one after the other as they are loaded.
// Where nothing is to be added, sums go straight to y. Order of sums for every output: as the unit does it within 32
// columns, those in order, then row scale, bias, residual; so a token's result is the same in every call of this
// kernel.
#include "backends/cpu/kernels/amx.h"
#include "backends/cpu/kernels/dequantize.h"
#include "backends/cpu/kernels/linear_item.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

constexpr int kUnit = 16;  // tokens and rows of a tile register
constexpr int kTiles = kPackedTilesPerItem;
constexpr int64_t kRowBytes = 64;              // of a tile register
constexpr int64_t kUnitColumns = 32;           // that one instruction takes
constexpr int64_t kUnitWords = kUnit * kUnit;  // of an operand
constexpr int64_t kPanelColumns = 640;
constexpr int64_t kPanelWords = kPanelColumns / kUnitColumns * kUnitWords;  // of one weight tile
constexpr int64_t kOutStride = kTiles * kTileRows;                          // floats

static_assert(kUnit == kTileRows && kUnit == kPackedTokens && kUnitColumns == kTileColumns,
              "an operand is what one dequantize call expands");
static_assert(kMaxPackedTokensPerItem % (2 * kUnit) == 0 && kPanelColumns % kUnitColumns == 0,
              "whole steps of tokens and columns");

struct AmxArgs {
  const uint32_t* x;    // operands of 16 tokens, one for each 32 columns
  int64_t x_unit;       // words from 16 tokens to the next 16
  const uint32_t* w;    // operands of a weight tile; those of the next one kPanelWords behind
  int64_t steps;        // of 32 columns
  const float* before;  // [16 M][kOutStride] sums of earlier columns, or null
  float* out;           // [16 M][out_stride]
  int64_t out_stride;
};

// out = before + x w for M * 16 tokens and T tiles, each 1 or 2.
template <int M, int T>
void Multiply(const AmxArgs& a) {
  FinishStores();
  if (a.before != nullptr) {
    constexpr int64_t kBytes = kOutStride * static_cast<int64_t>(sizeof(float));
    _tile_loadd(0, a.before, kBytes);
    if constexpr (T == 2) _tile_loadd(1, a.before + kTileRows, kBytes);
    if constexpr (M == 2) _tile_loadd(2, a.before + kUnit * kOutStride, kBytes);
    if constexpr (M == 2 && T == 2) _tile_loadd(3, a.before + kUnit * kOutStride + kTileRows, kBytes);
  } else {
    _tile_zero(0);
    if constexpr (T == 2) _tile_zero(1);
    if constexpr (M == 2) _tile_zero(2);
    if constexpr (M == 2 && T == 2) _tile_zero(3);
  }
  const uint32_t *x0 = a.x, *x1 = a.x + a.x_unit, *w0 = a.w, *w1 = a.w + kPanelWords;
  for (int64_t step = 0; step < a.steps; ++step) {
    _tile_loadd(4, x0, kRowBytes);
    _tile_loadd(6, w0, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (T == 2) {
      _tile_loadd(7, w1, kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (M == 2) {
      _tile_loadd(5, x1, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (T == 2) _tile_dpbf16ps(3, 5, 7);
    }
    x0 += kUnitWords;
    x1 += kUnitWords;
    w0 += kUnitWords;
    w1 += kUnitWords;
  }
  const int64_t bytes = a.out_stride * static_cast<int64_t>(sizeof(float));
  _tile_stored(0, a.out, bytes);
  if constexpr (T == 2) _tile_stored(1, a.out + kTileRows, bytes);
  if constexpr (M == 2) _tile_stored(2, a.out + kUnit * a.out_stride, bytes);
  if constexpr (M == 2 && T == 2) _tile_stored(3, a.out + kUnit * a.out_stride + kTileRows, bytes);
}

void Multiply(const AmxArgs& a, int64_t units, int tiles) {
  if (units == 2) {
    tiles == 2 ? Multiply<2, 2>(a) : Multiply<2, 1>(a);
  } else {
    tiles == 2 ? Multiply<1, 2>(a) : Multiply<1, 1>(a);
  }
}

// Two f32 columns of 16 rows as pairs, to nearest even. Vector extensions, where gcc 12 warns of its own intrinsics.
OCTET_INLINE VecWord ToPairs(const float* even, const float* odd) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  const auto half = [](const float* p) {
    return __builtin_convertvector(reinterpret_cast<Halves>(_mm512_cvtneps_pbh(_mm512_loadu_ps(p))), VecWord);
  };
  return half(even) | half(odd) << 16;
}

// Columns [column, column + columns) of one weight tile as operands, and zeros up to a multiple of 32 columns.
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

// Are the item's sums its y as they are?
bool SumsAreY(const LinearParams& p, const LinearItem& item) {
  for (int i = 0; i < item.num_tiles; ++i) {
    if (item.tiles[i].rows != kTileRows || item.tiles[i].row_scale != nullptr) return false;
  }
  return p.bias == nullptr && p.residual == nullptr &&
         (item.num_tiles == 1 || item.tiles[1].first_row == item.tiles[0].first_row + kTileRows);
}

// Columns that are expanded at once: as many panels as needed, of the same size.
int64_t ColumnsPerPanel(int64_t columns) {
  const int64_t steps = (columns + kUnitColumns - 1) / kUnitColumns, most = kPanelColumns / kUnitColumns;
  const int64_t panels = (steps + most - 1) / most;
  return (steps + panels - 1) / panels * kUnitColumns;
}

void LinearAmx(const LinearParams& p, int64_t begin, int64_t end) {
  alignas(64) uint32_t panel[kTiles * kPanelWords];
  alignas(64) float total[kMaxPackedTokensPerItem * kOutStride];
  alignas(64) float last[2 * kUnit * kOutStride];
  const Tiles registers;
  const int64_t block = ColumnsPerPanel(p.columns);
  for (int64_t index = begin; index < end; ++index) {
    const LinearItem item(p, index);
    const bool direct = SumsAreY(p, item);
    for (int64_t column = 0; column < p.columns; column += block) {
      const int64_t left = p.columns - column, columns = left < block ? left : block;
      for (int t = 0; t < item.num_tiles; ++t) ExpandPairs(item.tiles[t], column, columns, panel + t * kPanelWords);
      AmxArgs a{};
      a.x_unit = p.x_bf16_stride;
      a.w = panel;
      a.steps = (columns + kUnitColumns - 1) / kUnitColumns;
      for (int64_t token = 0; token < item.tokens; token += 2 * kUnit) {
        const int64_t tokens = item.tokens - token < 2 * kUnit ? item.tokens - token : 2 * kUnit;
        a.x = p.x_bf16 + (item.token + token) / kUnit * p.x_bf16_stride + column / kUnitColumns * kUnitWords;
        a.before = column > 0 ? total + token * kOutStride : nullptr;
        const bool done = column + columns == p.columns, straight = done && direct && tokens % kUnit == 0;
        a.out = !done      ? total + token * kOutStride
                : straight ? p.y + (item.token + token) * p.y_stride + item.tiles[0].first_row
                           : last;
        a.out_stride = straight ? p.y_stride : kOutStride;
        Multiply(a, (tokens + kUnit - 1) / kUnit, item.num_tiles);
        if (done && !straight) FinishItem(p, item, item.token + token, tokens, last, kOutStride);
      }
    }
  }
}

// Rows are 64 bytes of an operand each.
void PackX(const float* x, int64_t columns, int64_t token, uint32_t* out) {
  uint32_t* row = out + token % kUnit * kUnit;
  for (int64_t c = 0; c < columns; c += kUnitColumns, row += kUnitWords) {
    const int64_t left = columns - c;
    const auto load = [&](int64_t at) {
      const int64_t n = left - at;
      const __mmask16 mask = n >= 16 ? 0xffff : n > 0 ? static_cast<__mmask16>((1u << n) - 1) : 0;
      return _mm512_maskz_loadu_ps(mask, x + c + (n > 0 ? at : 0));
    };
    _mm512_store_si512(row, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(load(16), load(0))));
  }
}

}  // namespace

void FillLinearAmx(KernelTable* table) {
  table->linear_bf16 = LinearAmx;
  table->pack_x = PackX;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
