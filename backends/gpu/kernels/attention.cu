// Attention over any paged cache in f32, plainly: every data type, scale, dimension, mask and page size of the
// contract.
//
// One block per (query token, query head); its warps take every fourth visible key each, a key's channels lying across
// the lanes, and keep a running maximum, sum and output, which are merged in the order of warps at the end. What a row
// sees and adds up depends on its own request alone, so results do not change with the batch. Memory: every query row
// reads all of its keys; kernels that share reads between rows stand beside the backend that has them.
#include "backends/gpu/kernels/device.cuh"

namespace octet_gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

// What a block works on.
struct Row {
  int64_t token, head, kv_head;
  int request, position, step_begin, kv_begin, kv_len;
};

struct Shared {
  float q[kMaxRow];      // rotated
  float q_raw[kMaxRow];  // before rotation, where there is an offset table
  float out[kMaxHeadDim];
  float top[kWarps], sum[kWarps];
};

__device__ void LoadQuery(const AttentionParams& p, const Row& row, Shared* s) {
  const int dim = p.k.head_dim + p.k_extra.head_dim;
  const int64_t at = row.token * p.q_token_stride + row.head * p.q_head_stride;
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += kThreads) {
    s->q[c] = s->q_raw[c] = LoadElement(p.q_element, p.q, at + c);
  }
  __syncthreads();
  Hadamard(s->q, p.k.head_dim, p.k.rotation, p.k.rotation_factor);
  Hadamard(s->q + p.k.head_dim, p.k_extra.head_dim, p.k_extra.rotation, p.k_extra.rotation_factor);
}

// q . K row of one side; in every lane.
__device__ __forceinline__ float Dot(const Side& side, const float* q, int64_t page, int64_t head, int64_t index) {
  const CachedRow row(side, page, head, index);
  float sum = 0.0f;
  for (int c = Lane(); c < side.head_dim; c += kWarp) sum = fmaf(q[c], row.At(c), sum);
  return WarpSum(sum);
}

__device__ __forceinline__ float OffsetDot(const AttentionParams& p, const Row& row, const float* q_raw, int position) {
  const float* offset = OffsetRow(p.offset, position, row.kv_head);
  if (offset == nullptr) return octet::FloatFromBits(0x7fc00000u);  // a position without a row of the table
  float sum = 0.0f;
  for (int c = Lane(); c < p.k.head_dim + p.k_extra.head_dim; c += kWarp) sum = fmaf(q_raw[c], offset[c], sum);
  return WarpSum(sum);
}

// May the row see this key of its visible range? Only a mask can say no.
__device__ __forceinline__ bool Unmasked(const AttentionParams& p, const Row& row, int position) {
  if (p.mask == nullptr || position < row.step_begin) return true;
  const int column = position - row.step_begin;
  return column < p.mask_columns && p.mask[row.token * p.mask_token_stride + column] != 0;
}

