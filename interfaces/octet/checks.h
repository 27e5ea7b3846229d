// Checks of the contract's descriptors and tensors that every backend needs, with sentences for the person who asked,
// and the canonical page layout. Shapes and rules stand in abi.h, the page in docs/numerics.md.
//
// A value that can never make sense is InvalidArgument; one that a later version might know is Unimplemented. Nothing
// here looks into device memory; host_memory.hpp adds the bounds of host buffers.
#ifndef OCTET_CHECKS_H_
#define OCTET_CHECKS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "octet/attention_backend.h"
#include "octet/fused_ops.h"
#include "octet/kv_cache.h"
#include "octet/status.h"
#include "octet/tensor.h"

namespace octet {
inline namespace v1 {

inline std::string ShapeText(const Tensor& t) {
  std::string text = "[";
  for (int i = 0; i < t.rank && i < 5; ++i) text += (i > 0 ? ", " : "") + std::to_string(t.shape[i]);
  return text + "]";
}

// A rank from 1 to 5, lengths and strides not negative, the last dimension contiguous, a buffer. A tensor of 0 elements
// may have no buffer and any stride of 0 or more.
inline Status CheckStrides(const char* name, const Tensor& t) {
  if (t.rank < 1 || t.rank > 5) {
    return InvalidArgument(std::string(name) + " has rank " + std::to_string(t.rank) + "; 1 to 5 exist");
  }
  bool empty = false;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 0) return InvalidArgument(std::string(name) + " has a negative length");
    if (t.stride[i] < 0) return InvalidArgument(std::string(name) + " has a negative stride");
    empty = empty || t.shape[i] == 0;
  }
  if (empty) return OkStatus();
  if (t.shape[t.rank - 1] > 1 && t.stride[t.rank - 1] != 1) {
    return InvalidArgument(std::string(name) + " is not contiguous along its last dimension");
  }
  return t.buffer != nullptr ? OkStatus() : InvalidArgument(std::string(name) + " has no buffer");
}

// Present, of this type and shape (-1: any length), and CheckStrides.
inline Status CheckTensor(const char* name, const Tensor* t, DType type, std::initializer_list<int64_t> dims) {
  if (t == nullptr) return InvalidArgument(std::string(name) + " is NULL");
  bool same = t->rank == static_cast<int32_t>(dims.size());
  int i = 0;
  for (int64_t n : dims) {
    if (!same) break;
    same = n < 0 ? t->shape[i] >= 0 : t->shape[i] == n;
    ++i;
  }
  if (TypeOf(*t) != type || !same) {
    std::string want;
    for (int64_t n : dims) want += (want.empty() ? "[" : ", ") + (n < 0 ? std::string("any") : std::to_string(n));
    return InvalidArgument(std::string(name) + " is " + DTypeName(TypeOf(*t)) + " " + ShapeText(*t) + " of rank " +
                           std::to_string(t->rank) + "; it must be " + DTypeName(type) + " " + want + "]");
  }
  return CheckStrides(name, *t);
}

// ---- The cache

