// Append and gather: rows of K and V to and from a paged cache, bit for bit as docs/numerics.md says; and copies of
// pages between two placements.
//
// Per (token, KV head), by one block: x = k - offset of the position's block; then, for the channels of each side (K, K
// extra, V) apart, Walsh-Hadamard rotation and
//   dynamic  a = max|x| per group; any x not finite: scale NaN, codes 0; a < 1e-30: scale 0, codes 0; else
//            scale = a / 127, code = clamp(round_half_even(x * (127 / a)), -127, 127). bf16 scales: s = bf16(a / 127),
//            code from x * (1 / s). Asymmetric: zero = (min + max) * 0.5 rounded to its type, then the same of x -
//            zero.
//   static   code = clamp(round_half_even((x - zero) * (1 / scale)), -127, 127); NaN becomes 0
//   float    f32 as it is, f16 and bf16 to nearest even
// Memory: 4 bytes a channel in, 1 out.
#include "backends/gpu/kernels/device.cuh"

namespace octet_gpu {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ int8_t ToCode(float v) {
  if (v != v) return 0;
  return static_cast<int8_t>(__float2int_rn(fminf(fmaxf(v, -127.0f), 127.0f)));
}

// The smallest or largest of a warp's values; of equal ones (-0 and 0) that of the lowest channel, as a loop finds it.
template <bool kLargest>
__device__ __forceinline__ float FirstExtreme(float v, int channel) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const float other = ShflXor(v, mask);
    const int other_channel = ShflXor(channel, mask);
    const bool better = kLargest ? other > v : other < v;
    if (better || (other == v && other_channel < channel)) {
      v = other;
      channel = other_channel;
    }
  }
  return v;
}

// One scale (and zero) for n channels, by one warp.
__device__ void QuantizeGroup(const Side& side, const float* x, int n, int8_t* codes, uint8_t* scale_out,
                              uint8_t* zero_out, int group) {
  const int lane = Lane();
  bool finite = true;
  float low = INFINITY, high = -INFINITY;
  int low_at = n, high_at = n;
  for (int i = lane; i < n; i += kWarp) {
    finite = finite && fabsf(x[i]) <= 3.402823466e+38f;
    if (x[i] < low) low = x[i], low_at = i;
    if (x[i] > high) high = x[i], high_at = i;
  }
  finite = __all_sync(kAllLanes, finite);
  float zero = 0.0f;
  if (side.asymmetric && finite) {
    zero = __fmul_rn(__fadd_rn(FirstExtreme<false>(low, low_at), FirstExtreme<true>(high, high_at)), 0.5f);
    if (side.zero_bf16) zero = octet::Bf16ToFloat(octet::FloatToBf16(zero));
  }
  uint32_t top = 0;  // bits of a: magnitudes order like their bits, and infinities stay on top
  for (int i = lane; i < n; i += kWarp) top = max(top, octet::FloatBits(__fsub_rn(x[i], zero)) & 0x7fffffffu);
  top = WarpMax(top);
  const float a = octet::FloatFromBits(top);
  finite = finite && top < 0x7f800000u;
  float scale = 0.0f, inverse = 0.0f;
  if (!finite) {
    scale = octet::FloatFromBits(0x7fc00000u);
  } else if (!(a < 1e-30f)) {
    scale = __fdiv_rn(a, 127.0f);
    inverse = __fdiv_rn(127.0f, a);
    if (side.scale_bf16) {
      scale = octet::Bf16ToFloat(octet::FloatToBf16(scale));
      inverse = __fdiv_rn(1.0f, scale);
    }
  }
  for (int i = lane; i < n; i += kWarp) {
    codes[i] = finite ? ToCode(__fmul_rn(__fsub_rn(x[i], zero), inverse)) : static_cast<int8_t>(0);
  }
  if (lane != 0) return;
  StoreScale(scale_out, side.scale_bf16, group, scale);
  if (side.asymmetric) StoreScale(zero_out, side.zero_bf16, group, zero);
}