// kChannels: of V per lane at most.
template <int kChannels>
__global__ void __launch_bounds__(kThreads) Attention(const __grid_constant__ AttentionParams p) {
  __shared__ Shared s;
  Row row;
  row.token = blockIdx.x;
  row.head = blockIdx.y;
  row.kv_head = row.head / (p.q_heads / p.kv_heads);
  if (row.token >= p.step->tokens) return;  // rows behind the batch stay as they are
  row.request = p.keys[row.token].request;
  row.kv_len = p.kv_len[row.request];
  row.kv_begin = p.kv_begin[row.request];
  row.step_begin = row.kv_len - (p.q_start[row.request + 1] - p.q_start[row.request]);
  row.position = row.step_begin + static_cast<int>(row.token) - p.q_start[row.request];
  LoadQuery(p, row, &s);

  const int warp = WarpOfBlock(), lane = Lane();
  const int begin = p.window > 0 ? max(row.kv_begin, row.position - p.window + 1) : row.kv_begin;
  const int end = p.causal && p.mask == nullptr ? min(row.position + 1, row.kv_len) : row.kv_len;
  const int32_t* pages = p.pages + p.page_start[row.request];
  const float slope = p.alibi != nullptr ? p.alibi[row.head] : 0.0f;
  float out[kChannels] = {};
  float top = -INFINITY, sum = 0.0f, offset = 0.0f;
  int offset_block = -1;
  for (int key = begin + warp; key < end; key += kWarps) {
    if (!Unmasked(p, row, key)) continue;
    const int64_t page = pages[(key - row.kv_begin) / p.page_tokens], index = (key - row.kv_begin) % p.page_tokens;
    float score = Dot(p.k, s.q, page, row.kv_head, index);
    if (p.k_extra.head_dim > 0) score += Dot(p.k_extra, s.q + p.k.head_dim, page, row.kv_head, index);
    if (p.offset.data != nullptr) {
      if (key / p.offset.block_tokens != offset_block) {
        offset_block = key / p.offset.block_tokens;
        offset = OffsetDot(p, row, s.q_raw, key);
      }
      score += offset;
    }
    score *= p.scale;
    if (p.softcap > 0.0f) score = p.softcap * tanhf(score / p.softcap);
    if (p.alibi != nullptr) score += slope * static_cast<float>(key - row.position);
    if (score > top) {
      const float factor = expf(top - score);
      sum *= factor;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) out[i] *= factor;
      top = score;
    }
    // A score of minus infinity has no weight; NaN makes sum and output NaN.
    const float weight = score == -INFINITY ? 0.0f : expf(score - (top == -INFINITY ? 0.0f : top));
    sum += weight;
    const CachedRow v(p.v, page, row.kv_head, index);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int c = lane + i * kWarp;
      if (c < p.v.head_dim) out[i] = fmaf(weight, v.At(c), out[i]);
    }
  }

  if (lane == 0) {
    s.top[warp] = top;
    s.sum[warp] = sum;
  }
  __syncthreads();
  const float sink = p.sinks != nullptr ? p.sinks[row.head] : -INFINITY;
  float high = sink;
  for (int w = 0; w < kWarps; ++w) high = fmaxf(high, s.top[w]);
  const float shift = high == -INFINITY ? 0.0f : high;
  float total = 0.0f;
  for (int w = 0; w < kWarps; ++w) total += s.sum[w] * expf(s.top[w] - shift);
  if (p.sinks != nullptr) total += expf(sink - shift);
  const float factor = expf(top - shift);
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const int c = lane + i * kWarp;
        if (c >= p.v.head_dim) continue;
        // A warp without a key must not bring 0 * NaN in.
        const float mine = sum == 0.0f ? 0.0f : out[i] * factor;
        s.out[c] = w == 0 ? mine : s.out[c] + mine;
      }
    }
    __syncthreads();
  }
  Hadamard(s.out, p.v.head_dim, p.v.rotation, p.v.rotation_factor);
  const int64_t at = row.token * p.out_token_stride + row.head * p.out_head_stride;
  for (int c = static_cast<int>(threadIdx.x); c < p.v.head_dim; c += kThreads) {
    StoreElement(p.out_element, p.out, at + c, total == 0.0f ? 0.0f : s.out[c] / total);
  }
  if (p.lse != nullptr && threadIdx.x == 0) {
    p.lse[row.token * p.lse_token_stride + row.head] = total == 0.0f ? -INFINITY : shift + logf(total);
  }
}

}  // namespace

void LaunchAttention(const AttentionParams& p, runtime::Stream stream) {
  const dim3 grid(static_cast<unsigned>(p.tokens), static_cast<unsigned>(p.q_heads));
  const int channels = (p.v.head_dim + kWarp - 1) / kWarp;
  if (channels <= 2) {
    Attention<2><<<grid, kThreads, 0, stream>>>(p);
  } else if (channels <= 4) {
    Attention<4><<<grid, kThreads, 0, stream>>>(p);
  } else if (channels <= 8) {
    Attention<8><<<grid, kThreads, 0, stream>>>(p);
  } else {
    Attention<(kMaxHeadDim + kWarp - 1) / kWarp><<<grid, kThreads, 0, stream>>>(p);
  }
}

}  // namespace octet_gpu