// The fields of one side that the caller of ChooseLayout sets.
inline Status CheckSide(const std::string& name, const CacheSide& s) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  if (s.head_dim < 8 || s.head_dim > 576 || s.head_dim % 8 != 0) {
    return InvalidArgument(name + ": head_dim is " + text(s.head_dim) + "; it must be a multiple of 8 from 8 to 576");
  }
  if (s.rotation != 0 && (s.rotation < 2 || (s.rotation & (s.rotation - 1)) != 0 || s.head_dim % s.rotation != 0)) {
    return InvalidArgument(name + ": rotation is " + text(s.rotation) +
                           "; it must be 0 or a power of two that divides head_dim " + text(s.head_dim));
  }
  if (s.scheme == Scheme::kNone) {
    if (s.data_type != DType::kF32 && s.data_type != DType::kF16 && s.data_type != DType::kBF16) {
      return Unimplemented(name + ": data type " + DTypeName(s.data_type) +
                           " needs a quantization scheme; without one " + "f32, f16 and bf16 are possible");
    }
    return OkStatus();
  }
  if (s.scheme != Scheme::kSymmetric && s.scheme != Scheme::kAsymmetric) {
    return Unimplemented(name + ": quantization scheme " + text(static_cast<int32_t>(s.scheme)) +
                         " is unknown; known are 0 (none), 1 (symmetric) and 2 (asymmetric)");
  }
  if (s.data_type != DType::kI8) {
    return Unimplemented(name + ": quantized data of type " + DTypeName(s.data_type) + " is unknown; only int8 is");
  }
  const bool dynamic = s.axis == Axis::kToken;
  if (!dynamic && s.axis != Axis::kTensor && s.axis != Axis::kHead && s.axis != Axis::kChannel) {
    return Unimplemented(name + ": scale axis " + text(static_cast<int32_t>(s.axis)) + " is unknown; known are 0 to 3");
  }
  if (s.group < 0 || (s.group > 0 && (!dynamic || s.head_dim % s.group != 0))) {
    return InvalidArgument(name + ": group is " + text(s.group) +
                           "; it must be 0, or divide head_dim where scales are per token");
  }
  if (s.scale_type != DType::kF32 && !(dynamic && s.scale_type == DType::kBF16)) {
    return Unimplemented(name + ": scales of type " + DTypeName(s.scale_type) + " are unknown; " +
                         (dynamic ? "f32 and bf16 are possible" : "static scales are f32"));
  }
  const DType zero = s.scheme == Scheme::kSymmetric ? DType::kNone : s.scale_type;
  if (s.zero_type != zero) {
    return InvalidArgument(name + ": zero_type is " + DTypeName(s.zero_type) + "; for these scales it must be " +
                           DTypeName(zero));
  }
  return OkStatus();
}

// What the caller of ChooseLayout sets. Passing it says that the descriptor makes sense, not that a backend has it.
inline Status CheckLayout(const KvLayout& l) {
  if (l.page_tokens < 1 || l.page_tokens > 65536 || l.kv_heads < 1 || l.kv_heads > 65536 || l.num_pages < 1) {
    return InvalidArgument("KV layout: page_tokens " + std::to_string(l.page_tokens) + ", kv_heads " +
                           std::to_string(l.kv_heads) + ", num_pages " + std::to_string(l.num_pages) +
                           "; each must be 1 or more, the first two at most 65536");
  }
  if (l.offset_block < 0) return InvalidArgument("KV layout: offset_block is negative");
  OCTET_RETURN_IF_ERROR(CheckSide("K cache", l.k));
  if (!l.v_is_k) OCTET_RETURN_IF_ERROR(CheckSide("V cache", l.v));
  if (l.has_k_extra) {
    OCTET_RETURN_IF_ERROR(CheckSide("extra K cache", l.k_extra));
    if (l.k_extra.quantized() && !l.k_extra.dynamic()) {
      return Unimplemented("extra K cache: static scales have no place in a layer; scales per token (axis 3) do");
    }
  }
  return OkStatus();
}

// Channels of a row of K as append, gather and q see it.
inline int32_t KRowDim(const KvLayout& l) { return l.k.head_dim + (l.has_k_extra ? l.k_extra.head_dim : 0); }
inline int32_t VRowDim(const KvLayout& l) { return l.v_is_k ? l.k.head_dim : l.v.head_dim; }