// x[head_dim] in shared memory, which all threads have written; overwritten by its rotation.
__device__ void EncodeRow(const Side& side, float* x, int64_t page, int64_t head, int64_t token) {
  const int n = side.head_dim;
  __syncthreads();
  Hadamard(x, n, side.rotation, side.rotation_factor);
  uint8_t* data = side.data + RowOffset(side.data_stride, page, head, token);
  const auto for_channels = [n](auto&& body) {
    for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) body(c);
  };
  if (side.scales == Scales::kNone) {
    for_channels([&](int c) { StoreElement(side.element, data, c, x[c]); });
    return;
  }
  auto* codes = reinterpret_cast<int8_t*>(data);
  if (side.scales == Scales::kToken) {
    uint8_t* scales = side.scale + RowOffset(side.scale_stride, page, head, token);
    uint8_t* zeros = side.asymmetric ? side.zero + RowOffset(side.zero_stride, page, head, token) : nullptr;
    for (int group = WarpOfBlock(); group * side.group < n; group += kThreads / kWarp) {
      const int first = group * side.group;
      QuantizeGroup(side, x + first, side.group, codes + first, scales, zeros, group);
    }
    return;
  }
  for_channels([&](int c) {
    const float zero = StaticValue(side, side.static_zero, side.static_zero_stride, head, c);
    const float scale = StaticValue(side, side.static_scale, side.static_scale_stride, head, c);
    codes[c] = ToCode(__fmul_rn(__fsub_rn(x[c], zero), __fdiv_rn(1.0f, scale)));
  });
}

// Where a block's row goes: token and head, page and index; false for a row that is skipped.
struct Place {
  int64_t token, head, page, index;
};
__device__ __forceinline__ bool PlaceOf(const RowsParams& p, Place* at) {
  at->token = blockIdx.x / p.kv_heads;
  at->head = blockIdx.x % p.kv_heads;
  const int64_t slot = p.slots[at->token];
  at->page = slot / p.page_tokens;
  at->index = slot % p.page_tokens;
  return slot >= 0 && slot < p.slot_count;
}

__global__ void __launch_bounds__(kThreads) Append(const __grid_constant__ RowsParams p) {
  __shared__ float x[kMaxRow];
  Place at;
  if (!PlaceOf(p, &at)) return;
  const int thread = static_cast<int>(threadIdx.x);
  if (p.k_rows != nullptr) {
    const float* k = p.k_rows + at.token * p.k_token_stride + at.head * p.k_head_stride;
    const float* offset = p.offset.data != nullptr ? OffsetRow(p.offset, p.positions[at.token], at.head) : nullptr;
    const bool lost = p.offset.data != nullptr && offset == nullptr;  // a position without a row of the table
    for (int c = thread; c < p.k.head_dim + p.k_extra.head_dim; c += kThreads) {
      x[c] = lost ? octet::FloatFromBits(0x7fc00000u) : offset != nullptr ? __fsub_rn(k[c], offset[c]) : k[c];
    }
    EncodeRow(p.k, x, at.page, at.head, at.index);
    if (p.k_extra.head_dim > 0) EncodeRow(p.k_extra, x + p.k.head_dim, at.page, at.head, at.index);
  }
  if (p.v_rows != nullptr) {
    __syncthreads();
    const float* v = p.v_rows + at.token * p.v_token_stride + at.head * p.v_head_stride;
    for (int c = thread; c < p.v.head_dim; c += kThreads) x[c] = v[c];
    EncodeRow(p.v, x, at.page, at.head, at.index);
  }
}

__device__ void DecodeRow(const Side& side, const Place& at, float* x) {
  const CachedRow row(side, at.page, at.head, at.index);
  for (int c = static_cast<int>(threadIdx.x); c < side.head_dim; c += kThreads) x[c] = row.At(c);
  __syncthreads();
  Hadamard(x, side.head_dim, side.rotation, side.rotation_factor);
}

