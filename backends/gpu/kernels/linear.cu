// y = x W^T + bias + residual, and rows of W as embeddings, on weights in GGUF's own blocks, in f32 throughout.
//
// Few tokens: one warp per row of W, a lane takes 8 columns at a time, which every token's x is multiplied with, so
// that weights are read once. More: blocks of 64 rows by 64 tokens; W is expanded to shared memory 32 columns at a
// time. A token's result is the same in every call of the same kernel. Memory: W once per 8 tokens, or once per 64.
#include "backends/gpu/kernels/device.cuh"

namespace octet_gpu {
namespace {

constexpr int kVector = 8;  // columns that are expanded at once

// The types that a stored tensor can have.
#define OCTET_FOR_EACH_TYPE(body)                                                                                      \
  body(OCTET_F32) body(OCTET_F16) body(OCTET_BF16) body(OCTET_Q4_0) body(OCTET_Q4_1) body(OCTET_Q5_0) body(OCTET_Q5_1) \
      body(OCTET_Q8_0) body(OCTET_Q4_K) body(OCTET_Q5_K) body(OCTET_Q6_K)

__device__ __forceinline__ float Half(const uint8_t* p) {
  return octet::HalfToFloat(static_cast<uint16_t>(p[0] | p[1] << 8));
}

// The 6-bit scale and min of sub-block j (0..7) out of the 12 packed bytes of Q4_K and Q5_K.
__device__ __forceinline__ void UnpackScaleMin(const uint8_t* packed, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *min = packed[j + 4] & 63;
  } else {
    *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    *min = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
  }
}

// Columns [column, column + 8) of a row; column is a multiple of 8. Formulas: interfaces/octet/gguf_blocks.h.
template <int kType>
__device__ __forceinline__ void Expand(const uint8_t* row, int64_t column, float* out) {
  if constexpr (kType == OCTET_F32) {
    for (int i = 0; i < kVector; ++i) out[i] = reinterpret_cast<const float*>(row)[column + i];
  } else if constexpr (kType == OCTET_F16) {
    for (int i = 0; i < kVector; ++i) out[i] = octet::HalfToFloat(reinterpret_cast<const uint16_t*>(row)[column + i]);
  } else if constexpr (kType == OCTET_BF16) {
    for (int i = 0; i < kVector; ++i) out[i] = octet::Bf16ToFloat(reinterpret_cast<const uint16_t*>(row)[column + i]);
  } else if constexpr (kType == OCTET_Q8_0) {
    const uint8_t* block = row + column / 32 * 34;
    const float d = Half(block);
    const auto* q = reinterpret_cast<const int8_t*>(block + 2 + column % 32);
    for (int i = 0; i < kVector; ++i) out[i] = d * static_cast<float>(q[i]);
  } else if constexpr (kType == OCTET_Q4_0 || kType == OCTET_Q4_1 || kType == OCTET_Q5_0 || kType == OCTET_Q5_1) {
    constexpr bool kMin = kType == OCTET_Q4_1 || kType == OCTET_Q5_1;
    constexpr bool kFifth = kType == OCTET_Q5_0 || kType == OCTET_Q5_1;
    constexpr int kHeader = kMin ? 4 : 2, kBytes = kHeader + (kFifth ? 4 : 0) + 16;
    const uint8_t* block = row + column / 32 * kBytes;
    const int first = static_cast<int>(column % 32), shift = first / 16 * 4;
    const float d = Half(block), m = kMin ? Half(block + 2) : 0.0f;
    const uint8_t* q = block + kBytes - 16 + first % 16;
    for (int i = 0; i < kVector; ++i) {
      int code = q[i] >> shift & 15;
      if constexpr (kFifth) code |= (block[kHeader + first / 8] >> i & 1) << 4;
      if constexpr (!kMin) code -= kFifth ? 16 : 8;
      out[i] = d * static_cast<float>(code) + m;
    }
  } else if constexpr (kType == OCTET_Q4_K || kType == OCTET_Q5_K) {
    constexpr bool kFifth = kType == OCTET_Q5_K;
    constexpr int kBytes = kFifth ? 176 : 144;
    const uint8_t* block = row + column / 256 * kBytes;
    const int first = static_cast<int>(column % 256), j = first / 32, at = first % 32;
    int scale = 0, min = 0;
    UnpackScaleMin(block + 4, j, &scale, &min);
    const float d = Half(block) * static_cast<float>(scale), m = Half(block + 2) * static_cast<float>(min);
    const uint8_t* q = block + kBytes - 128 + j / 2 * 32 + at;
    for (int i = 0; i < kVector; ++i) {
      int code = q[i] >> (j % 2 * 4) & 15;
      if constexpr (kFifth) code |= (block[16 + at + i] >> j & 1) << 4;
      out[i] = d * static_cast<float>(code) - m;
    }
  } else {
    static_assert(kType == OCTET_Q6_K);
    const uint8_t* block = row + column / 256 * 210;
    const int first = static_cast<int>(column % 256), half = first / 128, run = first % 128 / 32, at = first % 32;
    const auto scale = static_cast<int8_t>(block[192 + 8 * half + 2 * run + at / 16]);
    const float d = Half(block + 208) * static_cast<float>(scale);
    const uint8_t* low = block + 64 * half + run % 2 * 32 + at;
    const uint8_t* high = block + 128 + 32 * half + at;
    for (int i = 0; i < kVector; ++i) {
      const int code = (low[i] >> (run / 2 * 4) & 15) | (high[i] >> (2 * run) & 3) << 4;
      out[i] = d * static_cast<float>(code - 32);
    }
  }
}

__device__ __forceinline__ void Finish(const LinearParams& p, int64_t token, int64_t row, float sum) {
  const int64_t all_rows = p.w.first_row + row;
  if (p.w.row_scale != nullptr) sum *= p.w.row_scale[row];
  if (p.bias != nullptr) sum += p.bias[all_rows];
  if (p.residual != nullptr) sum += LoadElement(p.y_element, p.residual, token * p.residual_stride + all_rows);
  StoreElement(p.y_element, p.y, token * p.y_stride + all_rows, sum);
}

// ---- Few tokens

constexpr int kRowWarps = 4;
constexpr int kFewTokens = 8;

template <int kType, int kTokens>
__global__ void __launch_bounds__(kRowWarps* kWarp) Rows(const __grid_constant__ LinearParams p, int64_t first_token) {
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + WarpOfBlock();
  if (row >= p.w.rows) return;
  const uint8_t* w = p.w.data + row * p.w.row_bytes;
  float sum[kTokens] = {};
  for (int64_t column = Lane() * kVector; column + kVector <= p.columns; column += kWarp * kVector) {
    float values[kVector];
    Expand<kType>(w, column, values);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float* x = p.x + (first_token + t) * p.x_stride + column;
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[t] = fmaf(values[i], x[i], sum[t]);
    }
  }
  // Float rows may end anywhere.
  if constexpr (kType == OCTET_F32 || kType == OCTET_F16 || kType == OCTET_BF16) {
    const int64_t column = p.columns / kVector * kVector + Lane();
    if (column < p.columns) {
      constexpr Element kElement = kType == OCTET_F32   ? Element::kF32
                                   : kType == OCTET_F16 ? Element::kF16
                                                        : Element::kBF16;
      for (int t = 0; t < kTokens; ++t) {
        sum[t] = fmaf(LoadElement(kElement, w, column), p.x[(first_token + t) * p.x_stride + column], sum[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float all = WarpSum(sum[t]);
    if (Lane() == 0) Finish(p, first_token + t, row, all);
  }
}

// ---- More tokens

constexpr int kTile = 64;         // rows of W, and tokens, of a block
constexpr int kTileColumns = 32;  // expanded at once
constexpr int kTileThreads = 256;
constexpr int kEach = 4;                   // rows and tokens of a thread
constexpr int kPadded = kTileColumns + 1;  // floats: neighbouring rows in other banks

template <int kType>
__global__ void __launch_bounds__(kTileThreads) Tiles(const __grid_constant__ LinearParams p) {
  __shared__ float w[kTile][kPadded], x[kTile][kPadded];
  const int64_t first_row = int64_t{blockIdx.x} * kTile, first_token = int64_t{blockIdx.y} * kTile;
  const int thread = static_cast<int>(threadIdx.x), row = thread / kEach, part = thread % kEach * kVector;
  const int at_row = thread % (kTile / kEach), at_token = thread / (kTile / kEach);
  float sum[kEach][kEach] = {};  // [token][row]
  for (int64_t column = 0; column < p.columns; column += kTileColumns) {
    float values[kVector] = {};
    const int64_t from = column + part;
    if (first_row + row < p.w.rows && from < p.columns) {
      const uint8_t* data = p.w.data + (first_row + row) * p.w.row_bytes;
      if (from + kVector <= p.columns) {
        Expand<kType>(data, from, values);
      } else if constexpr (kType == OCTET_F32 || kType == OCTET_F16 || kType == OCTET_BF16) {
        constexpr Element kElement = kType == OCTET_F32   ? Element::kF32
                                     : kType == OCTET_F16 ? Element::kF16
                                                          : Element::kBF16;
        for (int i = 0; from + i < p.columns; ++i) values[i] = LoadElement(kElement, data, from + i);
      }
    }
    for (int i = 0; i < kVector; ++i) w[row][part + i] = values[i];
    for (int i = 0; i < kVector; ++i) {
      const bool real = first_token + row < p.tokens && from + i < p.columns;
      x[row][part + i] = real ? p.x[(first_token + row) * p.x_stride + from + i] : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < kTileColumns; ++c) {
      float a[kEach], b[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        a[i] = x[at_token * kEach + i][c];
        b[i] = w[at_row + i * (kTile / kEach)][c];
      }
#pragma unroll
      for (int t = 0; t < kEach; ++t) {
#pragma unroll
        for (int r = 0; r < kEach; ++r) sum[t][r] = fmaf(a[t], b[r], sum[t][r]);
      }
    }
    __syncthreads();
  }
  for (int t = 0; t < kEach; ++t) {
    const int64_t token = first_token + at_token * kEach + t;
    if (token >= p.tokens) break;
    for (int r = 0; r < kEach; ++r) {
      const int64_t out = first_row + at_row + r * (kTile / kEach);
      if (out < p.w.rows) Finish(p, token, out, sum[t][r]);
    }
  }
}

template <int kType>
void Launch(const LinearParams& p, runtime::Stream stream) {
  if (p.tokens > kFewTokens) {
    const dim3 grid(static_cast<unsigned>((p.w.rows + kTile - 1) / kTile),
                    static_cast<unsigned>((p.tokens + kTile - 1) / kTile));
    Tiles<kType><<<grid, kTileThreads, 0, stream>>>(p);
    return;
  }
  const auto blocks = static_cast<unsigned>((p.w.rows + kRowWarps - 1) / kRowWarps);
  int64_t token = 0;
  for (; token + 4 <= p.tokens; token += 4) Rows<kType, 4><<<blocks, kRowWarps * kWarp, 0, stream>>>(p, token);
  for (; token < p.tokens; ++token) Rows<kType, 1><<<blocks, kRowWarps * kWarp, 0, stream>>>(p, token);
}

// ---- Embedding

template <int kType>
__device__ void ExpandRow(const EmbedParams& p, const uint8_t* row, float scale, int64_t y0) {
  constexpr int kStep = kType == OCTET_F32 || kType == OCTET_F16 || kType == OCTET_BF16 ? 1 : kVector;
  for (int64_t c = int64_t{threadIdx.x} * kStep; c < p.columns; c += int64_t{blockDim.x} * kStep) {
    if constexpr (kStep == 1) {
      constexpr Element kElement = kType == OCTET_F32   ? Element::kF32
                                   : kType == OCTET_F16 ? Element::kF16
                                                        : Element::kBF16;
      StoreElement(p.y_element, p.y, y0 + c, LoadElement(kElement, row, c) * scale);
    } else {
      float values[kVector];
      Expand<kType>(row, c, values);
      for (int i = 0; i < kVector; ++i) StoreElement(p.y_element, p.y, y0 + c + i, values[i] * scale);
    }
  }
}

// One block per token. A token's row scale is applied behind the values' own.
__global__ void Embed(const __grid_constant__ EmbedParams p) {
  const int64_t token = blockIdx.x, id = p.ids[token], y0 = token * p.y_stride;
  const WeightRows* part = nullptr;
  for (int i = 0; i < p.num_parts; ++i) {
    if (id >= p.parts[i].first_row && id < p.parts[i].first_row + p.parts[i].rows) part = p.parts + i;
  }
  if (part == nullptr) {
    for (int64_t c = threadIdx.x; c < p.columns; c += blockDim.x) {
      StoreElement(p.y_element, p.y, y0 + c, octet::FloatFromBits(0x7fc00000u));
    }
    return;
  }
  const int64_t row = id - part->first_row;
  const uint8_t* data = part->data + row * part->row_bytes;
  const float scale = part->row_scale != nullptr ? part->row_scale[row] * p.scale : p.scale;
  switch (part->type) {
#define OCTET_CASE(type) \
  case type:             \
    return ExpandRow<type>(p, data, scale, y0);
    OCTET_FOR_EACH_TYPE(OCTET_CASE)
#undef OCTET_CASE
    default:
      return;
  }
}

}  // namespace

void LaunchLinear(const LinearParams& p, runtime::Stream stream) {
  switch (p.w.type) {
#define OCTET_CASE(type) \
  case type:             \
    return Launch<type>(p, stream);
    OCTET_FOR_EACH_TYPE(OCTET_CASE)
#undef OCTET_CASE
    default:
      return;
  }
}

void LaunchEmbed(const EmbedParams& p, runtime::Stream stream) {
  Embed<<<static_cast<unsigned>(p.tokens), 128, 0, stream>>>(p);
}

}  // namespace octet_gpu
