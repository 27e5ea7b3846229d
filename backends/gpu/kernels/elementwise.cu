// Norms, RoPE, activations, additions, conversions and row copies: one pass over a row each, bound by memory.
#include "backends/gpu/kernels/device.cuh"

namespace octet_gpu {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t RowStart(const FloatRows& t, int64_t row) {
  int64_t at = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    at += row % t.shape[i] * t.stride[i];
    row /= t.shape[i];
  }
  return at;
}

__device__ double BlockSum(double v) {
  __shared__ double sums[kThreads / kWarp];
  v = WarpSum(v);
  if (Lane() == 0) sums[WarpOfBlock()] = v;
  __syncthreads();
  double all = 0.0;
  for (int w = 0; w < kThreads / kWarp; ++w) all += sums[w];
  __syncthreads();
  return all;
}

// y = (x - mean) / sqrt(variance + eps) * gain + bias, or x / sqrt(mean square + eps) * gain; one block per row. Sums
// in double: x may be large beside its spread.
__global__ void __launch_bounds__(kThreads) Norm(const __grid_constant__ NormParams p) {
  const int64_t n = p.x.n, x0 = RowStart(p.x, blockIdx.x), y0 = RowStart(p.y, blockIdx.x);
  const int64_t first = threadIdx.x;
  double mean = 0.0;
  if (p.layer) {
    double sum = 0.0;
    for (int64_t c = first; c < n; c += kThreads) sum += LoadElement(p.x.element, p.x.data, x0 + c);
    mean = BlockSum(sum) / static_cast<double>(n);
  }
  double squares = 0.0;
  for (int64_t c = first; c < n; c += kThreads) {
    const double d = static_cast<double>(LoadElement(p.x.element, p.x.data, x0 + c)) - mean;
    squares += d * d;
  }
  const double inverse = 1.0 / sqrt(BlockSum(squares) / static_cast<double>(n) + static_cast<double>(p.eps));
  for (int64_t c = first; c < n; c += kThreads) {
    const float x = LoadElement(p.x.element, p.x.data, x0 + c);
    float y = 0.0f;
    if (p.layer) {
      const auto normal = static_cast<float>((static_cast<double>(x) - mean) * inverse);
      y = normal * p.gain[c] + (p.bias != nullptr ? p.bias[c] : 0.0f);
    } else {
      y = x * static_cast<float>(inverse) * p.gain[c];
    }
    StoreElement(p.y.element, p.y.data, y0 + c, y);
  }
}

// One thread per pair of channels.
__global__ void __launch_bounds__(kThreads) Rope(const __grid_constant__ RopeParams p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.tokens * p.heads * p.pairs) return;
  const int64_t pair = i % p.pairs, head = i / p.pairs % p.heads, token = i / p.pairs / p.heads;
  const int64_t position = p.positions[token], row = token * p.token_stride + head * p.head_stride;
  const int64_t first = row + (p.interleaved ? 2 * pair : pair), second = first + (p.interleaved ? 1 : p.pairs);
  const float a = LoadElement(p.element, p.x, first), b = LoadElement(p.element, p.x, second);
  float cosine = octet::FloatFromBits(0x7fc00000u), sine = cosine;  // a position without a row of the table
  if (position >= 0 && position < p.table) {
    const float* cos_sin = p.cos_sin + position * p.position_stride + pair * p.pair_stride;
    cosine = cos_sin[0];
    sine = cos_sin[1];
  }
  StoreElement(p.element, p.x, first, a * cosine - b * sine);
  StoreElement(p.element, p.x, second, a * sine + b * cosine);
}

__device__ __forceinline__ float Activate(int32_t kind, float x) {
  switch (kind) {
    case OCTET_ACT_SILU_GATED:
    case OCTET_ACT_SILU:
      return x / (1.0f + expf(-x));
    case OCTET_ACT_GELU_TANH_GATED:
    case OCTET_ACT_GELU_TANH: {
      const float inner = 0.797884561f * (x + 0.044715f * x * x * x);
      // 0.5 (1 + tanh u) = 1 / (1 + e^-2u), without the cancellation at negative x.
      return x / (1.0f + expf(-2.0f * inner));
    }
    default:
      return x * 0.5f * erfcf(-x * 0.707106781f);
  }
}

