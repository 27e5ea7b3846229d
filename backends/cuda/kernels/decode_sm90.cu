// Attention over paged INT8 rows for few queries at a time, on Hopper: integer products for scores, f16 tensor cores
// for values, split over keys and heads so that every multiprocessor streams the cache at its full rate.
//
//   q  = q_scale (256 h + l), in 16 bits of the row's largest |q|; s = (256 h . codes + l . codes) q_scale k_scale
//   w  = e^(s - m) v_scale relative to the largest v_scale so far, as the sum of two f16; O = sum of w codes
//
// Work is one list: per query token and KV head, an item, a few places for its beginning and end and one for each tile
// of 64 visible keys. Block c of the grid takes an equal share of the places. A producer warp copies tiles (codes and
// scales of K and V) to a ring in shared memory with bulk copies; each consumer warp takes every kWarps-th tile whole,
// with sums of its own, so that nothing but the ring's barriers is waited for within a query head's share. Shares are
// merged in the order of warps, and those of other blocks, in the order of blocks, by the last of them to arrive: the
// same bytes in every run.
//
// Tensor core operands: K is the A operand as it lies (16 keys by 32 channels), its channels permuted alike in q; h and
// l of a head are neighbouring columns of B, so that a thread gets both sums of a score. V^T is the A operand of the
// second product: bytes of two keys are spread to f16 as they lie (code + 128, as a subnormal number, exact), and the
// 128 is taken off by the sum of the weights, which the same unit adds up. Weights come as [key][head] and go in as
// [head][key]: movmatrix. Memory: 2 D + 8 bytes a key and head.
#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/kernels/decode.h"
#include "backends/gpu/kernels/device.cuh"

