// What the linear kernels share: which tiles and tokens an item has, and what follows the sums.
#ifndef OCTET_BACKENDS_CPU_KERNELS_LINEAR_ITEM_H_
#define OCTET_BACKENDS_CPU_KERNELS_LINEAR_ITEM_H_

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

// y = sums * row scale + bias + residual; total is [tokens][kTilesPerItem * 16].
static void FinishItem(const LinearParams& p, const LinearItem& item, const float* total) {
  for (int64_t t = 0; t < item.tokens; ++t) {
    for (int i = 0; i < item.num_tiles; ++i) {
      const Tile& tile = item.tiles[i];
      const float* sum = total + (t * kTilesPerItem + i) * kTileRows;
      float* y = p.y + (item.token + t) * p.y_stride + tile.first_row;
      const float* bias = p.bias != nullptr ? p.bias + tile.first_row : nullptr;
      const float* residual =
          p.residual != nullptr ? p.residual + (item.token + t) * p.residual_stride + tile.first_row : nullptr;
      for (int r = 0; r < tile.rows; ++r) {
        float value = sum[r];
        if (tile.row_scale != nullptr) value *= tile.row_scale[r];
        if (bias != nullptr) value += bias[r];
        if (residual != nullptr) value += residual[r];
        y[r] = value;
      }
    }
  }
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_LINEAR_ITEM_H_
