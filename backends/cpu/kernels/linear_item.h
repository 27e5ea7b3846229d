// What the linear kernels share: which tiles and tokens an item has, and what follows the sums.
#ifndef OCTET_BACKENDS_CPU_KERNELS_LINEAR_ITEM_H_
#define OCTET_BACKENDS_CPU_KERNELS_LINEAR_ITEM_H_

#include <stddef.h>

#include "backends/cpu/kernels/vec.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

// Item `index` of LinearParams: panels innermost.
struct LinearItem {
  const Tile* tiles;
  int num_tiles;
  int64_t token, tokens;

  LinearItem(const LinearParams& p, int64_t index) {
    const int64_t panels = (p.num_tiles + p.tiles_per_item - 1) / p.tiles_per_item;
    const int64_t first_tile = index % panels * p.tiles_per_item, tiles_left = p.num_tiles - first_tile;
    tiles = p.tiles + first_tile;
    num_tiles = static_cast<int>(tiles_left < p.tiles_per_item ? tiles_left : p.tiles_per_item);
    token = index / panels * p.tokens_per_item;
    tokens = p.tokens - token < p.tokens_per_item ? p.tokens - token : p.tokens_per_item;
  }
};

// Loops within conditions, not the other way round: gcc makes a masked load of the latter, and one whose mask is empty
// at address 0 takes hundreds of cycles.
static inline void FinishRows(int rows, const float* sum, const float* row_scale, const float* bias,
                              const float* residual, float* y) {
  alignas(64) float value[kTileRows];
  __builtin_memcpy(value, sum, sizeof value);
  if (row_scale != nullptr) {
    for (int r = 0; r < rows; ++r) value[r] *= row_scale[r];
  }
  if (bias != nullptr) {
    for (int r = 0; r < rows; ++r) value[r] += bias[r];
  }
  if (residual != nullptr) {
    for (int r = 0; r < rows; ++r) value[r] += residual[r];
  }
  __builtin_memcpy(y, value, static_cast<size_t>(rows) * sizeof(float));
}

// y = sums * row scale + bias + residual for tokens [token, token + tokens); total is [tokens][stride], a tile's sums
// behind the other's.
static void FinishItem(const LinearParams& p, const LinearItem& item, int64_t token, int64_t tokens, const float* total,
                       int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < item.num_tiles; ++i) {
      const Tile& tile = item.tiles[i];
      const float* sum = total + t * stride + i * kTileRows;
      float* y = p.y + (token + t) * p.y_stride + tile.first_row;
      const float* bias = p.bias != nullptr ? p.bias + tile.first_row : nullptr;
      const float* residual =
          p.residual != nullptr ? p.residual + (token + t) * p.residual_stride + tile.first_row : nullptr;
      if (tile.rows == kTileRows) {
        FinishRows(kTileRows, sum, tile.row_scale, bias, residual, y);
      } else {
        FinishRows(tile.rows, sum, tile.row_scale, bias, residual, y);
      }
    }
  }
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_LINEAR_ITEM_H_