// Fills order 0, bases, strides and layer_bytes with the canonical page of docs/numerics.md: per (page, KV head) K
// codes, V codes, K scales, K zeros, V scales, V zeros, then the same of k_extra, each run [page_tokens] rows and
// aligned to 128 bytes. Runs that a side does not have take nothing. Expects CheckLayout to have passed.
inline Status CanonicalLayout(KvLayout& l) {
  constexpr uint64_t kAlign = 128;
  const auto tokens = static_cast<uint64_t>(l.page_tokens);
  uint64_t head_bytes = 0;
  // At most 65536 rows of 576 channels of 4 bytes: no overflow below layer_bytes.
  const auto place = [&](uint64_t row_bytes, uint64_t* base, std::array<int64_t, 3>* stride) {
    *base = row_bytes > 0 ? head_bytes : 0;
    (*stride)[2] = static_cast<int64_t>(row_bytes);
    head_bytes += (row_bytes * tokens + kAlign - 1) / kAlign * kAlign;
  };
  const auto codes = [&](CacheSide& s) {
    s.order = 0;
    place(static_cast<uint64_t>(s.head_dim) * static_cast<uint64_t>(ElementBytes(s.data_type)), &s.data_base,
          &s.data_stride);
  };
  const auto scales = [&](CacheSide& s) {
    const auto groups = static_cast<uint64_t>(s.dynamic() ? s.groups() : 0);
    place(groups * static_cast<uint64_t>(ElementBytes(s.scale_type)), &s.scale_base, &s.scale_stride);
    const bool zeros = s.scheme == Scheme::kAsymmetric;
    place(zeros ? groups * static_cast<uint64_t>(ElementBytes(s.zero_type)) : 0, &s.zero_base, &s.zero_stride);
  };
  codes(l.k);
  if (!l.v_is_k) codes(l.v);
  scales(l.k);
  if (!l.v_is_k) scales(l.v);
  if (l.has_k_extra) {
    codes(l.k_extra);
    scales(l.k_extra);
  }
  const uint64_t page_bytes = head_bytes * static_cast<uint64_t>(l.kv_heads);  // < 2^16 * 2^30
  for (CacheSide* s : {&l.k, &l.v, &l.k_extra}) {
    for (auto* stride : {&s->data_stride, &s->scale_stride, &s->zero_stride}) {
      const bool present = (*stride)[2] > 0;
      (*stride)[0] = present ? static_cast<int64_t>(page_bytes) : 0;
      (*stride)[1] = present ? static_cast<int64_t>(head_bytes) : 0;
    }
  }
  if (l.v_is_k) l.v = l.k;
  uint64_t total = 0;
  if (__builtin_mul_overflow(page_bytes, static_cast<uint64_t>(l.num_pages), &total) || total > (1ull << 62)) {
    return InvalidArgument("KV layout: " + std::to_string(l.num_pages) + " pages of " + std::to_string(page_bytes) +
                           " bytes are more than 2^62 bytes");
  }
  l.layer_bytes = total;
  return OkStatus();
}

// Bytes of one canonical page, as ExportPages writes and ImportPages reads it.
inline StatusOr<uint64_t> CanonicalPageBytes(KvLayout l) {
  OCTET_RETURN_IF_ERROR(CanonicalLayout(l));
  return static_cast<uint64_t>(l.k.data_stride[0]);
}

// A static scale or zero: [1], [kv_heads] or [kv_heads][head_dim] by the side's axis; absent where it has no use.
inline Status CheckStaticScale(const char* name, const CacheSide& s, int32_t kv_heads, bool wanted, const Tensor* t) {
  if (!wanted) {
    return t == nullptr ? OkStatus()
                        : InvalidArgument(std::string(name) + " is set, but this layout keeps none outside the pages");
  }
  switch (s.axis) {
    case Axis::kTensor:
      return CheckTensor(name, t, DType::kF32, {1});
    case Axis::kHead:
      return CheckTensor(name, t, DType::kF32, {kv_heads});
    default:
      return CheckTensor(name, t, DType::kF32, {kv_heads, s.head_dim});
  }
}

