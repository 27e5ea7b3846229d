/* The C contract between octet and a compute backend: the only thing that two libraries share.
 *
 * A backend is one shared library, liboctet_backend_<name>.so, that exports one symbol, octet_backend_query_v1, which
 * answers with tables of functions. This header is C11 and C++20, has no implicit padding, and needs nothing but the
 * standard headers below. Backends and octet itself program against the C++ classes beside it (quant_ops.h,
 * attention_backend.h, dense_ops.h); plugin.hpp turns such classes into these tables.
 *
 * Rules (docs/abi.md explains each; checks and errors cite them by number):
 *  A1  Every growable struct starts with struct_size, set by whoever fills it. Fields are appended, never moved.
 *  A2  A reader accepts any size >= the first release's and reads only what is inside it.
 *  A3  An unknown tail must be zero bytes; a reader that finds anything else there answers UNIMPLEMENTED.
 *  A4  Out structs: the caller sets struct_size and zeroes the rest; the callee writes no further than that.
 *  A5  Enumerations are fixed-width integers; an unknown value is unsupported, never undefined.
 *  A6  Nothing allocated on one side is freed on the other. Who creates, destroys, through the same table; destroy
 *      functions accept NULL.
 *  A7  Host arrays are borrowed for the call; the source of an async write until the stream passes it.
 *  A8  No exception, longjmp or C++ type crosses. Table functions behave as noexcept.
 *  A9  "Cannot do this" is UNIMPLEMENTED with a reason, before any output is touched. "Not here" is UNAVAILABLE. "The
 *      device is broken" is DATA_LOSS, and then every later call on that device says so until it is closed.
 *  A10 supports is a promise: level 1 or 2 means the call will succeed with that descriptor, memory permitting; level 0
 *      means the call refuses.
 *  A11 Table functions may be called from any thread; one stream is used by one thread at a time.
 *      A thread that calls, or runs a body of parallel_for, has OCTET_MIN_STACK_BYTES of stack when it enters.
 *  A12 A backend changes no process-wide state, sets its device on entry, and never resets a device.
 *  A13 close joins every thread that open made. The library stays mapped until the process ends.
 *  A14 The library exports one symbol per ABI major and nothing else.
 *  A15 Same inputs, same device, same plan give the same bytes. Batch invariance is declared through an extension and
 *      then tested.
 *  A16 Experiments live in extensions named "vendor.thing.N".
 *  A17 Argument lists never change. A call that may ever need more takes a size-first args struct, in which zero or
 *      NULL means "as before".
 *  A18 kv_len counts this step's tokens and the window counts the token itself; refill stays outside capture and copies
 *      its host arrays before it returns; a finished row of a captured batch has slot -1; buffers of different backends
 *      never meet in one call.
 */
#ifndef OCTET_ABI_H_
#define OCTET_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OCTET_ABI_MAJOR 1u /* part of the entry symbol's name */
#define OCTET_ABI_MINOR 0u /* counts additions */
/* Before 1.0 fields may still move: host and backend must then have the same draft (this is 0.9). 0 once frozen. */
#define OCTET_ABI_DRAFT 9u
#define OCTET_MIN_STACK_BYTES 524288u /* A11 */

#if defined(__GNUC__)
#define OCTET_EXPORT __attribute__((visibility("default")))
#else
#define OCTET_EXPORT
#endif

/* `p` was filled by the other side: is it long enough to hold `field`, and is it set? */
#define OCTET_HAS(p, field) \
  ((p) != NULL && (p)->struct_size >= (size_t)((const char*)(&(p)->field + 1) - (const char*)(p)) && (p)->field != 0)

typedef int32_t octet_code; /* abseil's numbers */
enum {
  OCTET_OK = 0,
  OCTET_CANCELLED = 1,
  OCTET_UNKNOWN = 2,
  OCTET_INVALID_ARGUMENT = 3,
  OCTET_NOT_FOUND = 5,
  OCTET_RESOURCE_EXHAUSTED = 8,
  OCTET_FAILED_PRECONDITION = 9,
  OCTET_OUT_OF_RANGE = 11,
  OCTET_UNIMPLEMENTED = 12,
  OCTET_INTERNAL = 13,
  OCTET_UNAVAILABLE = 14,
  OCTET_DATA_LOSS = 15
};