// One block per row of y: y = body(index of x's row start, channel, y before).
template <typename Body>
__device__ __forceinline__ void ForRow(const FloatRows& x, const FloatRows& y, Body&& body) {
  const int64_t x0 = RowStart(x, blockIdx.x), y0 = RowStart(y, blockIdx.x);
  for (int64_t c = threadIdx.x; c < y.n; c += kThreads) StoreElement(y.element, y.data, y0 + c, body(x0, y0, c));
}

__global__ void __launch_bounds__(kThreads)
    Activation(int32_t kind, const __grid_constant__ FloatRows x, const __grid_constant__ FloatRows y) {
  const bool gated = kind <= OCTET_ACT_GELU_GATED;
  ForRow(x, y, [&](int64_t x0, int64_t, int64_t c) {
    const float v = Activate(kind, LoadElement(x.element, x.data, x0 + c));
    return gated ? v * LoadElement(x.element, x.data, x0 + y.n + c) : v;
  });
}

__global__ void __launch_bounds__(kThreads)
    Add(const __grid_constant__ FloatRows x, const __grid_constant__ FloatRows y) {
  ForRow(x, y, [&](int64_t x0, int64_t y0, int64_t c) {
    return LoadElement(y.element, y.data, y0 + c) + LoadElement(x.element, x.data, x0 + c);
  });
}

__global__ void __launch_bounds__(kThreads)
    Convert(const __grid_constant__ FloatRows x, const __grid_constant__ FloatRows y) {
  ForRow(x, y, [&](int64_t x0, int64_t, int64_t c) { return LoadElement(x.element, x.data, x0 + c); });
}

template <typename Word>
__device__ void CopyWords(const uint8_t* from, uint8_t* to, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(Word)); i += kThreads) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
}

__global__ void __launch_bounds__(kThreads) GatherRows(const __grid_constant__ GatherRowsParams p) {
  const int64_t row = p.index[blockIdx.x];
  if (row < 0 || row >= p.count) return;
  const uint8_t* from = p.x + row * p.x_stride;
  uint8_t* to = p.y + blockIdx.x * p.y_stride;
  if (p.word == 16) {
    CopyWords<uint4>(from, to, p.row_bytes);
  } else if (p.word >= 4) {
    CopyWords<uint32_t>(from, to, p.row_bytes);
  } else {
    CopyWords<uint16_t>(from, to, p.row_bytes);
  }
}

unsigned Blocks(int64_t rows) { return static_cast<unsigned>(rows); }

}  // namespace

bool HasKernelCode() {
  const bool found = runtime::HasCode(reinterpret_cast<const void*>(&Add));
  (void)runtime::TakeLastError();
  return found;
}

void LaunchNorm(const NormParams& p, runtime::Stream stream) { Norm<<<Blocks(p.x.rows), kThreads, 0, stream>>>(p); }

void LaunchRope(const RopeParams& p, runtime::Stream stream) {
  const int64_t pairs = p.tokens * p.heads * p.pairs;
  Rope<<<Blocks((pairs + kThreads - 1) / kThreads), kThreads, 0, stream>>>(p);
}

void LaunchActivation(int32_t kind, const FloatRows& x, const FloatRows& y, runtime::Stream stream) {
  Activation<<<Blocks(y.rows), kThreads, 0, stream>>>(kind, x, y);
}

void LaunchAdd(const FloatRows& x, const FloatRows& y, runtime::Stream stream) {
  Add<<<Blocks(y.rows), kThreads, 0, stream>>>(x, y);
}

void LaunchConvert(const FloatRows& x, const FloatRows& y, runtime::Stream stream) {
  Convert<<<Blocks(y.rows), kThreads, 0, stream>>>(x, y);
}

void LaunchGatherRows(const GatherRowsParams& p, runtime::Stream stream) {
  GatherRows<<<Blocks(p.rows), kThreads, 0, stream>>>(p);
}

}  // namespace octet_gpu