// The tensors of one layer. q_heads: of the plan, for the sinks; 0 where none are read (append, gather).
inline Status CheckLayer(const KvLayout& l, const KvLayer& layer, int32_t q_heads) {
  if (layer.cache == nullptr) return InvalidArgument("layer " + std::to_string(layer.layer) + " has no cache buffer");
  if (layer.cache_offset % 128 != 0) {
    return InvalidArgument("layer " + std::to_string(layer.layer) + ": cache_offset is not a multiple of 128");
  }
  const auto needs = [](const CacheSide& s, bool zero) {
    return s.quantized() && !s.dynamic() && (!zero || s.scheme == Scheme::kAsymmetric);
  };
  const bool v = !l.v_is_k;
  OCTET_RETURN_IF_ERROR(CheckStaticScale("k_scale", l.k, l.kv_heads, needs(l.k, false), layer.k_scale));
  OCTET_RETURN_IF_ERROR(CheckStaticScale("k_zero", l.k, l.kv_heads, needs(l.k, true), layer.k_zero));
  OCTET_RETURN_IF_ERROR(CheckStaticScale("v_scale", l.v, l.kv_heads, v && needs(l.v, false), layer.v_scale));
  OCTET_RETURN_IF_ERROR(CheckStaticScale("v_zero", l.v, l.kv_heads, v && needs(l.v, true), layer.v_zero));
  if (layer.k_offset != nullptr) {
    if (l.offset_block == 0) return InvalidArgument("k_offset is set, but the layout's offset_block is 0");
    OCTET_RETURN_IF_ERROR(CheckTensor("k_offset", layer.k_offset, DType::kF32, {-1, l.kv_heads, KRowDim(l)}));
  }
  if (layer.sinks != nullptr && q_heads > 0) {
    OCTET_RETURN_IF_ERROR(CheckTensor("sinks", layer.sinks, DType::kF32, {q_heads}));
  }
  return OkStatus();
}

// The rows of append (`gather` false: k, and v unless v is k, are required) and gather (either may be missing).
inline Status CheckTokens(const KvLayout& l, const KvLayer& layer, const KvTokens& t, bool gather) {
  OCTET_RETURN_IF_ERROR(CheckTensor("slots", t.slots, DType::kI64, {-1}));
  const int64_t tokens = t.slots->shape[0];
  if (t.k != nullptr || !gather) {
    OCTET_RETURN_IF_ERROR(CheckTensor("k", t.k, DType::kF32, {tokens, l.kv_heads, KRowDim(l)}));
  }
  if (l.v_is_k) {
    if (t.v != nullptr) return InvalidArgument("v is set, but the layout says that V is K's row");
  } else if (t.v != nullptr || !gather) {
    OCTET_RETURN_IF_ERROR(CheckTensor("v", t.v, DType::kF32, {tokens, l.kv_heads, l.v.head_dim}));
  }
  if (t.positions != nullptr || layer.k_offset != nullptr) {
    OCTET_RETURN_IF_ERROR(CheckTensor("positions", t.positions, DType::kI32, {tokens}));
  }
  return OkStatus();
}

// ---- Attention

inline Status CheckAttentionDesc(const AttentionDesc& d) {
  if (d.kv == nullptr) return InvalidArgument("attention: the KV layout is missing");
  OCTET_RETURN_IF_ERROR(CheckLayout(*d.kv));
  if (d.q_heads < 1 || d.q_heads % d.kv->kv_heads != 0) {
    return InvalidArgument("attention: q_heads is " + std::to_string(d.q_heads) +
                           "; it must be a multiple of kv_heads " + std::to_string(d.kv->kv_heads));
  }
  if (d.window < 0) return InvalidArgument("attention: window is " + std::to_string(d.window) + "; 0 means none");
  if (!std::isfinite(d.scale)) return InvalidArgument("attention: scale is not finite");
  if (!std::isfinite(d.softcap) || d.softcap < 0.0f) {
    return InvalidArgument("attention: softcap is " + std::to_string(d.softcap) + "; it must be finite, 0 means none");
  }
  const auto is_float = [](DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; };
  if (!is_float(d.q_type) && d.q_type != DType::kOpaque) {
    return Unimplemented(std::string("attention: q of type ") + DTypeName(d.q_type) +
                         " is unknown; f32, f16, bf16 and opaque are possible");
  }
  if (!is_float(d.out_type)) {
    return Unimplemented(std::string("attention: output of type ") + DTypeName(d.out_type) +
                         " is unknown; f32, f16 and bf16 are possible");
  }
  const AttentionLimits& m = d.limits;
  if (m.requests < 1 || m.query_tokens < 1 || m.kv_len < 1 || m.pages < 1) {
    return InvalidArgument("attention: limits are " + std::to_string(m.requests) + " requests, " +
                           std::to_string(m.query_tokens) + " query tokens, kv_len " + std::to_string(m.kv_len) + ", " +
                           std::to_string(m.pages) + " pages; each must be 1 or more");
  }
  if (d.alibi_slopes != nullptr) {
    OCTET_RETURN_IF_ERROR(CheckTensor("alibi_slopes", d.alibi_slopes, DType::kF32, {d.q_heads}));
  }
  return OkStatus();
}