typedef int32_t octet_dtype; /* never renumbered */
enum {
  OCTET_F32 = 1,
  OCTET_F16 = 2,
  OCTET_BF16 = 3,
  OCTET_I8 = 4,
  OCTET_I32 = 5,
  OCTET_I64 = 6,
  OCTET_OPAQUE = 15, /* bytes that only the backend reads */
  /* GGUF weight blocks: only as input of prepare_weight. */
  OCTET_Q4_0 = 16,
  OCTET_Q4_1 = 17,
  OCTET_Q5_0 = 18,
  OCTET_Q5_1 = 19,
  OCTET_Q8_0 = 20,
  OCTET_Q4_K = 24,
  OCTET_Q5_K = 25,
  OCTET_Q6_K = 26
};

/* Owned by the caller; every function accepts NULL instead. 1024 bytes. message is NUL-terminated UTF-8. */
typedef struct octet_error {
  uint32_t struct_size;
  octet_code code;
  int32_t native_code;  /* of the driver or library below, for logs; 0 none. plugin.hpp writes 0: a C++ backend names
                           the driver's error in the message */
  uint32_t message_len; /* without the NUL */
  char message[1008];
} octet_error;

/* Opaque, made and ended by the same table. The caller ends a handle when the work that uses it is done (after sync, or
 * event_sync on an event recorded behind it), a plan before its workspace, and everything before its device. */
typedef struct octet_device octet_device;
typedef struct octet_stream octet_stream;
typedef struct octet_buffer octet_buffer;
typedef struct octet_event octet_event;
typedef struct octet_plan octet_plan;
typedef struct octet_weight octet_weight;
typedef struct octet_graph octet_graph;

/* A view of device memory. Frozen for ever: 104 bytes. Strides are not negative and the last dimension is contiguous.
 * Values that lie in device memory (slots, positions, pages, rows) are the caller's promise: a backend that can read
 * them answers INVALID_ARGUMENT for one out of range, and no backend has to. */
typedef struct octet_tensor {
  octet_buffer* buffer;
  uint64_t offset; /* bytes */
  octet_dtype dtype;
  int32_t rank;      /* 1..5 */
  int64_t shape[5];  /* outermost first; unused ones 1 */
  int64_t stride[5]; /* elements; bytes for OCTET_OPAQUE */
} octet_tensor;

/* What the host lends; lives until the process ends. A backend resolves no symbol of the host. */
typedef struct octet_host_v1 {
  uint32_t struct_size, abi_minor;
  void* ctx;
  /* level: 0 debug, 1 info, 2 warning, 3 error. May be NULL. */
  void (*log)(void* ctx, int32_t level, const char* text, size_t len);
  /* Calls body over disjoint pieces that cover [0, n) and returns when all are done; worker < max_workers, and no two
   * pieces with one worker number run at once. A nested call runs inline. May be NULL: compute on the calling thread or
   * on threads of your own. */
  void (*parallel_for)(void* ctx, int64_t n, void (*body)(void* arg, uint32_t worker, int64_t begin, int64_t end),
                       void* arg);
  uint32_t max_workers, reserved;
} octet_host_v1;

enum { OCTET_DEVICE_CPU = 1, OCTET_DEVICE_GPU = 2, OCTET_DEVICE_OTHER = 3 };

typedef struct octet_device_info {
  uint32_t struct_size, kind;
  char name[64], arch[32]; /* "NVIDIA H200", "sm_90" */
  uint64_t memory_bytes;
  uint32_t preferred_alignment; /* of buffer offsets, bytes, a power of two */
  uint32_t lanes;               /* warp width, or SIMD lanes of f32 */
} octet_device_info;

/* Answer to "could you?" */
typedef struct octet_support {
  uint32_t struct_size;
  int32_t level;            /* 0 no, 1 correct but slow, 2 native */
  uint64_t workspace_bytes; /* scratch that the caller provides for the call or the plan */
  uint64_t resident_bytes;  /* held by the backend until release */
  uint64_t q_row_bytes;     /* size of one token's OPAQUE q row, 0 where q is a plain tensor */
  char reason[256];         /* required when level is 0 */
  char kernel[64];          /* which implementation would run */
} octet_support;

