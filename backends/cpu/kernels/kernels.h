// The boundary between the backend's glue and its kernels: plain structs, and one table of functions per instruction
// set.
//
// Kernel files are compiled once per instruction set into a namespace of that name, so nothing in them may have
// external linkage outside it, and they include no header whose inline functions the linker could merge across copies.
// Pointers were checked by the glue; strides are in bytes where the name says so, in elements otherwise; every row of
// f32 is contiguous. Work is cut into items, and an item's result does not depend on which other items run, nor where.
#ifndef OCTET_BACKENDS_CPU_KERNELS_KERNELS_H_
#define OCTET_BACKENDS_CPU_KERNELS_KERNELS_H_

#include <stdint.h>

namespace octet_cpu {

// ---- Elementwise, one row of f32 at a time ----

struct NormParams {
  bool layer;  // subtract the mean, add the bias
  int64_t n;
  const float *gain, *bias;
  float eps;
};

struct RopeParams {
  int64_t pairs;
  int64_t pair_stride;  // of the row of the table that a call gets
  bool interleaved;
};

// ---- KV cache ----

enum class Element : int32_t { kF32, kF16, kBF16, kI8 };
enum class Scales : int32_t { kNone, kTensor, kHead, kChannel, kToken };

constexpr int kMaxHeadDim = 576;

// K or V of one layer. data, scale and zero point at the layer's page 0.
struct Side {
  uint8_t *data, *scale, *zero;
  int64_t data_stride[3], scale_stride[3], zero_stride[3];  // bytes per page, KV head, token
  const float *static_scale, *static_zero;                  // [1], [kv_heads] or [kv_heads][head_dim]
  int64_t static_scale_stride, static_zero_stride;          // per head
  Element element;
  Scales scales;
  bool asymmetric, scale_bf16, zero_bf16;
  int32_t head_dim, group, rotation;  // group: channels per dynamic scale, head_dim for the whole row; head_dim 0: no
                                      // such side
};

// f32 [blocks][kv_heads][row of K]; data null: none.
struct OffsetTable {
  const float* data;
  int64_t block_stride, head_stride;
  int32_t block_tokens;
};

struct RowsParams {
  Side k, v, k_extra;
  float *k_rows, *v_rows;  // [tokens][kv_heads][row]; null: not touched. Append only reads. A row of K is k and k_extra
  int64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride;
  const int64_t* slots;      // [tokens]; -1 skips
  const int32_t* positions;  // [tokens]; null without an offset table
  OffsetTable offset;
  int32_t kv_heads, page_tokens;
};

// What the rows of a packed QKV go through on their way to the cache and to q; see octet_qkv_append_args.
struct QkvParams {
  const float* qkv;  // [tokens][heads of Q, heads of K, heads of V]
  int64_t qkv_stride;
  const float *bias, *q_gain, *k_gain;  // [columns], [head_dim], [head_dim]; null: none
  float eps;
  RopeParams rope;
  const float* cos_sin;  // [positions][pairs][2]
  int64_t cos_sin_stride;
  uint8_t* q_out;                         // [tokens][q_heads][head_dim], bytes; f32 rows may be those of qkv
  int64_t q_token_stride, q_head_stride;  // bytes
  Element q_element;
  Side k, v;
  const int64_t* slots;      // [tokens]; -1 skips K and V
  const int32_t* positions;  // [tokens]
  OffsetTable offset;
  int32_t q_heads, kv_heads, page_tokens;
  // Those of the table: the bytes of a fused row are the bytes of its parts.
  void (*norm_row)(const NormParams&, const float* x, float* y);
  void (*rope_row)(const RopeParams&, const float* cos_sin, float* x);
};

// ---- Attention ----

constexpr int kChunkTokens = 256;  // positions [256 c, 256 (c + 1)): the unit in which a row's keys are reduced
constexpr int kMaxRows = 48;       // query rows of one item at most
constexpr int kMaxRowFloats = kMaxRows * 128;
constexpr int kMaxIntegerDim = 256;

// Rows of an item at most, so that its queries and outputs stay in L1 and L2.
static constexpr int RowsPerItem(int k_dim, int v_dim) {
  const int dim = (k_dim > v_dim ? k_dim : v_dim) + 15;
  const int rows = kMaxRowFloats / (dim / 16 * 16);
  return rows < kMaxRows ? rows : kMaxRows;
}

// One item: up to RowsPerItem consecutive rows of one request and KV head, over chunks [chunk_begin, chunk_end). A
// request's rows count from query * group + head of the group.
struct AttentionItem {
  int32_t request, kv_head, row_begin, row_end, chunk_begin, chunk_end;
  int64_t partial;         // >= 0: instead of the output, (O, m, l) of row i and chunk c go to row
  int64_t partial_stride;  // partial + i * partial_stride + c - chunk_begin of AttentionParams::partials
};

struct AttentionParams {
  Side k, v, k_extra;  // v may be k: an MLA latent
  OffsetTable offset;
  const void* q;  // [tokens][q_heads][k head_dim + k_extra head_dim]
  int64_t q_token_stride, q_head_stride;
  void* out;  // [tokens][q_heads][v head_dim]
  int64_t out_token_stride, out_head_stride;
  float* lse;  // [tokens][q_heads] or null
  int64_t lse_token_stride;
  const int8_t* mask;  // [tokens][columns] or null
  int64_t mask_token_stride;
  Element q_element, out_element;
  const float *alibi, *sinks;  // [q_heads] or null
  int32_t q_heads, kv_heads, page_tokens, window;
  bool causal;
  float scale, softcap;
  const int32_t *q_start, *kv_len, *kv_begin, *page_start, *pages;  // as octet_batch; kv_begin never null
  float* partials;                                                  // rows of v.head_dim + 2 floats: O, m, l
};

// ---- Weights ----

// A tile is 16 rows of one stored tensor in the tile order of kernels/tile_format.h.
constexpr int kTileRows = 16;
constexpr int kTileColumns = 32;    // what one dequantize call expands
constexpr int kBlockColumns = 256;  // `linear` sums columns in order within a block, then block sums in order

struct Tile {
  const uint8_t* data;
  const float* row_scale;  // [16] or null
  int32_t type;            // octet_dtype
  int32_t rows;            // 1..16; the rest is padding
  int64_t first_row;       // of the matrix
};

struct LinearParams;

// Sums of one tile without what follows them: total[t][row], rows kTilesPerItem * kTileRows apart, of tokens [token,
// token + tokens).
typedef void SumTileFn(const LinearParams&, const Tile&, int64_t token, int64_t tokens, float* total);

struct LinearParams {
  const Tile* tiles;
  int64_t num_tiles, columns, tokens;
  const float* x;  // [tokens][columns]
  int64_t x_stride;
  const uint32_t* x_bf16;  // for linear_bf16 instead of x: pack_x's operands; room for a multiple of 16 tokens
  int64_t x_bf16_stride;   // words from 16 tokens to the next 16
  const uint8_t* x_int8;   // for linear_int8: quantize_x's rows; x too, where tiles are of floats
  int64_t x_int8_stride;   // bytes
  SumTileFn* sum_tile;     // for linear_int8 too: what it does with tiles of floats
  float* y;                // [tokens][rows]
  int64_t y_stride;
  const float* bias;      // [rows] or null
  const float* residual;  // [tokens][rows] or null; may be y
  int64_t residual_stride;
  int32_t tiles_per_item;   // 1..kTilesPerItem; of linear_bf16 to kPackedTilesPerItem
  int32_t tokens_per_item;  // 1..kMaxTokensPerItem; of linear_bf16 to kMaxPackedTokensPerItem, in multiples of 32
};

constexpr int kXBlockBytes = 80;   // of 32 columns of x as quantize_x leaves them
constexpr int kFewTokens = 4;      // up to so many tokens weights are expanded, or taken as they lie, in L1
constexpr int kIntegerTokens = 8;  // of linear_int8 at most
constexpr int kTilesPerItem = 4;
constexpr int kMaxTokensPerItem = 240;
constexpr int kPackedTilesPerItem = 2;  // of linear_bf16
constexpr int kMaxPackedTokensPerItem = 512;
constexpr int kPackedTokens = 16;  // of x's operands
constexpr int kPanelTiles = 4;     // of a panel that a library multiplies with
constexpr int kPanelRows = kPanelTiles * kTileRows;
constexpr int kPanelStep = 64;  // its columns are a multiple of

// One instruction set. Item ranges are [begin, end).
struct KernelTable {
  const char* name;
  int32_t lanes;  // f32 per vector
  // Items: token * kv_heads + head.
  void (*append)(const RowsParams&, int64_t begin, int64_t end);
  void (*gather)(const RowsParams&, int64_t begin, int64_t end);
  // Items: token * (q_heads + kv_heads) + head, Q's heads first; a KV head is its K and its V.
  void (*qkv_append)(const QkvParams&, int64_t begin, int64_t end);
  void (*attention)(const AttentionParams&, const AttentionItem&);
  // The same in integers (attention_int8.h, attention_words.cc); null where the processor has no use of that. K and V
  // are INT8 of at most kMaxIntegerDim channels with one symmetric scale per token, without extra K.
  void (*attention_int8)(const AttentionParams&, const AttentionItem&);
  // Merges partial rows [partial, partial + chunks) and writes the row's output and lse. Each with its own attention: a
  // row that was not split is merged there, and has to have the same bytes.
  void (*attention_merge)(const AttentionParams&, int64_t partial, int64_t chunks, int64_t token, int32_t q_head);
  void (*attention_int8_merge)(const AttentionParams&, int64_t partial, int64_t chunks, int64_t token, int32_t q_head);
  // Items: ceil(num_tiles / tiles_per_item) panels for each of ceil(tokens / tokens_per_item) runs of tokens, panels
  // innermost.
  void (*linear)(const LinearParams&, int64_t begin, int64_t end);
  SumTileFn* sum_tile;
  // The same for more tokens with x and weights rounded to bf16; null where the processor has no use of that. pack_x:
  // row `token` of x into operands of 16 rows of 64 bytes, 32 columns each, zeros behind the last column; `out` is
  // where the operands of these 16 tokens begin, aligned to 64 bytes.
  void (*linear_bf16)(const LinearParams&, int64_t begin, int64_t end);
  void (*pack_x)(const float* x, int64_t columns, int64_t token, uint32_t* out);
  // The same for at most kIntegerTokens tokens with x rounded to 16 bits in integers and weights as they are stored;
  // null where the processor has no use of that. quantize_x: one row of x, columns a multiple of 32, as columns / 32 *
  // kXBlockBytes bytes.
  void (*linear_int8)(const LinearParams&, int64_t begin, int64_t end);
  void (*quantize_x)(const float* x, int64_t columns, uint8_t* out);
  // For products that are computed elsewhere: columns [column, column + columns) of up to kPanelTiles tiles, zeros up
  // to a multiple of kPanelStep columns and for tiles that are missing. expand: f32 [columns][kPanelRows]; expand_bf16:
  // pairs of columns, [columns / 2][kPanelRows] words, the even column below. column is a multiple of 32.
  void (*expand)(const Tile* tiles, int num_tiles, int64_t column, int64_t columns, void* panel);
  void (*expand_bf16)(const Tile* tiles, int num_tiles, int64_t column, int64_t columns, void* panel);
  // And such products in 8 bits, the largest of a row being 127: columns a multiple of kPanelStep. quantize_panel: of
  // f32 [columns][kPanelRows] the words [columns / 4][kPanelRows], the first of four columns lowest, what a code is
  // worth and 128 times the sum of codes, [kPanelRows] each. quantize_row: x [columns] as codes + 128, zeros behind up
  // to a multiple of kPanelStep; returns what a code is worth.
  void (*quantize_panel)(const float* panel, int64_t columns, uint32_t* codes, float* scales, int32_t* offsets);
  float (*quantize_row)(const float* x, int64_t columns, uint8_t* codes);
  // sums [tokens][kPanelRows] = or += x_scales[token] scales[row] (products - offsets[row]).
  void (*add_products)(const int32_t* products, int64_t tokens, const float* x_scales, const float* scales,
                       const int32_t* offsets, bool add, float* sums);
  // y of item `index` of kPanelTiles tiles from the sums [tokens of the item][kPanelRows].
  void (*finish)(const LinearParams&, int64_t index, const float* sums);
  // Row `row` of tiles as f32 [columns] times scale.
  void (*embed)(const Tile*, int64_t row, int64_t columns, float scale, float* y);
  void (*norm)(const NormParams&, const float* x, float* y);              // y may be x
  void (*rope)(const RopeParams&, const float* cos_sin, float* x);        // cos_sin [pairs][2]
  void (*activation)(int32_t kind, int64_t n, const float* x, float* y);  // OCTET_ACT_*, n of y
  void (*add)(int64_t n, const float* x, float* y);                       // y += x
  void (*load_row)(Element, const void* row, int64_t n, float* x);        // to f32
  void (*store_row)(Element, const float* x, int64_t n, void* row);       // f32 to nearest even
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_KERNELS_H_
