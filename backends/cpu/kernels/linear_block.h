// One panel of a linear layer over one block of columns, in f32: what linear.cc is made of, and what linear_vnni.cc
// does with tiles of floats.
#ifndef OCTET_BACKENDS_CPU_KERNELS_LINEAR_BLOCK_H_
#define OCTET_BACKENDS_CPU_KERNELS_LINEAR_BLOCK_H_

#include "backends/cpu/kernels/dequantize.h"
#include "backends/cpu/kernels/gemm.h"

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

}  // namespace
}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_LINEAR_BLOCK_H_