/* ---- The KV cache -------------------------------------------------------------------------------------------------
 * A cache is pages of page_tokens tokens; a page holds K and V of every KV head. Where a code, a scale and a zero lie
 * is spelled out in bytes; no kernel may derive it from a shape. */

enum { OCTET_SCHEME_NONE = 0, OCTET_SCHEME_SYMMETRIC = 1, OCTET_SCHEME_ASYMMETRIC = 2 };

/* What one scale covers. TENSOR, HEAD and CHANNEL are static and stand in octet_kv_layer; TOKEN is computed by append
 * per (token, KV head, group) and stands in the page. */
enum { OCTET_AXIS_TENSOR = 0, OCTET_AXIS_HEAD = 1, OCTET_AXIS_CHANNEL = 2, OCTET_AXIS_TOKEN = 3 };

/* K or V of a cache. Value of a code: scale * code (symmetric), scale * code + zero (asymmetric). */
typedef struct octet_cache_side {
  uint32_t struct_size;
  octet_dtype data_type;  /* F32, F16, BF16 with scheme NONE; I8 otherwise */
  int32_t scheme, axis;   /* OCTET_SCHEME_*, OCTET_AXIS_* */
  int32_t group;          /* axis TOKEN: channels that share a scale; 0 the whole row. Divides head_dim */
  octet_dtype scale_type; /* axis TOKEN: F32 or BF16; else F32 */
  octet_dtype zero_type;  /* like scale_type; 0 when symmetric */
  int32_t head_dim;       /* multiple of 8, up to 576 */
  int32_t rotation;       /* Walsh-Hadamard block along head_dim: a power of two that divides it; 0 none. Applied by
                             append; run applies it to q (K side) or undoes it on the output (V side); gather undoes it */
  int32_t order; /* 0: rows by the strides, channels contiguous. n > 0: a tile order that choose_layout chose */
  uint64_t data_base, scale_base, zero_base; /* bytes from the layer's start */
  int64_t data_stride[3], scale_stride[3],
      zero_stride[3]; /* bytes per page, per KV head, per token; groups contiguous */
} octet_cache_side;

/* Equal for all layers that share a page table. */
typedef struct octet_kv_layout {
  uint32_t struct_size;
  int32_t page_tokens, kv_heads, num_pages;
  int32_t offset_block; /* positions per row of the K offset table; 0 none */
  int32_t reserved;
  uint64_t layer_bytes; /* filled by choose_layout: what one layer's cache takes, the planner's only source */
  const octet_cache_side* k;
  const octet_cache_side* v; /* == k: V is K's row (an MLA latent) */
  /* More channels of K, of another type, NULL none: a row of K, q and k_offset then has k->head_dim + k_extra->head_dim
   * channels, k's first. Rotated by its own side's block; its scales are none or axis TOKEN. */
  const octet_cache_side* k_extra;
} octet_kv_layout;

/* What differs between layers; passed to append, gather, run. */
typedef struct octet_kv_layer {
  uint32_t struct_size;
  int32_t layer; /* for messages */
  octet_buffer* cache;
  uint64_t cache_offset; /* bytes, aligned to 128 */
  /* f32 [blocks][kv_heads][K row's channels]: subtracted from K by append before rotation, block = position /
   * offset_block. run adds q . offset to the q . k of the block's keys; gather adds it back. NULL none. */
  const octet_tensor* k_offset;
  /* Static scales and zeros, f32: [1], [kv_heads] or [kv_heads][head_dim] by the side's axis. NULL for axis TOKEN. */
  const octet_tensor *k_scale, *k_zero, *v_scale, *v_zero;
  /* f32 [q_heads]: one more score per row, after scale, softcap and ALiBi, that takes part in the softmax sum and has
   * no value; NULL none. */
  const octet_tensor* sinks;
} octet_kv_layer;

/* The rows of append (in) and gather (out). */
typedef struct octet_kv_tokens {
  uint32_t struct_size;
  int32_t reserved;
  const octet_tensor* k;         /* f32 [tokens][kv_heads][K row's channels], after RoPE, before offset and rotation */
  const octet_tensor* v;         /* f32 [tokens][kv_heads][v head_dim]; NULL when layout->v == layout->k */
  const octet_tensor* slots;     /* i64 [tokens]: page * page_tokens + index; -1 skips the row. append: distinct */
  const octet_tensor* positions; /* i32 [tokens]: position in the sequence; picks the row of the K offset table */
} octet_kv_tokens;