namespace octet_gpu {
namespace {

constexpr int kTile = kDecodeTile;          // keys
constexpr int kUnits = kTile / 16;          // of 16 keys
constexpr int kMostShares = kDecodeBlocks;  // that are merged at once
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kWeightTop = 16384.0f;  // what the largest weight can become: small ones keep their bits in f16

template <int D>
struct Shape {
  static constexpr int kWarps = D <= 64 ? 11 : D <= 128 ? 10 : 4;
  static constexpr int kStages = kWarps;  // a multiple of kWarps: a stage is always one warp's
  static constexpr int kThreads = (kWarps + 1) * kWarp;
  static constexpr int kStageBytes = kTile * (2 * D + 8);  // K, V, scales of K, scales of V
  static_assert(kStages % kWarps == 0);
};

// One warp's share of a query token's heads, or what several shares come to.
template <int D>
struct alignas(16) Share {
  float out[kDecodeGroup][D];
  float top[kDecodeGroup], sum[kDecodeGroup];
};

template <int D>
struct alignas(128) Memory {
  uint8_t stages[Shape<D>::kStages][Shape<D>::kStageBytes];
  Share<D> shares[Shape<D>::kWarps];
  int8_t planes[2 * kDecodeGroup][D];  // row 2 i + p: plane p of head i of the group
  float q_raw[kDecodeGroup][D];        // before rotation, where there is an offset table
  float out[kDecodeGroup][D];          // of a merge, before its rotation is undone
  float q_scale[kDecodeGroup];         // times the scale of scores, to the base 2
  float factors[kDecodeGroup][kMostShares], top[kDecodeGroup], sum[kDecodeGroup];  // of a merge
  uint64_t full[Shape<D>::kStages], empty[Shape<D>::kStages];
  int last;
};

// ---- Barriers, copies and tensor cores

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void ExpectBytes(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ __forceinline__ void Wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "retry:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void BulkCopy(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   SharedAddress(to)),
               "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
               : "memory");
}
template <int kThreads>
__device__ __forceinline__ void ConsumersMeet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// 16 keys x 32 channels by 32 channels x 8 columns.
__device__ __forceinline__ void MultiplyBytes(int32_t* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                              uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// 16 channels x 16 keys by 16 keys x 8 heads.
__device__ __forceinline__ void MultiplyHalves(float* c, const uint32_t* a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ uint32_t Transpose8x8(uint32_t v) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
  return out;
}
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- The list of tiles

// The tiles of one query token and KV head, an item, that a block takes.
struct Segment {
  TokenKeys keys;
  int64_t place;  // of the item in the list; its tiles lie kAttentionItemCost behind
  int token, head;
  int begin, end, tiles;  // [begin, end) of the item's tiles
};

__device__ __forceinline__ int Clamp(int64_t n, int most) {
  return static_cast<int>(max(int64_t{0}, min(n, int64_t{most})));
}

__device__ __forceinline__ void LoadToken(const AttentionParams& a, int token, Segment* s) {
  s->token = token;
  s->keys = a.keys[token];
  s->tiles = a.keys[token + 1].place - s->keys.place - kAttentionItemCost;
}

// The first item with tiles in places [at, stop) of the list. False: there is none.
__device__ bool FirstSegment(const AttentionParams& a, int tokens, int64_t at, int64_t stop, Segment* s) {
  int low = 0, high = tokens;  // the last token that begins at or before `at`
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (int64_t{a.keys[middle].place} * a.kv_heads <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  LoadToken(a, low, s);
  const int64_t in_token = at - int64_t{s->keys.place} * a.kv_heads, places = s->tiles + kAttentionItemCost;
  s->head = static_cast<int>(in_token / places);
  s->place = at - in_token % places;
  s->begin = Clamp(at - s->place - kAttentionItemCost, s->tiles);
  s->end = Clamp(stop - s->place - kAttentionItemCost, s->tiles);
  return s->begin < s->end;
}

// The next item. False: none of its tiles are before `stop`.
__device__ bool NextSegment(const AttentionParams& a, int64_t stop, Segment* s) {
  s->place += s->tiles + kAttentionItemCost;
  if (s->place + kAttentionItemCost >= stop) return false;
  if (++s->head == a.kv_heads) {
    s->head = 0;
    LoadToken(a, s->token + 1, s);
  }
  s->begin = 0;
  s->end = Clamp(stop - s->place - kAttentionItemCost, s->tiles);
  return true;
}

// Blocks that have work: each of them has a place at least.
__device__ __forceinline__ int64_t BlocksOf(int64_t total) { return min(int64_t{gridDim.x}, total); }
__device__ __forceinline__ int64_t ListBegin(int64_t total, int64_t block) { return total * block / BlocksOf(total); }
__device__ __forceinline__ int64_t BlockOf(int64_t total, int64_t place) {
  return ((place + 1) * BlocksOf(total) - 1) / total;
}

// ---- Producer

template <int D>
__device__ void CopyTile(const DecodeParams& p, const TokenKeys& keys, int head, int tile, uint8_t* stage,
                         uint64_t* full) {
  const AttentionParams& a = p.attention;
  const int32_t* pages = a.pages + keys.page_start;
  const int first = (keys.first_tile + tile) * kTile, lane = Lane();
  if (p.whole_pages) {  // a page and head is a stage as it lies
    if (lane != 0) return;
    ExpectBytes(full, Shape<D>::kStageBytes);
    BulkCopy(stage, a.k.data + RowOffset(a.k.data_stride, pages[first / kTile], head, 0), Shape<D>::kStageBytes, full);
    return;
  }
  // Pieces of a page, or of several: four runs each.
  const int piece = min(kTile, a.page_tokens), pieces = kTile / piece;
  const int listed = (keys.end - keys.kv_begin - first + piece - 1) / piece;  // pieces behind may have no page
  const int real = min(pieces, listed);
  if (lane == 0) ExpectBytes(full, real * piece * (2 * D + 8));
  __syncwarp();
  for (int i = lane; i < 4 * real; i += kWarp) {
    const int at = first + i / 4 * piece, run = i % 4;
    const int64_t page = pages[at / a.page_tokens], index = at % a.page_tokens;
    const Side& side = run % 2 == 0 ? a.k : a.v;
    const bool scales = run >= 2;
    const uint8_t* from = scales ? side.scale + RowOffset(side.scale_stride, page, head, index)
                                 : side.data + RowOffset(side.data_stride, page, head, index);
    const int row = scales ? 4 : D;
    const int base = scales ? 2 * kTile * D + run % 2 * kTile * 4 : run % 2 * kTile * D;
    BulkCopy(stage + base + i / 4 * piece * row, from, piece * row, full);
  }
}

template <int D>
__device__ void Produce(const DecodeParams& p, Memory<D>* m, int tokens, int64_t at, int64_t stop) {
  Segment s;
  uint32_t i = 0;
  if (!FirstSegment(p.attention, tokens, at, stop, &s)) return;
  do {
    for (int tile = s.begin; tile < s.end; ++tile, ++i) {
      const uint32_t stage = i % Shape<D>::kStages;
      Wait(&m->empty[stage], static_cast<int>(i / Shape<D>::kStages % 2 ^ 1));
      CopyTile<D>(p, s.keys, s.head, tile, m->stages[stage], &m->full[stage]);
      __syncwarp();
    }
  } while (NextSegment(p.attention, stop, &s));
}

// ---- Queries

// Channels lane + 32 j of one head in registers, by one warp.
template <int D>
__device__ __forceinline__ void WarpHadamard(float* x, int block, float factor) {
  if (block <= 0) return;
#pragma unroll
  for (int stride = 1; stride < kWarp; stride *= 2) {
    if (stride >= block) break;
#pragma unroll
    for (int j = 0; j < D / kWarp; ++j) {
      const float other = ShflXor(x[j], stride);
      x[j] = (Lane() & stride) != 0 ? other - x[j] : x[j] + other;
    }
  }
#pragma unroll
  for (int step = 1; step < D / kWarp; step *= 2) {
    if (step * kWarp >= block) break;
#pragma unroll
    for (int j = 0; j < D / kWarp; ++j) {
      if ((j & step) != 0) continue;
      const float a = x[j], b = x[j + step];
      x[j] = a + b;
      x[j + step] = a - b;
    }
  }
#pragma unroll
  for (int j = 0; j < D / kWarp; ++j) x[j] *= factor;
}

// One head of the group: rotated, in planes; NaN where q is not finite, so that all of its scores are.
template <int D>
__device__ void LoadQuery(const AttentionParams& a, int token, int head, int i, Memory<D>* m) {
  const int group = a.q_heads / a.kv_heads, lane = Lane();
  float x[D / kWarp] = {};
  if (i < group) {
    const int64_t from = token * a.q_token_stride + (int64_t{head} * group + i) * a.q_head_stride;
#pragma unroll
    for (int j = 0; j < D / kWarp; ++j) x[j] = LoadElement(a.q_element, a.q, from + lane + j * kWarp);
  }
  if (a.offset.data != nullptr) {
#pragma unroll
    for (int j = 0; j < D / kWarp; ++j) m->q_raw[i][lane + j * kWarp] = x[j];
  }
  WarpHadamard<D>(x, a.k.rotation, a.k.rotation_factor);
  uint32_t top = 0;
#pragma unroll
  for (int j = 0; j < D / kWarp; ++j) top = max(top, octet::FloatBits(x[j]) & 0x7fffffffu);
  const float most = octet::FloatFromBits(WarpMax(top));
  const bool finite = octet::FloatBits(most) < 0x7f800000u, usable = finite && most >= 1e-30f;
  const float inverse = usable ? 32512.0f / most : 0.0f;  // 127 * 256, so that h is in [-127, 127]
#pragma unroll
  for (int j = 0; j < D / kWarp; ++j) {
    const int n = usable ? __float2int_rn(x[j] * inverse) : 0, high = (n + 128) >> 8;
    m->planes[2 * i][lane + j * kWarp] = static_cast<int8_t>(high);
    m->planes[2 * i + 1][lane + j * kWarp] = static_cast<int8_t>(n - 256 * high);
  }
  if (lane == 0) m->q_scale[i] = finite ? most / 32512.0f * (a.scale * kLog2E) : octet::FloatFromBits(0x7fc00000u);
}

// ---- Consumers

// Columns of scores: heads 2 t of the group in the first product of a thread, 2 t + 1 in the second; with up to four
// heads, head t in the only one.
template <int kProducts>
__device__ __forceinline__ int HeadOf(int product, int t) {
  return kProducts == 1 ? t : 2 * t + product;
}

template <int D, int kProducts>
struct Consumer {
  static constexpr int kWords = D / 32;     // of 4 channels that a thread has of a row of V
  static constexpr int kSteps = D / 32;     // of a score's product
  static constexpr int kTerms = kProducts;  // products with weights: second terms of one product are columns of it

  uint32_t q[kProducts][kSteps][2];  // B operands
  float q_scale[kProducts];
  float out[D / 16][4];  // C of V^T w: rows are channels
  float weights[4];      // C of ones w
  float top[kProducts], sum[kProducts], v_most;

  __device__ void Start(const Memory<D>& m) {
    const int g = Lane() / 4, t = Lane() % 4;
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const int8_t* row = m.planes[2 * HeadOf<kProducts>(product, g / 2) + g % 2];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int channel = step / 2 * 64 + 16 * t + step % 2 * 8;
        q[product][step][0] = *reinterpret_cast<const uint32_t*>(row + channel);
        q[product][step][1] = *reinterpret_cast<const uint32_t*>(row + channel + 4);
      }
      q_scale[product] = m.q_scale[HeadOf<kProducts>(product, t)];
      top[product] = -INFINITY;
      sum[product] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < D / 16; ++i) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.0f;
    weights[0] = weights[1] = weights[2] = weights[3] = 0.0f;
    v_most = 0.0f;
  }

  // Scores in the logarithm's base 2, [unit][product][key g or g + 8].
  __device__ void Scores(const DecodeParams& p, const Memory<D>& m, const TokenKeys& keys, int head, int first,
                         const uint8_t* stage, float (*score)[kProducts][2]) {
    const AttentionParams& a = p.attention;
    const int g = Lane() / 4, t = Lane() % 4;
    const auto* k_scale = reinterpret_cast<const float*>(stage + 2 * kTile * D);
    float offset[kProducts] = {};
    if (a.offset.data != nullptr) Offsets(a, m, keys, head, first, offset);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      int32_t c[kProducts][4] = {};
#pragma unroll
      for (int part = 0; part < D / 64; ++part) {
        const uint8_t* row = stage + (16 * unit + g) * D + 64 * part + 16 * t;
        const uint4 low = *reinterpret_cast<const uint4*>(row), high = *reinterpret_cast<const uint4*>(row + 8 * D);
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          MultiplyBytes(c[product], low.x, high.x, low.y, high.y, q[product][2 * part][0], q[product][2 * part][1]);
          MultiplyBytes(c[product], low.z, high.z, low.w, high.w, q[product][2 * part + 1][0],
                        q[product][2 * part + 1][1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = k_scale[16 * unit + 8 * half + g];
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          const int32_t n = c[product][2 * half] * 256 + c[product][2 * half + 1];
          score[unit][product][half] = fmaf(static_cast<float>(n), q_scale[product] * scale, offset[product]);
        }
      }
    }
    if (a.softcap > 0.0f || a.alibi != nullptr) Adjust(a, keys, head, first, score);
  }

  // Softcap and ALiBi.
  __device__ void Adjust(const AttentionParams& a, const TokenKeys& keys, int head, int first,
                         float (*score)[kProducts][2]) {
    const int g = Lane() / 4, t = Lane() % 4, group = a.q_heads / a.kv_heads;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        const int in_group = HeadOf<kProducts>(product, t);
        const float slope = a.alibi != nullptr && in_group < group ? a.alibi[head * group + in_group] : 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float s = score[unit][product][half] / kLog2E;
          if (a.softcap > 0.0f) s = a.softcap * tanhf(s / a.softcap);
          s += slope * static_cast<float>(first + 16 * unit + 8 * half + g - keys.position);
          score[unit][product][half] = s * kLog2E;
        }
      }
    }
  }

  // q . offset of the tile's block of positions, times the scale of scores: whole tiles lie in one.
  __device__ void Offsets(const AttentionParams& a, const Memory<D>& m, const TokenKeys&, int head, int first,
                          float* offset) {
    const float* row = OffsetRow(a.offset, first, head);
    const int t = Lane() % 4, g = Lane() / 4;
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const int in_group = HeadOf<kProducts>(product, t);
      float all = 0.0f;
      for (int c = g; c < D; c += 8) all = fmaf(m.q_raw[in_group][c], row == nullptr ? NAN : row[c], all);
      all += ShflXor(all, 4);
      all += ShflXor(all, 8);
      all += ShflXor(all, 16);
      offset[product] = in_group < a.q_heads / a.kv_heads ? all * (a.scale * kLog2E) : 0.0f;
    }
  }

  __device__ void Tile(const DecodeParams& p, const Memory<D>& m, const TokenKeys& keys, int head, int tile,
                       uint8_t* stage) {
    const int g = Lane() / 4;
    const int first = keys.kv_begin + (keys.first_tile + tile) * kTile;
    auto* v_scale = reinterpret_cast<float*>(stage + 2 * kTile * D + 4 * kTile);
    float score[kUnits][kProducts][2];
    Scores(p, m, keys, head, first, stage, score);
    if (first < keys.begin || first + kTile > keys.end) Hide(keys, first, v_scale, score);

    // The largest V scale so far; a NaN is left out here and comes back with its weight.
    uint32_t bits = octet::FloatBits(v_most);
#pragma unroll
    for (int i = 0; i < kTile / kWarp; ++i) {
      const uint32_t of_key = octet::FloatBits(v_scale[i * kWarp + Lane()]);
      bits = max(bits, of_key < 0x7f800000u ? of_key : 0u);
    }
    const float most = octet::FloatFromBits(__reduce_max_sync(kAllLanes, bits));
    const float shrink = most > 0.0f ? v_most / most : 1.0f;
    v_most = most;
    const float to_weight = most > 0.0f ? kWeightTop / most : 0.0f;

    float factor[kProducts], shift[kProducts];
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      float high = top[product];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        high = fmaxf(high, fmaxf(score[unit][product][0], score[unit][product][1]));
      }
      high = fmaxf(high, ShflXor(high, 4));
      high = fmaxf(high, ShflXor(high, 8));
      high = fmaxf(high, ShflXor(high, 16));
      shift[product] = high == -INFINITY ? 0.0f : high;
      factor[product] = Exp2(top[product] - shift[product]);
      top[product] = high;
      sum[product] *= factor[product];
    }
    // A thread's columns of out are its columns of scores.
    const float even = factor[0] * shrink, odd = factor[kProducts - 1] * shrink;
    if (__any_sync(kAllLanes, even != 1.0f || odd != 1.0f)) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        out[i][0] *= even;
        out[i][1] *= odd;
        out[i][2] *= even;
        out[i][3] *= odd;
      }
      weights[0] *= even;
      weights[1] *= odd;
    }