// A step against the plan's limits: counts, order of the offsets, pages that exist and cover what the window needs.
// ResourceExhausted beyond the limits. `window` of the plan, 0 none.
inline Status CheckBatch(const KvLayout& l, const AttentionLimits& limits, int32_t window, const Batch& b) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  if (b.requests < 0) return InvalidArgument("batch: requests is negative");
  if (b.requests > limits.requests) {
    return ResourceExhausted("batch: " + text(b.requests) + " requests, the plan was made for " +
                             text(limits.requests));
  }
  if (b.q_start == nullptr || b.page_start == nullptr || (b.requests > 0 && b.kv_len == nullptr)) {
    return InvalidArgument("batch: q_start, kv_len or page_start is NULL");
  }
  if (b.q_start[0] != 0 || b.page_start[0] != 0)
    return InvalidArgument("batch: q_start and page_start must begin with 0");
  for (int32_t r = 0; r < b.requests; ++r) {
    const int64_t queries = int64_t{b.q_start[r + 1]} - b.q_start[r];
    const int64_t pages = int64_t{b.page_start[r + 1]} - b.page_start[r];
    const int64_t begin = b.kv_begin != nullptr ? b.kv_begin[r] : 0;
    if (queries < 0) return InvalidArgument("batch: request " + text(r) + " has a q_start that falls");
    if (pages < 0) return InvalidArgument("batch: request " + text(r) + " has a page_start that falls");
    if (b.kv_len[r] < queries) {
      return InvalidArgument("batch: request " + text(r) + " has " + text(queries) + " query tokens but kv_len " +
                             text(b.kv_len[r]) + ", which counts them too");
    }
    if (b.kv_len[r] > limits.kv_len) {
      return ResourceExhausted("batch: request " + text(r) + " has kv_len " + text(b.kv_len[r]) +
                               ", the plan was made for " + text(limits.kv_len));
    }
    if (queries == 0) continue;
    // The first key that the first query may see.
    const int64_t first = window > 0 ? std::max<int64_t>(0, b.kv_len[r] - queries - window + 1) : 0;
    if (begin < 0 || begin > first || begin % l.page_tokens != 0) {
      return InvalidArgument("batch: request " + text(r) + " has kv_begin " + text(begin) +
                             "; it must be a multiple of page_tokens and at most " + text(first));
    }
    if (pages < (b.kv_len[r] - begin + l.page_tokens - 1) / l.page_tokens) {
      return InvalidArgument("batch: request " + text(r) + " has " + text(pages) + " pages for " +
                             text(b.kv_len[r] - begin) + " tokens");
    }
  }
  if (b.q_start[b.requests] > limits.query_tokens) {
    return ResourceExhausted("batch: " + text(b.q_start[b.requests]) + " query tokens, the plan was made for " +
                             text(limits.query_tokens));
  }
  const int32_t listed = b.page_start[b.requests];
  if (listed > limits.pages) {
    return ResourceExhausted("batch: " + text(listed) + " pages listed, the plan was made for " + text(limits.pages));
  }
  if (listed > 0 && b.pages == nullptr) return InvalidArgument("batch: pages is NULL");
  for (int32_t i = 0; i < listed; ++i) {
    if (b.pages[i] < 0 || b.pages[i] >= l.num_pages) {
      return InvalidArgument("batch: page " + text(b.pages[i]) + " does not exist; the cache has " + text(l.num_pages));
    }
  }
  return OkStatus();
}