/* ---- Attention ----------------------------------------------------------------------------------------------------
 * Per query row and key, in this order: s = scale * (q . k); s = softcap * tanh(s / softcap); s += ALiBi; keys that
 * causal, window and mask hide drop out. Then out = sum over visible keys of e^s v / denominator, where the denominator
 * is the sum of e^s over visible keys plus e^sink. A row that sees no key gives zeros. */

/* Capacity of a plan for its whole life. */
typedef struct octet_limits {
  uint32_t struct_size;
  int32_t requests, query_tokens; /* per step */
  int32_t reserved;
  int64_t kv_len; /* of one request */
  int64_t pages;  /* in the page lists of one step */
} octet_limits;

enum { OCTET_COMPUTE_BEST = 0, OCTET_COMPUTE_EXACT = 1 };

typedef struct octet_attention_desc {
  uint32_t struct_size;
  int32_t q_heads; /* a multiple of kv_heads */
  int32_t causal;  /* 0: every query sees all kv_len keys */
  int32_t window;  /* a query at p sees keys at (p - window, p]; 0 none */
  float scale;     /* of q . k */
  float softcap;   /* 0 none */
  octet_dtype q_type, out_type;
  int32_t compute; /* OCTET_COMPUTE_BEST within the accuracy bound of docs/numerics.md, or EXACT: float throughout */
  int32_t reserved;
  const octet_kv_layout* kv;
  const octet_limits* limits;
  const octet_tensor* alibi_slopes; /* f32 [q_heads]: score += slope * (key position - query position); NULL none */
} octet_attention_desc;

/* One step's ragged batch: host arrays, copied before refill returns. Query i of request r's n queries stands at
 * position kv_len[r] - n + i. */
typedef struct octet_batch {
  uint32_t struct_size;
  int32_t requests;
  const int32_t* q_start;    /* [requests+1]: rows of q, out and lse that belong to a request; may be empty */
  const int32_t* kv_len;     /* [requests]: tokens in the sequence, this step's included */
  const int32_t* kv_begin;   /* [requests]: position of the first token of the request's first page; NULL all 0 */
  const int32_t* page_start; /* [requests+1]: into pages */
  const int32_t* pages;      /* [page_start[requests]] */
} octet_batch;

typedef struct octet_attention_args {
  uint32_t struct_size;
  int32_t reserved;
  const octet_tensor* q;   /* q_type [tokens][q_heads][K row's channels], after RoPE, before rotation */
  const octet_tensor* out; /* out_type [tokens][q_heads][v head_dim] */
  /* f32 [tokens][q_heads]: natural log of the denominator, sink included; of a row that sees no key its sink, or
   * -infinity without one. NULL not wanted. */
  const octet_tensor* lse;
  /* i8 [tokens][columns]: may query row t see the j-th of this step's tokens of its own request? Replaces the causal
   * rule among this step's tokens (draft trees); cached tokens stay visible. NULL none. */
  const octet_tensor* mask;
} octet_attention_args;

/* ---- Memory, weights and the dense part of a model -----------------------------------------------------------------
 */

typedef struct octet_memory_info {
  uint32_t struct_size, reserved;
  uint64_t free_bytes, total_bytes, held_bytes; /* held: by this open device */
} octet_memory_info;

enum { OCTET_MEMORY_DEVICE = 1, OCTET_MEMORY_HOST_VISIBLE = 2 };

/* Rows of one stored tensor, in host memory. */
typedef struct octet_weight_part {
  uint32_t struct_size;
  octet_dtype dtype;
  int64_t rows, row_stride_bytes;
  const void* data;
  const float* row_scale; /* [rows]: row r counts as row_scale[r] * row; NULL all 1 */
} octet_weight_part;

enum { OCTET_WEIGHT_LINEAR = 1u, OCTET_WEIGHT_EMBED = 2u, OCTET_WEIGHT_EXACT = 4u };

typedef struct octet_weight_desc {
  uint32_t struct_size;
  int32_t num_parts;
  int64_t columns;
  const octet_weight_part* const* parts; /* stacked along rows: a packed QKV of mixed types */
  uint32_t use;                          /* OCTET_WEIGHT_*; EXACT: float activations and accumulation */
  int32_t max_tokens;                    /* rows of x at most */
  octet_dtype x_type, y_type;
} octet_weight_desc;