#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      uint32_t b[kTerms][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = 16 * unit + 8 * half + g;
        const float scale = v_scale[key] * to_weight;
        float w[kProducts];
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          const float s = score[unit][product][half], e = Exp2(s - shift[product]);
          sum[product] += e;
          w[product] = e * scale;
        }
        if constexpr (kProducts == 1) {
          const __half first = __float2half_rn(w[0]);
          b[0][half] = Transpose8x8(Bits(__halves2half2(first, __float2half_rn(w[0] - __half2float(first)))));
        } else {
          const __half2 first = __floats2half2_rn(w[0], w[1]);
          const float2 rounded = __half22float2(first);
          b[0][half] = Transpose8x8(Bits(first));
          b[1][half] = Transpose8x8(Bits(__floats2half2_rn(w[0] - rounded.x, w[1] - rounded.y)));
        }
      }
      constexpr uint32_t kOnes[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
#pragma unroll
      for (int term = 0; term < kTerms; ++term) MultiplyHalves(weights, kOnes, b[term]);
      Values(stage + kTile * D + 16 * unit * D, b);
    }
  }

  // Keys that the query does not see have no score, and what lies in their slots no weight.
  __device__ void Hide(const TokenKeys& keys, int first, float* v_scale, float (*score)[kProducts][2]) {
    const int g = Lane() / 4;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int position = first + 16 * unit + 8 * half + g;
        const bool visible = position >= keys.begin && position < keys.end;
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          if (!visible) score[unit][product][half] = -INFINITY;
        }
      }
    }
    for (int key = Lane(); key < kTile; key += kWarp) {
      if (first + key < keys.begin || first + key >= keys.end) v_scale[key] = 0.0f;
    }
    __syncwarp();
  }

  __device__ __forceinline__ static uint32_t Bits(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }

  // out += V^T w of 16 keys. A thread has D / 8 channels of keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
  __device__ void Values(const uint8_t* v, const uint32_t (*b)[2]) {
    const int g = Lane() / 4, t = Lane() % 4;
    const uint8_t* at = v + 2 * t * D + g * (D / 8);
    uint32_t words[4][kWords];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* row = at + (i % 2 + i / 2 * 8) * D;
      if constexpr (kWords == 2) {
        *reinterpret_cast<uint2*>(words[i]) = *reinterpret_cast<const uint2*>(row);
      } else {
#pragma unroll
        for (int w = 0; w < kWords; w += 4) {
          *reinterpret_cast<uint4*>(words[i] + w) = *reinterpret_cast<const uint4*>(row + 4 * w);
        }
      }
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t pairs[2][2];  // [keys][channels 0 and 1, 2 and 3]: bytes of two keys in turn
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t x = words[2 * i][w] ^ 0x80808080u, y = words[2 * i + 1][w] ^ 0x80808080u;
        pairs[i][0] = __byte_perm(x, y, 0x5140);
        pairs[i][1] = __byte_perm(x, y, 0x7362);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // rows g and g + 8 of A are channels 2 i and 2 i + 1 of the word
        const uint32_t a[4] = {__byte_perm(pairs[0][i], 0, 0x4140), __byte_perm(pairs[0][i], 0, 0x4342),
                               __byte_perm(pairs[1][i], 0, 0x4140), __byte_perm(pairs[1][i], 0, 0x4342)};
#pragma unroll
        for (int term = 0; term < kTerms; ++term) MultiplyHalves(out[2 * w + i], a, b[term]);
      }
    }
  }

  // To shared memory, V's scale in it.
  __device__ void Publish(Share<D>* share) {
    const int g = Lane() / 4, t = Lane() % 4;
    const float unit = v_most / kWeightTop;
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const int head = HeadOf<kProducts>(product, t);
      float all = sum[product];
      all += ShflXor(all, 4);
      all += ShflXor(all, 8);
      all += ShflXor(all, 16);
      if (g == 0) {
        share->top[head] = top[product];
        share->sum[head] = all;
      }
      // Where the second terms are columns, both are added here.
      const float bias = 128.0f * (kProducts == 1 ? weights[0] + weights[1] : weights[product]);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int channel = g * (D / 8) + i / 2 * 4 + i % 2 * 2 + row;
          const float all = kProducts == 1 ? out[i][2 * row] + out[i][2 * row + 1] : out[i][2 * row + product];
          share->out[head][channel] = (all * 16777216.0f - bias) * unit;
        }
      }
    }
  }
};

