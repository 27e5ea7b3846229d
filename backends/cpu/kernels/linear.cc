// y = x W^T + bias + residual over weight tiles, and embedding rows.
//
// Memory: an item reads its tiles once per run of tokens and expands them block by block (256 columns x 64 rows, 64
// KiB, in L2; 32 columns, 8 KiB, in L1 when there are few tokens). Order of sums for every output: columns in order
// within a block of 256, block sums in order, then row scale, bias, residual; so a token's result does not depend on
// the other tokens of the call. Blocking after Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (2008).
#include "backends/cpu/kernels/dequantize.h"
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/linear_item.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

constexpr int64_t kPanelFloats = kTilesPerItem * kTileRows * kBlockColumns;

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// total[t][row of the panel] += W x over one block of columns.
void Block(const LinearParams& p, const Tile* tiles, int num_tiles, const float* x, int64_t tokens, int64_t column,
           int64_t columns, float* panel, float* total) {
  DequantizeFn* dequantize[kTilesPerItem];
  for (int t = 0; t < num_tiles; ++t) dequantize[t] = DequantizeOf(tiles[t].type);
  const int64_t step = tokens <= kFewTokens ? kTileColumns : columns;
  const bool whole = step >= columns;
  alignas(64) float chain[kFewTokens * kTilesPerItem * kTileRows];
  GemmArgs args{};
  args.x_stride = p.x_stride;
  args.w_stride = kTileRows;
  args.out = whole ? total : chain;
  args.out_stride = kTilesPerItem * kTileRows;
  for (int t = 0; t < num_tiles; ++t) args.w[t] = panel + t * step * kTileRows;
  for (int64_t c = 0; c < columns; c += step) {
    args.k = Min(step, columns - c);
    for (int t = 0; t < num_tiles; ++t) {
      float* out = panel + t * step * kTileRows;
      for (int64_t i = 0; i < args.k; i += kTileColumns) {
        dequantize[t](tiles[t].data, column + c + i, Min(kTileColumns, args.k - i), out + i * kTileRows);
      }
    }
    args.x = x + column + c;
    Gemm(args, tokens, num_tiles, whole ? Sum::kAdd : c == 0 ? Sum::kStore : Sum::kContinue);
  }
  if (whole) return;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < num_tiles * kTileRows; ++i) total[t * args.out_stride + i] += chain[t * args.out_stride + i];
  }
}

void Linear(const LinearParams& p, int64_t begin, int64_t end) {
  alignas(64) float panel[kPanelFloats];
  alignas(64) float total[kMaxTokensPerItem * kTilesPerItem * kTileRows];
  for (int64_t index = begin; index < end; ++index) {
    const LinearItem item(p, index);
    __builtin_memset(total, 0, static_cast<size_t>(item.tokens * kTilesPerItem * kTileRows) * sizeof(float));
    for (int64_t column = 0; column < p.columns; column += kBlockColumns) {
      Block(p, item.tiles, item.num_tiles, p.x + item.token * p.x_stride, item.tokens, column,
            Min(kBlockColumns, p.columns - column), panel, total);
    }
    FinishItem(p, item, item.token, item.tokens, total, kTilesPerItem * kTileRows);
  }
}

void SumTile(const LinearParams& p, const Tile& tile, int64_t token, int64_t tokens, float* total) {
  alignas(64) float panel[kTileRows * kBlockColumns];
  for (int64_t t = 0; t < tokens; ++t) {
    __builtin_memset(total + t * kTilesPerItem * kTileRows, 0, kTileRows * sizeof(float));
  }
  for (int64_t column = 0; column < p.columns; column += kBlockColumns) {
    Block(p, &tile, 1, p.x + token * p.x_stride, tokens, column, Min(kBlockColumns, p.columns - column), panel, total);
  }
}

void Embed(const Tile* tile, int64_t row, int64_t columns, float scale, float* y) {
  DequantizeFn* const dequantize = DequantizeOf(tile->type);
  const float factor = tile->row_scale != nullptr ? tile->row_scale[row] * scale : scale;
  alignas(64) float out[kTileColumns * kTileRows];
  for (int64_t c = 0; c < columns; c += kTileColumns) {
    const int64_t count = Min(kTileColumns, columns - c);
    dequantize(tile->data, c, count, out);
    for (int64_t i = 0; i < count; ++i) y[c + i] = out[i * kTileRows + row] * factor;
  }
}

}  // namespace

void FillLinear(KernelTable* table) {
  table->linear = Linear;
  table->sum_tile = SumTile;
  table->embed = Embed;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