/* y = norm(x) W^T + bias + residual; the optional ones NULL. residual may be y itself. */
typedef struct octet_linear_args {
  uint32_t struct_size;
  float norm_eps;
  const octet_tensor *x, *y;     /* x_type [tokens][columns], y_type [tokens][rows]; tokens <= max_tokens */
  const octet_tensor* bias;      /* f32 [rows] */
  const octet_tensor* norm_gain; /* f32 [columns]: RMS norm of x first */
  const octet_tensor* residual;  /* y_type [tokens][rows] */
  const octet_weight* w;
  octet_buffer* workspace; /* supports_weight's workspace_bytes at workspace_offset */
  uint64_t workspace_offset;
} octet_linear_args;

/* What linear's bias, norm (RMS) of Q and K, rope of both, and append do one after the other, in one pass over a packed
 * row. The layout has V apart from K and no extra K. Every row is read, and q_out written, whether its slot is -1 or
 * not; no workspace. */
typedef struct octet_qkv_append_args {
  uint32_t struct_size;
  int32_t rope_interleaved;
  float qk_norm_eps; /* where there is a gain */
  int32_t reserved;
  /* f32 [tokens][columns]: of each token the heads of Q, then those of K, both of K's head_dim, then those of V. Read
   * only, but for q_out. */
  const octet_tensor* qkv;
  const octet_tensor *bias, *q_gain, *k_gain; /* f32 [columns], [head_dim], [head_dim]; each NULL none */
  const octet_tensor* cos_sin;                /* as in rope; 0 pairs: no rotation by position */
  const octet_tensor *positions, *slots;      /* i32 [tokens], also for the K offsets; i64 [tokens] as in append */
  /* What run takes as q: q_type [tokens][q_heads][head_dim], or OPAQUE rows of q_row_bytes. Either the columns of Q in
   * qkv themselves, or memory of its own. */
  const octet_tensor* q_out;
} octet_qkv_append_args;

typedef struct octet_sample_args {
  uint32_t struct_size;
  float softcap;
  const octet_tensor *logits, *params, *history, *ids, *logprobs; /* in device memory, so that graphs replay */
} octet_sample_args;

enum { OCTET_NORM_RMS = 1, OCTET_NORM_LAYER = 2 };

/* GATED: x [tokens][2n] -> y [tokens][n] = f(x[:, :n]) * x[:, n:]. The others are elementwise. */
enum {
  OCTET_ACT_SILU_GATED = 1,
  OCTET_ACT_GELU_TANH_GATED = 2,
  OCTET_ACT_GELU_GATED = 3,
  OCTET_ACT_SILU = 4,
  OCTET_ACT_GELU_TANH = 5,
  OCTET_ACT_GELU = 6
};

/* ---- Tables -------------------------------------------------------------------------------------------------------
 * supports functions answer OK with level 0 and a reason for "no". A code that is not OK means the same where it is
 * UNIMPLEMENTED or INVALID_ARGUMENT; any other code means that the question could not be answered. */

typedef struct octet_device_ops {
  uint32_t struct_size, reserved;
  octet_code (*count)(uint32_t* out, octet_error*);
  octet_code (*describe)(uint32_t index, octet_device_info* out, octet_error*);
  /* options: "key=value,key=value", NULL none; an unknown key is INVALID_ARGUMENT. */
  octet_code (*open)(uint32_t index, const char* options, octet_device** out, octet_error*);
  void (*close)(octet_device*);
} octet_device_ops;