// Past the first cache, which does not see what other multiprocessors write. Shared memory has none.
__device__ __forceinline__ float Fresh(const float* p) { return __isShared(p) ? *p : __ldcg(p); }

// Factors that bring shares [0, n) of each head to one maximum, and what they come to, by all consumers: a warp per
// head, lanes are shares. factors: [head][kMostShares].
template <int kThreads, typename ShareAt>
__device__ void Weigh(int group, int n, ShareAt share_at, float (*factors)[kMostShares], float* top, float* sum) {
  for (int head = WarpOfBlock(); head < group; head += kThreads / kWarp) {
    float high = -INFINITY, total = 0.0f;
    for (int s = Lane(); s < n; s += kWarp) high = fmaxf(high, Fresh(&share_at(s)->top[head]));
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) high = fmaxf(high, ShflXor(high, mask));
    const float shift = high == -INFINITY ? 0.0f : high;
    for (int s = Lane(); s < n; s += kWarp) {
      const float of_share = Fresh(&share_at(s)->sum[head]), factor = Exp2(Fresh(&share_at(s)->top[head]) - shift);
      total = fmaf(of_share, factor, total);
      factors[head][s] = of_share == 0.0f ? 0.0f : factor;  // a share without a key has no output
    }
    total = WarpSum(total);
    if (Lane() == 0) {
      top[head] = high;
      sum[head] = total;
    }
  }
  ConsumersMeet<kThreads>();
}