__global__ void __launch_bounds__(kThreads) Gather(const __grid_constant__ RowsParams p) {
  __shared__ float x[kMaxRow];
  Place at;
  if (!PlaceOf(p, &at)) return;
  const int thread = static_cast<int>(threadIdx.x);
  if (p.k_rows != nullptr) {
    DecodeRow(p.k, at, x);
    if (p.k_extra.head_dim > 0) DecodeRow(p.k_extra, at, x + p.k.head_dim);
    float* k = p.k_rows + at.token * p.k_token_stride + at.head * p.k_head_stride;
    const float* offset = p.offset.data != nullptr ? OffsetRow(p.offset, p.positions[at.token], at.head) : nullptr;
    for (int c = thread; c < p.k.head_dim + p.k_extra.head_dim; c += kThreads) {
      k[c] = offset != nullptr ? __fadd_rn(x[c], offset[c]) : x[c];
    }
    __syncthreads();
  }
  if (p.v_rows != nullptr) {
    DecodeRow(p.v, at, x);
    float* v = p.v_rows + at.token * p.v_token_stride + at.head * p.v_head_stride;
    for (int c = thread; c < p.v.head_dim; c += kThreads) v[c] = x[c];
  }
}

template <typename Word>
__device__ void CopyRun(const PageCopyParams::Run& run, const uint8_t* from, uint8_t* to, int page_tokens) {
  const int words = run.row_bytes / static_cast<int>(sizeof(Word)), all = words * page_tokens;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
    const int token = i / words, word = i % words;
    reinterpret_cast<Word*>(to + token * run.to_stride[2])[word] =
        reinterpret_cast<const Word*>(from + token * run.from_stride[2])[word];
  }
}

// One block per page and KV head.
__global__ void __launch_bounds__(kThreads) PageCopy(const __grid_constant__ PageCopyParams p) {
  const int64_t i = blockIdx.x / p.kv_heads, head = blockIdx.x % p.kv_heads;
  const int64_t from_page = p.from_pages != nullptr ? p.from_pages[i * p.list_stride] : i;
  const int64_t to_page = p.to_pages != nullptr ? p.to_pages[i * p.list_stride] : i;
  if (from_page < 0 || from_page >= p.from_count || to_page < 0 || to_page >= p.to_count) return;
  for (int r = 0; r < p.num_runs; ++r) {
    const PageCopyParams::Run& run = p.runs[r];
    const uint8_t* from = run.from + from_page * run.from_stride[0] + head * run.from_stride[1];
    uint8_t* to = run.to + to_page * run.to_stride[0] + head * run.to_stride[1];
    switch (run.word) {
      case 16:
        CopyRun<uint4>(run, from, to, p.page_tokens);
        break;
      case 8:
        CopyRun<uint2>(run, from, to, p.page_tokens);
        break;
      case 4:
        CopyRun<uint32_t>(run, from, to, p.page_tokens);
        break;
      case 2:
        CopyRun<uint16_t>(run, from, to, p.page_tokens);
        break;
      default:
        CopyRun<uint8_t>(run, from, to, p.page_tokens);
    }
  }
}

}  // namespace

void LaunchAppend(const RowsParams& p, runtime::Stream stream) {
  Append<<<static_cast<unsigned>(p.tokens * p.kv_heads), kThreads, 0, stream>>>(p);
}

void LaunchGather(const RowsParams& p, runtime::Stream stream) {
  Gather<<<static_cast<unsigned>(p.tokens * p.kv_heads), kThreads, 0, stream>>>(p);
}

void LaunchPageCopy(const PageCopyParams& p, runtime::Stream stream) {
  PageCopy<<<static_cast<unsigned>(p.pages * p.kv_heads), kThreads, 0, stream>>>(p);
}

}  // namespace octet_gpu