typedef struct octet_memory_ops {
  uint32_t struct_size, reserved;
  octet_code (*info)(octet_device*, octet_memory_info* out, octet_error*);
  /* Contents undefined; aligned to 256 bytes at least; bytes > 0. */
  octet_code (*alloc)(octet_device*, uint64_t bytes, uint32_t kind, octet_buffer** out, octet_error*);
  void (*free)(octet_buffer*);
  /* HOST_VISIBLE buffers, and every buffer of a device that computes in host memory; valid until free. Others:
   * FAILED_PRECONDITION. */
  octet_code (*map)(octet_buffer*, void** host, octet_error*);
  octet_code (*write)(octet_stream*, octet_buffer*, uint64_t offset, const void* src, uint64_t bytes, octet_error*);
  octet_code (*read)(octet_stream*, octet_buffer*, uint64_t offset, void* dst, uint64_t bytes,
                     octet_error*); /* async: dst is valid after an event or sync */
  octet_code (*copy)(octet_stream*, octet_buffer* dst, uint64_t dst_offset, octet_buffer* src, uint64_t src_offset,
                     uint64_t bytes, octet_error*);
  octet_code (*fill)(octet_stream*, octet_buffer*, uint64_t offset, uint64_t bytes, uint8_t value, octet_error*);
} octet_memory_ops;

/* An event that was never recorded counts as passed. */
typedef struct octet_stream_ops {
  uint32_t struct_size, reserved;
  octet_code (*create)(octet_device*, octet_stream** out, octet_error*);
  void (*destroy)(octet_stream*);
  octet_code (*sync)(octet_stream*, octet_error*);
  octet_code (*create_event)(octet_device*, octet_event** out, octet_error*);
  void (*destroy_event)(octet_event*);
  octet_code (*record)(octet_stream*, octet_event*, octet_error*);
  octet_code (*wait)(octet_stream*, octet_event*, octet_error*);
  octet_code (*event_sync)(octet_event*, octet_error*); /* the host waits */
} octet_stream_ops;

typedef struct octet_quant_ops {
  uint32_t struct_size, reserved;
  /* In: page_tokens, kv_heads, num_pages, offset_block and each side's types, scheme, axis, group, head_dim, rotation.
   * Out: order, bases, strides, layer_bytes. k_extra may be NULL; v may be k. The layout's pointers are not read. */
  octet_code (*choose_layout)(octet_device*, octet_kv_layout* inout, octet_cache_side* k, octet_cache_side* v,
                              octet_cache_side* k_extra, octet_error*);
  octet_code (*supports)(octet_device*, const octet_kv_layout*, octet_dtype input, octet_support*, octet_error*);
  octet_code (*append)(octet_stream*, const octet_kv_layout*, const octet_kv_layer*, const octet_kv_tokens*,
                       octet_error*);
  /* Reads rows back to f32, rotation undone and offset added: required, so that any layout can be inspected. A row with
   * slot -1 is left as it is. */
  octet_code (*gather)(octet_stream*, const octet_kv_layout*, const octet_kv_layer*, const octet_kv_tokens*,
                       octet_error*);
  /* pairs i32 [n][2]: source page, destination page. Destinations are distinct and none of them is a source. */
  octet_code (*copy_pages)(octet_stream*, const octet_kv_layout*, const octet_kv_layer*, const octet_tensor* pairs,
                           octet_error*);
  /* pages i32 [n] <-> canonical pages (docs/numerics.md), one after the other from offset; lossless. */
  octet_code (*export_pages)(octet_stream*, const octet_kv_layout*, const octet_kv_layer*, const octet_tensor* pages,
                             octet_buffer* dst, uint64_t offset, octet_error*);
  octet_code (*import_pages)(octet_stream*, const octet_kv_layout*, const octet_kv_layer*, const octet_tensor* pages,
                             octet_buffer* src, uint64_t offset, octet_error*);
} octet_quant_ops;

typedef struct octet_attention_ops {
  uint32_t struct_size, reserved;
  octet_code (*supports)(octet_device*, const octet_attention_desc*, octet_support*, octet_error*);
  /* The workspace (supports' workspace_bytes) is the plan's until release_plan. */
  octet_code (*make_plan)(octet_device*, const octet_attention_desc*, octet_buffer* workspace, uint64_t offset,
                          octet_plan** out, octet_error*);
  /* Never inside begin/end; addresses and grid stay. */
  octet_code (*refill)(octet_stream*, octet_plan*, const octet_batch*, octet_error*);
  octet_code (*run)(octet_stream*, const octet_plan*, const octet_kv_layer*, const octet_attention_args*, octet_error*);
  void (*release_plan)(octet_plan*);
} octet_attention_ops;