// The shares' outputs times their factors: body(head, channel, sum).
template <int D, int kThreads, typename ShareAt, typename Body>
__device__ void AddUp(int group, int n, ShareAt share_at, const float (*factors)[kMostShares], Body body) {
  for (int i = static_cast<int>(threadIdx.x); i < group * D; i += kThreads) {
    const int head = i / D, c = i % D;
    float out = 0.0f;
#pragma unroll 8
    for (int s = 0; s < n; ++s) {
      const float factor = factors[head][s];
      const float value = Fresh(&share_at(s)->out[head][c]);
      if (factor != 0.0f) out = fmaf(value, factor, out);
    }
    body(head, c, out);
  }
}

// Shares [0, n) into the output.
template <int D, int kThreads, typename ShareAt>
__device__ void Finish(const AttentionParams& a, int token, int kv_head, int n, ShareAt share_at, Memory<D>* m) {
  const int group = a.q_heads / a.kv_heads;
  float* scratch = &m->out[0][0];
  Weigh<kThreads>(group, n, share_at, m->factors, m->top, m->sum);
  AddUp<D, kThreads>(group, n, share_at, m->factors, [&](int head, int c, float out) {
    float high = m->top[head], total = m->sum[head], factor = 1.0f;
    if (a.sinks != nullptr) {
      const float sink = a.sinks[kv_head * group + head] * kLog2E, most = fmaxf(high, sink);
      const float shift = most == -INFINITY ? 0.0f : most;
      factor = Exp2(high - shift);
      total = total * factor + Exp2(sink - shift);
      high = most;
    }
    scratch[head * D + c] = total == 0.0f ? 0.0f : out * factor / total;
    if (c == 0 && a.lse != nullptr) {
      a.lse[token * a.lse_token_stride + kv_head * group + head] =
          total == 0.0f ? -INFINITY : (high + log2f(total)) / kLog2E;
    }
  });
  ConsumersMeet<kThreads>();
  for (int head = WarpOfBlock(); head < group; head += kThreads / kWarp) {
    float x[D / kWarp];
#pragma unroll
    for (int j = 0; j < D / kWarp; ++j) x[j] = scratch[head * D + Lane() + j * kWarp];
    WarpHadamard<D>(x, a.v.rotation, a.v.rotation_factor);
    const int64_t at = token * a.out_token_stride + (int64_t{kv_head} * group + head) * a.out_head_stride + Lane();
#pragma unroll
    for (int j = 0; j < D / kWarp; ++j) StoreElement(a.out_element, a.out, at + j * kWarp, x[j]);
  }
}

