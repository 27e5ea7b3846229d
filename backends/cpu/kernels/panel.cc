// What products that a library computes need of the kernels: panels of expanded weights, and what follows the sums.
//
// Memory: a panel of up to kPanelTiles weight tiles is expanded by 32 columns in L1 and written once, as rows of
// [kPanelRows] floats or of pairs of bf16: how matrix libraries call blocks of 16 x 64 (BA16a64b, BA16a64b2a).
#include "backends/cpu/kernels/dequantize.h"
#include "backends/cpu/kernels/linear_item.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

typedef uint32_t VecWordPacked __attribute__((vector_size(4 * kLanes), aligned(4)));

// bf16 to nearest even in the low half of each lane; NaN stays NaN.
OCTET_INLINE VecWord RoundToBf16(Vec x) {
  const VecWord bits = reinterpret_cast<VecWord>(x), high = bits >> 16;
  const VecWord rounded = (bits + 0x7fff + (high & 1)) >> 16;
  return (bits & 0x7fffffff) > 0x7f800000 ? high | 0x40 : rounded;
}

// out: of one tile, rows kPanelRows words apart; zeros behind the last column up to a multiple of 32.
template <bool Bf16>
OCTET_INLINE void ExpandTile(const Tile& tile, int64_t column, int64_t columns, uint32_t* out) {
  DequantizeFn* const dequantize = DequantizeOf(tile.type);
  alignas(64) float part[kTileColumns * kTileRows];
  for (int64_t c = 0; c < columns; c += kTileColumns) {
    const int64_t count = columns - c < kTileColumns ? columns - c : kTileColumns;
    dequantize(tile.data, column + c, count, part);
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
  const int64_t padded = (columns + kTileColumns - 1) / kTileColumns * kTileColumns, rows = Bf16 ? padded / 2 : padded;
  const auto missing = static_cast<size_t>(kPanelRows - num_tiles * kTileRows);
  for (int64_t i = 0; i < rows && missing > 0; ++i) {
    __builtin_memset(out + i * kPanelRows + num_tiles * kTileRows, 0, missing * sizeof(uint32_t));
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
  table->finish = FinishPanel;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