/* x and y of norm, rope, activation and add are f32; a backend may also take f16 and bf16. */
typedef struct octet_dense_ops {
  uint32_t struct_size, reserved;
  octet_code (*supports_weight)(octet_device*, const octet_weight_desc*, octet_support*, octet_error*);
  /* The backend keeps its own packed copy: data may be unmapped on return. */
  octet_code (*prepare_weight)(octet_stream*, const octet_weight_desc*, octet_weight** out, octet_error*);
  void (*release_weight)(octet_weight*);
  octet_code (*linear)(octet_stream*, const octet_linear_args*, octet_error*);
  /* y[t] = W[ids[t]] * scale; ids i32 [tokens], y y_type [tokens][columns]. An unknown id gives a row of NaN. */
  octet_code (*embed)(octet_stream*, const octet_weight*, const octet_tensor* ids, float scale, const octet_tensor* y,
                      octet_error*);
  /* Over the last dimension of x [..][n]; gain and bias f32 [n], bias NULL for RMS; y may be x. */
  octet_code (*norm)(octet_stream*, int32_t kind, const octet_tensor* x, const octet_tensor* gain,
                     const octet_tensor* bias, float eps, const octet_tensor* y, octet_error*);
  /* In place on x [tokens][heads][head_dim]; positions i32 [tokens]; cos_sin f32 [positions][pairs][2]. Pair p is
   * channels (2p, 2p+1) when interleaved, else (p, p + pairs); channels from 2 * pairs on stay. */
  octet_code (*rope)(octet_stream*, const octet_tensor* x, const octet_tensor* positions, const octet_tensor* cos_sin,
                     int32_t interleaved, octet_error*);
  octet_code (*activation)(octet_stream*, int32_t kind, const octet_tensor* x, const octet_tensor* y, octet_error*);
  octet_code (*add)(octet_stream*, const octet_tensor* x, const octet_tensor* y, octet_error*); /* y += x */
  /* y[i] = x[rows[i]]; x [..][n], y [rows][n] of one float type, rows i32 [rows]. */
  octet_code (*gather_rows)(octet_stream*, const octet_tensor* x, const octet_tensor* rows, const octet_tensor* y,
                            octet_error*);
} octet_dense_ops;

enum { OCTET_FUSED_QKV_APPEND = 1, OCTET_FUSED_SAMPLE = 2 };

typedef struct octet_fused_ops {
  uint32_t struct_size, reserved;
  octet_code (*supports)(octet_device*, int32_t entry, const octet_attention_desc*, octet_support*, octet_error*);
  octet_code (*qkv_append)(octet_stream*, const octet_kv_layout*, const octet_kv_layer*, const octet_qkv_append_args*,
                           octet_error*);
  octet_code (*sample)(octet_stream*, const octet_sample_args*, octet_error*);
} octet_fused_ops;

typedef struct octet_graph_ops {
  uint32_t struct_size, reserved;
  octet_code (*begin)(octet_stream*, octet_error*);
  octet_code (*end)(octet_stream*, octet_graph** out, octet_error*);
  octet_code (*launch)(octet_stream*, octet_graph*, octet_error*);
  void (*release)(octet_graph*);
} octet_graph_ops;

/* Static storage in the library, valid until the process ends. */
typedef struct octet_backend_v1 {
  uint32_t struct_size, abi_minor, abi_draft, reserved;
  const char *name, *vendor, *version;
  const char* build; /* "compiler=gcc-12.2;sanitizer=none;targets=x86-64-v2,x86-64-v3" */
  const octet_device_ops* device;
  const octet_memory_ops* memory;
  const octet_stream_ops* stream;
  const octet_quant_ops* quant;
  const octet_attention_ops* attention;
  const octet_dense_ops* dense;               /* NULL: attention only */
  const octet_fused_ops* fused;               /* NULL none */
  const octet_graph_ops* graph;               /* NULL none */
  const void* (*extension)(const char* name); /* a size-first table, or NULL; may be NULL itself */
} octet_backend_v1;

/* The one exported symbol. Called once or more, from any thread; the same answer each time. NULL: err says why. host
 * may be NULL (a tool that only looks). */
typedef const octet_backend_v1* octet_backend_query_v1_fn(const octet_host_v1* host, octet_error* err);
OCTET_EXPORT octet_backend_query_v1_fn octet_backend_query_v1;

#ifdef __cplusplus
}
#endif

#endif /* OCTET_ABI_H_ */