// Warps' shares into one, in global memory.
template <int D, int kThreads, typename ShareAt>
__device__ void Combine(int n, ShareAt share_at, int group, Memory<D>* m, Share<D>* to) {
  Weigh<kThreads>(group, n, share_at, m->factors, m->top, m->sum);
  AddUp<D, kThreads>(group, n, share_at, m->factors, [&](int head, int c, float out) {
    to->out[head][c] = out;
    if (c != 0) return;
    to->top[head] = m->top[head];
    to->sum[head] = m->sum[head];
  });
}

template <int D, int kProducts>
__device__ void Consume(const DecodeParams& p, Memory<D>* m, int tokens, int64_t at, int64_t stop, int64_t total) {
  constexpr int kWarps = Shape<D>::kWarps, kThreads = kWarps * kWarp;
  const AttentionParams& a = p.attention;
  const int warp = WarpOfBlock(), group = a.q_heads / a.kv_heads;
  auto* partials = static_cast<Share<D>*>(p.partials);
  Segment s;
  if (!FirstSegment(a, tokens, at, stop, &s)) return;
  uint32_t i = 0;
  do {
    for (int head = warp; head < kDecodeGroup; head += kWarps) LoadQuery<D>(a, s.token, s.head, head, m);
    ConsumersMeet<kThreads>();
    Consumer<D, kProducts> consumer;
    consumer.Start(*m);
    for (int tile = s.begin; tile < s.end; ++tile, ++i) {
      if (i % kWarps != static_cast<uint32_t>(warp)) continue;
      const uint32_t stage = i % Shape<D>::kStages;
      Wait(&m->full[stage], static_cast<int>(i / Shape<D>::kStages % 2));
      consumer.Tile(p, *m, s.keys, s.head, tile, m->stages[stage]);
      __syncwarp();
      if (Lane() == 0) Arrive(&m->empty[stage]);
    }
    consumer.Publish(&m->shares[warp]);
    ConsumersMeet<kThreads>();
    // The warps that had a tile, in the order of tiles; the others' shares are empty.
    const uint32_t first_warp = (i - static_cast<uint32_t>(s.end - s.begin)) % kWarps;
    const auto share_at = [=](int n) { return &m->shares[(first_warp + n) % kWarps]; };
    const int active = min(kWarps, s.end - s.begin);
    if (s.begin == 0 && s.end == s.tiles) {
      Finish<D, kThreads>(a, s.token, s.head, active, share_at, m);
    } else {
      // Slot 0 of a block: a share that began before it; slot 1: one that goes on behind it.
      const int64_t first = BlockOf(total, s.place + kAttentionItemCost);
      const int64_t last = BlockOf(total, s.place + kAttentionItemCost + s.tiles - 1);
      const int slot = s.begin == 0 ? 1 : 0;
      Combine<D, kThreads>(active, share_at, group, m, partials + 2 * blockIdx.x + slot);
      __threadfence();
      ConsumersMeet<kThreads>();
      if (threadIdx.x == 0) {
        const int arrived = atomicAdd(p.arrived + first, 1);
        m->last = arrived == static_cast<int>(last - first);
        if (m->last != 0) p.arrived[first] = 0;  // for the next launch
      }
      ConsumersMeet<kThreads>();
      if (m->last != 0) {
        __threadfence();
        const auto part_at = [=](int n) { return partials + 2 * (first + n) + (n == 0 ? 1 : 0); };
        Finish<D, kThreads>(a, s.token, s.head, static_cast<int>(last - first + 1), part_at, m);
      }
    }
    ConsumersMeet<kThreads>();
  } while (NextSegment(p.attention, stop, &s));
}

