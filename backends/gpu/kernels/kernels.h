// The boundary between the GPU backends' glue and their kernels: plain structs in, a launch on a stream out.
//
// Pointers are device memory and were checked by the glue; strides are in bytes where the name says so, in elements
// otherwise. Values that lie in device memory (slots, pages, positions, rows) nobody has checked: kernels skip what is
// out of range, so that a wrong one cannot touch memory that is not the call's. A launcher reports nothing: its caller
// asks the runtime for the last error. Kernels are functions of their arguments alone, and a result does not depend on
// what else is in the batch.
#ifndef OCTET_BACKENDS_GPU_KERNELS_KERNELS_H_
#define OCTET_BACKENDS_GPU_KERNELS_KERNELS_H_

#include <cstdint>

#include "backends/gpu/runtime.h"
#include "octet/abi.h"

namespace octet_gpu {

// Does this build have code for the current device?
bool HasKernelCode();

// ---- KV cache ----

enum class Element : int32_t { kF32, kF16, kBF16, kI8 };
enum class Scales : int32_t { kNone, kTensor, kHead, kChannel, kToken };

constexpr int kMaxHeadDim = 576;
constexpr int kMaxRow = 2 * kMaxHeadDim;  // channels of K with its extra ones

// K or V of one layer. data, scale and zero point at the layer's page 0.
struct Side {
  uint8_t *data, *scale, *zero;
  int64_t data_stride[3], scale_stride[3], zero_stride[3];  // bytes per page, KV head, token
  const float *static_scale, *static_zero;                  // [1], [kv_heads] or [kv_heads][head_dim]
  int64_t static_scale_stride, static_zero_stride;          // per head
  float rotation_factor;                                    // 1 / sqrt(rotation), rounded once
  Element element;
  Scales scales;
  int32_t head_dim, group, rotation;  // group: channels per dynamic scale, head_dim for the whole row; head_dim 0: no
                                      // such side
  bool asymmetric, scale_bf16, zero_bf16;
};

// f32 [blocks][kv_heads][row of K]; data null: none.
struct OffsetTable {
  const float* data;
  int64_t block_stride, head_stride, blocks;
  int32_t block_tokens;
};

struct RowsParams {
  Side k, v, k_extra;
  float *k_rows, *v_rows;  // [tokens][kv_heads][row]; null: not touched. Append only reads. A row of K is k and k_extra
  int64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride;
  const int64_t* slots;  // [tokens]; -1 skips
  int64_t tokens, slot_count;
  const int32_t* positions;  // [tokens]; null without an offset table
  OffsetTable offset;
  int32_t kv_heads, page_tokens;
};

void LaunchAppend(const RowsParams& p, runtime::Stream stream);
void LaunchGather(const RowsParams& p, runtime::Stream stream);

// Rows of pages from one placement to another. Page i of n is from_pages[i] and to_pages[i], strides apart, or i where
// the list is null.
constexpr int kMaxRuns = 9;
struct PageCopyParams {
  struct Run {
    const uint8_t* from;
    uint8_t* to;
    int64_t from_stride[3], to_stride[3];  // bytes per page, KV head, token
    int32_t row_bytes, word;               // word: bytes that move at once, a power of two up to 16
  } runs[kMaxRuns];
  int32_t num_runs, kv_heads, page_tokens;
  const int32_t *from_pages, *to_pages;
  int64_t list_stride, pages, from_count, to_count;  // counts: pages that exist
};
void LaunchPageCopy(const PageCopyParams& p, runtime::Stream stream);

// ---- Attention ----

constexpr int kAttentionTile = 64;     // keys; a request's tiles count from its kv_begin
constexpr int kAttentionItemCost = 4;  // what the beginning and end of an item take, in tiles: measured

// What one query token sees.
struct alignas(16) TokenKeys {
  int32_t request, position;  // of the query
  int32_t begin, end;         // positions of keys that it sees, before a mask
  int32_t kv_begin, page_start;
  int32_t first_tile;  // of its request, with a key that it sees
  int32_t place;       // in the list of all items (a token's per KV head: kAttentionItemCost and its tiles) of one head
};
struct alignas(16) StepHeader {
  int32_t requests, tokens, places, unused;  // places: of the whole list, for one KV head
};

struct AttentionParams {
  Side k, v, k_extra;
  OffsetTable offset;
  const void* q;  // [tokens][q_heads][k head_dim + k_extra head_dim]
  int64_t q_token_stride, q_head_stride;
  void* out;  // [tokens][q_heads][v head_dim]
  int64_t out_token_stride, out_head_stride;
  float* lse;  // [tokens][q_heads] or null
  int64_t lse_token_stride;
  const int8_t* mask;  // [tokens][columns] or null
  int64_t mask_token_stride, mask_columns;
  Element q_element, out_element;
  const float *alibi, *sinks;  // [q_heads] or null
  int32_t q_heads, kv_heads, page_tokens, window;
  bool causal;
  float scale, softcap;
  int64_t tokens;  // rows of q and out
  // The step, filled in place by refill: as octet_batch, and what each query token sees; one more behind the last
  // token, of which only `place` means something.
  const StepHeader* step;
  const int32_t *q_start, *kv_len, *kv_begin, *page_start, *pages;
  const TokenKeys* keys;  // [tokens + 1]
};

void LaunchAttention(const AttentionParams& p, runtime::Stream stream);

// ---- Weights ----

// Rows of one stored tensor, side by side in GGUF's own blocks.
struct WeightRows {
  const uint8_t* data;
  const float* row_scale;  // [rows] or null
  int64_t row_bytes, first_row, rows;
  int32_t type;  // octet_dtype
};

struct LinearParams {
  WeightRows w;
  int64_t columns, tokens;
  const float* x;  // [tokens][columns]
  int64_t x_stride;
  void* y;  // [tokens][all rows of the weight]; as residual
  const void* residual;
  int64_t y_stride, residual_stride;
  const float* bias;  // [all rows] or null
  Element y_element;
};
void LaunchLinear(const LinearParams& p, runtime::Stream stream);

struct EmbedParams {
  const WeightRows* parts;  // in device memory
  int32_t num_parts;
  int64_t columns, tokens;
  const int32_t* ids;
  float scale;
  void* y;
  int64_t y_stride;
  Element y_element;
};
void LaunchEmbed(const EmbedParams& p, runtime::Stream stream);

// ---- Rows of floats ----

// A tensor of up to 5 dimensions as rows of its last one: row r starts where its index in the outer dimensions says.
struct FloatRows {
  void* data;
  Element element;
  int64_t shape[4], stride[4];  // outermost first; unused ones 1 and 0
  int64_t rows, n;              // rows, elements of each
};

struct NormParams {
  FloatRows x, y;
  const float *gain, *bias;  // [n]; bias null: none
  float eps;
  bool layer;  // subtract the mean, add the bias
};
void LaunchNorm(const NormParams& p, runtime::Stream stream);

struct RopeParams {
  void* x;  // [tokens][heads][dim]
  Element element;
  int64_t tokens, heads, token_stride, head_stride;
  const int32_t* positions;  // [tokens]
  const float* cos_sin;      // [table][pairs][2]
  int64_t table, position_stride, pair_stride, pairs;
  bool interleaved;
};
void LaunchRope(const RopeParams& p, runtime::Stream stream);

void LaunchActivation(int32_t kind, const FloatRows& x, const FloatRows& y, runtime::Stream stream);
void LaunchAdd(const FloatRows& x, const FloatRows& y, runtime::Stream stream);      // y += x
void LaunchConvert(const FloatRows& x, const FloatRows& y, runtime::Stream stream);  // y = x

struct GatherRowsParams {
  const uint8_t* x;                                    // [count][row_bytes]
  uint8_t* y;                                          // [rows][row_bytes]
  int64_t x_stride, y_stride, row_bytes, rows, count;  // strides in bytes
  const int32_t* index;                                // [rows]
  int32_t word;
};
void LaunchGatherRows(const GatherRowsParams& p, runtime::Stream stream);

}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_GPU_KERNELS_KERNELS_H_
