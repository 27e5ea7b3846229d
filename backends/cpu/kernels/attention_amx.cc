// Attention over INT8 rows on the tile unit of Intel's AMX (TDPBSSD, TDPBUSD: 16 x 16 sums over 64 bytes an
// instruction).
//
// Scores: 16 keys are the A operand as they lie in the page, queries the B operand; the sums come out as [key][column].
// Values: weights are the A operand, words of four tokens of V the B operand. Registers 0 to 3 hold sums, 4 and 5 A, 6
// and 7 B.
#include "backends/cpu/kernels/amx.h"
#include "backends/cpu/kernels/attention_int8.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

constexpr int kRowBytes = 64;

class Amx {
 public:
  // sums[b * Products + product] of `blocks` (up to 4 / Products) blocks of keys; the rest may hold anything.
  template <int Products>
  static void Keys(const QueryPanel& panel, int segments, const KeyRows* keys, int blocks, Sums* sums) {
    ZeroSums();
    for (int s = 0; s < segments; ++s) {
      const auto load = [&](int b) { return keys[b].data + s * kSegment; };
      _tile_loadd(6, panel.codes[s][0], kRowBytes);
      _tile_loadd(4, load(0), keys[0].stride);
      _tile_dpbssd(0, 4, 6);
      if constexpr (Products == 2) {
        _tile_loadd(7, panel.codes[s][1], kRowBytes);
        _tile_dpbssd(1, 4, 7);
        if (blocks == 1) continue;
        _tile_loadd(5, load(1), keys[1].stride);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
      } else {
        if (blocks == 1) continue;
        _tile_loadd(5, load(1), keys[1].stride);
        _tile_dpbssd(1, 5, 6);
        if (blocks == 2) continue;
        _tile_loadd(4, load(2), keys[2].stride);
        _tile_dpbssd(2, 4, 6);
        if (blocks == 3) continue;
        _tile_loadd(5, load(3), keys[3].stride);
        _tile_dpbssd(3, 5, 6);
      }
    }
    StoreSums(sums);
  }

  // sums[t * Products + product] of 4 / Products tiles of channels from `tile` on.
  template <int Products>
  static void Values(const WeightRun* runs, const ValueRun* values, int run_begin, int run_end, int tile, Sums* sums) {
    ZeroSums();
    for (int run = run_begin; run < run_end; ++run) {
      const auto& tiles = values[run].tiles;
      _tile_loadd(4, runs[run].rows[0], kRowBytes);
      _tile_loadd(6, tiles[tile], kRowBytes);
      _tile_dpbusd(0, 4, 6);
      if constexpr (Products == 2) {
        _tile_loadd(5, runs[run].rows[1], kRowBytes);
        _tile_dpbusd(1, 5, 6);
        _tile_loadd(7, tiles[tile + 1], kRowBytes);
        _tile_dpbusd(2, 4, 7);
        _tile_dpbusd(3, 5, 7);
      } else {
        _tile_loadd(7, tiles[tile + 1], kRowBytes);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(6, tiles[tile + 2], kRowBytes);
        _tile_dpbusd(2, 4, 6);
        _tile_loadd(7, tiles[tile + 3], kRowBytes);
        _tile_dpbusd(3, 4, 7);
      }
    }
    StoreSums(sums);
  }

 private:
  static void ZeroSums() {
    FinishStores();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  static void StoreSums(Sums* sums) {
    _tile_stored(0, sums[0], kRowBytes);
    _tile_stored(1, sums[1], kRowBytes);
    _tile_stored(2, sums[2], kRowBytes);
    _tile_stored(3, sums[3], kRowBytes);
  }

  Tiles tiles_;
};

}  // namespace

void FillAttentionAmx(KernelTable* table) {
  table->attention_int8 = IntegerAttention<Amx>;
  table->attention_int8_merge = MergePartials;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