template <int D, int kProducts>
__global__ void __launch_bounds__(Shape<D>::kThreads, 1) Decode(const __grid_constant__ DecodeParams p) {
  // Not rounded up: then the compiler would not know that it is shared memory, and load from it by generic addresses.
  extern __shared__ __align__(128) uint8_t raw[];
  auto* m = reinterpret_cast<Memory<D>*>(raw);
  const AttentionParams& a = p.attention;
  const StepHeader step = *a.step;
  const int64_t total = int64_t{step.places} * a.kv_heads;
  if (blockIdx.x >= total) return;
  const int64_t at = ListBegin(total, blockIdx.x), stop = ListBegin(total, blockIdx.x + 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape<D>::kStages; ++i) {
      InitBarrier(&m->full[i], 1);
      InitBarrier(&m->empty[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (WarpOfBlock() == Shape<D>::kWarps) {
    Produce<D>(p, m, step.tokens, at, stop);
  } else {
    Consume<D, kProducts>(p, m, step.tokens, at, stop, total);
  }
}

template <int D, int kProducts>
void Launch(const DecodeParams& p, int blocks, runtime::Stream stream) {
  constexpr int kBytes = sizeof(Memory<D>);
  static_assert(kBytes <= 227 * 1024, "what a block can have");
  cudaFuncSetAttribute(Decode<D, kProducts>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  Decode<D, kProducts><<<static_cast<unsigned>(blocks), Shape<D>::kThreads, kBytes, stream>>>(p);
}

template <int D>
void LaunchFor(const DecodeParams& p, int blocks, runtime::Stream stream) {
  p.attention.q_heads / p.attention.kv_heads <= 4 ? Launch<D, 1>(p, blocks, stream) : Launch<D, 2>(p, blocks, stream);
}

}  // namespace

int64_t DecodePartialBytes(int head_dim, int blocks) {
  const int64_t floats = int64_t{kDecodeGroup} * (head_dim + 2);
  return 2 * blocks * floats * static_cast<int64_t>(sizeof(float));
}

void LaunchDecode(const DecodeParams& p, int blocks, runtime::Stream stream) {
  switch (p.attention.k.head_dim) {
    case 64:
      return LaunchFor<64>(p, blocks, stream);
    case 128:
      return LaunchFor<128>(p, blocks, stream);
    default:
      return LaunchFor<256>(p, blocks, stream);
  }
}

}  // namespace octet_gpu
