// The one inner loop of linear layers and attention: out[m][n] += sum_k x[m][k] * w[k][n] for up to kMaxM rows of x and
// `tiles` tiles of 16 n, every product added in the order of k. The order does not depend on m, so a row's result is
// the same alone and in a batch.
//
// Registers: M * tiles * (16 / lanes) accumulators, 24 of 32 at 512 bits, 12 of 16 at 256 and 128.
#ifndef OCTET_BACKENDS_CPU_KERNELS_GEMM_H_
#define OCTET_BACKENDS_CPU_KERNELS_GEMM_H_

#include "backends/cpu/kernels/vec.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

constexpr int kTileVecs = kTileRows / kLanes;
constexpr int kAccumulators = kLanes == 16 ? 24 : 12;
constexpr int kPairTiles = kLanes == 16 ? 2 : 1;  // tiles per call with many rows
constexpr int kMaxM = kAccumulators / (kPairTiles * kTileVecs);

enum class Sum {
  kStore,     // out = sum
  kContinue,  // the chain goes on from out: the same bits as one longer call
  kAdd,       // out += sum
};

struct GemmArgs {
  const float* x;  // [m][k]
  int64_t x_stride;
  const float* w[4];  // tile t: [k][16], rows w_stride apart
  int64_t w_stride, k;
  float* out;  // [m][16 * tiles], rows out_stride apart
  int64_t out_stride;
};

template <int M, int T>
static void GemmTile(const GemmArgs& a, Sum mode) {
  constexpr int V = T * kTileVecs;
  Vec acc[M][V];
#pragma GCC unroll 24
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v)
      acc[m][v] = mode == Sum::kContinue ? Load(a.out + m * a.out_stride + v * kLanes) : Vec{};
  }
  const float* w[T];
  for (int t = 0; t < T; ++t) w[t] = a.w[t];
  const float* x = a.x;
  const int64_t stride = a.x_stride;
  for (int64_t k = 0; k < a.k; ++k) {
    Vec b[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) b[v] = Load(w[v / kTileVecs] + k * a.w_stride + v % kTileVecs * kLanes);
#pragma GCC unroll 24
    for (int m = 0; m < M; ++m) {
      const Vec s = Splat(x[m * stride + k]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[m][v] += s * b[v];
    }
  }
#pragma GCC unroll 24
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      float* out = a.out + m * a.out_stride + v * kLanes;
      Store(out, mode == Sum::kAdd ? Load(out) + acc[m][v] : acc[m][v]);
    }
  }
}

// Any m, in steps of at most kMaxM.
template <int T>
static void GemmRows(GemmArgs a, int64_t m, Sum mode) {
  while (m > 0) {
    const int64_t step = m < kMaxM ? m : kMaxM;
    switch (step) {
#define OCTET_CASE(n)                                  \
  case n:                                              \
    if constexpr (n <= kMaxM) GemmTile<n, T>(a, mode); \
    break;
      OCTET_CASE(1)
      OCTET_CASE(2)
      OCTET_CASE(3)
      OCTET_CASE(4)
      OCTET_CASE(5)
      OCTET_CASE(6)
      OCTET_CASE(7)
      OCTET_CASE(8)
      OCTET_CASE(9)
      OCTET_CASE(10)
      OCTET_CASE(11)
      OCTET_CASE(12)
#undef OCTET_CASE
      default:
        break;
    }
    a.x += step * a.x_stride;
    a.out += step * a.out_stride;
    m -= step;
  }
}

// m rows of x against `tiles` (1..4) tiles.
static inline void Gemm(const GemmArgs& args, int64_t m, int tiles, Sum mode) {
  GemmArgs a = args;
  if (m == 1 && tiles == 4) return GemmTile<1, 4>(a, mode);
  if (m == 2 && tiles == 4 && kLanes == 16) return GemmTile<2, 4>(a, mode);
  while (tiles > 0) {
    const int step = tiles < kPairTiles ? tiles : kPairTiles;
    if (step == 2) {
      GemmRows<kPairTiles>(a, m, mode);
    } else {
      GemmRows<1>(a, m, mode);
    }
    a.out += step * kTileRows;
    tiles -= step;
    for (int t = 0; t < tiles; ++t) a.w[t] = a.w[t + step];
  }
}

// One row, by few instances of the loop.
static inline void GemmRow(const GemmArgs& args, int tiles, Sum mode) {
  if (tiles == 4) return GemmTile<1, 4>(args, mode);
  GemmArgs a = args;
  for (int t = 0; t < tiles; ++t, a.out += kTileRows) {
    a.w[0] = args.w[t];
    GemmTile<1, 1>(a, mode);
  }
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_GEMM_H_