// The tensors of run. An OPAQUE q is the backend's to check.
inline Status CheckAttentionArgs(const AttentionDesc& d, const KvLayout& l, const AttentionArgs& a) {
  if (a.out == nullptr) return InvalidArgument("out is NULL");
  const int64_t tokens = a.out->shape[0];
  OCTET_RETURN_IF_ERROR(CheckTensor("out", a.out, d.out_type, {tokens, d.q_heads, VRowDim(l)}));
  if (d.q_type == DType::kOpaque) {
    if (a.q == nullptr) return InvalidArgument("q is NULL");
  } else {
    OCTET_RETURN_IF_ERROR(CheckTensor("q", a.q, d.q_type, {tokens, d.q_heads, KRowDim(l)}));
  }
  if (a.lse != nullptr) OCTET_RETURN_IF_ERROR(CheckTensor("lse", a.lse, DType::kF32, {tokens, d.q_heads}));
  if (a.mask != nullptr) OCTET_RETURN_IF_ERROR(CheckTensor("mask", a.mask, DType::kI8, {tokens, -1}));
  return OkStatus();
}

// ---- Fused

// The query heads in packed rows of so many columns; 0 where no such row exists.
inline int64_t QkvQueryHeads(const KvLayout& l, int64_t columns) {
  const int64_t q = columns - int64_t{l.kv_heads} * (l.k.head_dim + l.v.head_dim);
  const int64_t group = int64_t{l.kv_heads} * l.k.head_dim;
  return q > 0 && q % group == 0 ? q / l.k.head_dim : 0;
}

// The tensors of a fused append; CheckLayer is the caller's. An OPAQUE q_out is the backend's to check.
inline Status CheckQkvAppend(const KvLayout& l, const QkvAppendArgs& a) {
  if (l.v_is_k || l.has_k_extra) {
    return Unimplemented(
        "qkv_append: a packed row has no place for a latent cache, where V is K's row or K has an extra part");
  }
  OCTET_RETURN_IF_ERROR(CheckTensor("qkv", a.qkv, DType::kF32, {-1, -1}));
  const int64_t tokens = a.qkv->shape[0], columns = a.qkv->shape[1], q_heads = QkvQueryHeads(l, columns);
  if (q_heads == 0) {
    return InvalidArgument("qkv has " + std::to_string(columns) + " columns, which are no heads of Q, K and V for " +
                           std::to_string(l.kv_heads) + " KV heads of " + std::to_string(l.k.head_dim) + " and " +
                           std::to_string(l.v.head_dim) + " channels");
  }
  if (a.bias != nullptr) OCTET_RETURN_IF_ERROR(CheckTensor("bias", a.bias, DType::kF32, {columns}));
  if (a.q_gain != nullptr) OCTET_RETURN_IF_ERROR(CheckTensor("q_gain", a.q_gain, DType::kF32, {l.k.head_dim}));
  if (a.k_gain != nullptr) OCTET_RETURN_IF_ERROR(CheckTensor("k_gain", a.k_gain, DType::kF32, {l.k.head_dim}));
  OCTET_RETURN_IF_ERROR(CheckTensor("cos_sin", a.cos_sin, DType::kF32, {-1, -1, 2}));
  if (2 * a.cos_sin->shape[1] > l.k.head_dim) {
    return InvalidArgument("cos_sin has " + std::to_string(a.cos_sin->shape[1]) +
                           " pairs, which do not fit into head_dim " + std::to_string(l.k.head_dim));
  }
  OCTET_RETURN_IF_ERROR(CheckTensor("positions", a.positions, DType::kI32, {tokens}));
  OCTET_RETURN_IF_ERROR(CheckTensor("slots", a.slots, DType::kI64, {tokens}));
  if (a.q_out == nullptr) return InvalidArgument("q_out is NULL");
  const DType q_type = TypeOf(*a.q_out);
  if (q_type == DType::kOpaque) return OkStatus();
  if (q_type != DType::kF32 && q_type != DType::kF16 && q_type != DType::kBF16) {
    return Unimplemented(std::string("q_out of type ") + DTypeName(q_type) +
                         " is unknown; f32, f16, bf16 and opaque are possible");
  }
  return CheckTensor("q_out", a.q_out, q_type, {tokens, q_heads, l.k.head_dim});
}

}  // namespace v1
}  // namespace octet

#endif  // OCTET_CHECKS_H_
