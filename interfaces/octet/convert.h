// Between the C structs of abi.h and the C++ value types beside it, in both directions. Used by plugin.hpp and by the
// loader; backends and core need not look here.
//
// Reading follows the rules of abi.h: a struct shorter than its first release is INVALID_ARGUMENT (A2), a tail that is
// unknown and not zero is UNIMPLEMENTED (A3), unknown enumeration values survive as they are and are refused by the
// checks (A5). Nothing here allocates unless it fails, except for a weight of more than 8 parts. Writing keeps pointers
// to the C++ side, so the C structs live no longer than what they were made of.
#ifndef OCTET_CONVERT_H_
#define OCTET_CONVERT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/abi.h"
#include "octet/attention_backend.h"
#include "octet/dense_ops.h"
#include "octet/fused_ops.h"
#include "octet/kv_cache.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {
namespace convert {

// The size of a struct in its first release. A struct that grows gets a specialization with the old number.
template <typename T>
inline constexpr size_t kFirstSize = sizeof(T);

// No descriptor comes near this; a larger struct_size is garbage, and looking at its tail would leave the caller's
// memory.
inline constexpr size_t kLargestStruct = 4096;

// Copies what both sides know of `in` into `out`, the rest zero.
template <typename T>
Status ReadStruct(const char* name, const T* in, T* out, size_t first_size = kFirstSize<T>) {
  if (in == nullptr) return InvalidArgument(std::string(name) + " is NULL");
  const size_t size = in->struct_size;
  if (size < first_size || size > kLargestStruct) {
    return InvalidArgument(std::string(name) + " has struct_size " + std::to_string(size) +
                           "; this ABI version knows " + std::to_string(first_size) + " bytes or more");
  }
  *out = T{};
  std::memcpy(out, in, std::min(size, sizeof(T)));
  const char* bytes = reinterpret_cast<const char*>(in);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return Unimplemented(std::string(name) + " sets a field at byte " + std::to_string(i) +
                           " that this side does not know; it was built for an older ABI minor version");
    }
  }
  return OkStatus();
}

// A caller's out struct: long enough to be written?
template <typename T>
Status CheckOut(const char* name, const T* out) {
  if (out == nullptr) return InvalidArgument(std::string(name) + " is NULL");
  if (out->struct_size < kFirstSize<T>) {
    return InvalidArgument(std::string(name) + " has struct_size " + std::to_string(out->struct_size) +
                           "; this ABI version writes " + std::to_string(kFirstSize<T>) + " bytes");
  }
  return OkStatus();
}

// Writes no further than the caller's struct_size, which stays (A4).
template <typename T>
void WriteStruct(T value, T* out) {
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min<size_t>(out->struct_size, sizeof(T)));
}

inline Status ReadBool(const char* name, int32_t value, bool* out) {
  if (value != 0 && value != 1) {
    return Unimplemented(std::string(name) + " is " + std::to_string(value) + "; known values are 0 and 1");
  }
  *out = value == 1;
  return OkStatus();
}

inline Status ReadReserved(const char* name, uint32_t value) {
  return value == 0 ? OkStatus()
                    : Unimplemented(std::string(name) + ".reserved is not 0; this side does not know the field");
}

template <typename T>
T Sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

// "address", "thread" or "none": what this code was compiled with. Libraries of one process must agree.
constexpr const char* BuildSanitizer() {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  return "address";
#elif __has_feature(thread_sanitizer)
  return "thread";
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
  return "address";
#elif defined(__SANITIZE_THREAD__)
  return "thread";
#else
  return "none";
#endif
}

// ---- Text

// The longest prefix of `text` within `limit` bytes that does not cut a UTF-8 character.
inline size_t CutUtf8(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  size_t end = limit;
  for (int back = 0; back < 4 && end > 0; ++back, --end) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0) != 0x80) return end;  // a character starts at `end`
  }
  return limit;  // not UTF-8
}

// NUL-terminated, the rest zero.
inline void WriteText(std::string_view text, char* out, size_t capacity) {
  if (capacity == 0) return;
  const size_t n = CutUtf8(text, capacity - 1);
  if (n > 0) std::memcpy(out, text.data(), n);
  std::memset(out + n, 0, capacity - n);
}

template <size_t n>
std::string ReadText(const char (&text)[n]) {
  return std::string(text, strnlen(text, n));
}

// ---- Status

// `a` and `b` are joined without allocation, so that running out of memory can be told. Returns `code`.
inline octet_code WriteError(octet_code code, std::string_view a, std::string_view b, octet_error* error) {
  if (error == nullptr) return code;
  octet_error full{};
  full.struct_size = error->struct_size;
  full.code = code;
  constexpr size_t kCapacity = sizeof full.message;
  const size_t size = std::min<size_t>(error->struct_size, sizeof full);
  const size_t room = size > offsetof(octet_error, message) ? size - offsetof(octet_error, message) - 1 : 0;
  char text[2 * kCapacity];
  const size_t first = std::min(a.size(), kCapacity), second = std::min(b.size(), kCapacity);
  std::memcpy(text, a.data(), first);
  if (second > 0) std::memcpy(text + first, b.data(), second);
  const size_t n = CutUtf8({text, first + second}, room);
  std::memcpy(full.message, text, n);
  full.message_len = static_cast<uint32_t>(n);
  std::memcpy(error, &full, size);
  return code;
}

inline octet_code WriteStatus(const Status& status, octet_error* error) {
  if (status.ok()) return OCTET_OK;
  return WriteError(static_cast<octet_code>(status.code()), status.message(), {}, error);
}

// What a table function answered. `error` is the caller's, zeroed before the call.
inline Status ReadStatus(octet_code code, const octet_error& error) {
  if (code == OCTET_OK) return OkStatus();
  std::string text = ReadText(error.message);
  if (text.empty()) text = "the backend failed with code " + std::to_string(code) + " and gave no reason";
  switch (code) {
    case OCTET_CANCELLED:
    case OCTET_UNKNOWN:
    case OCTET_INVALID_ARGUMENT:
    case OCTET_NOT_FOUND:
    case OCTET_RESOURCE_EXHAUSTED:
    case OCTET_FAILED_PRECONDITION:
    case OCTET_OUT_OF_RANGE:
    case OCTET_UNIMPLEMENTED:
    case OCTET_INTERNAL:
    case OCTET_UNAVAILABLE:
    case OCTET_DATA_LOSS:
      return {static_cast<Code>(code), std::move(text)};
    default:
      return {Code::kUnknown, std::move(text)};
  }
}

// ---- Support

inline void WriteSupport(const Support& in, octet_support* out) {
  octet_support s = Sized<octet_support>();
  s.level = in.level;
  s.workspace_bytes = in.workspace_bytes;
  s.resident_bytes = in.resident_bytes;
  s.q_row_bytes = in.q_row_bytes;
  WriteText(in.reason, s.reason, sizeof s.reason);
  WriteText(in.kernel, s.kernel, sizeof s.kernel);
  WriteStruct(s, out);
}

// A descriptor that is refused counts as "no", with its sentence. Another error is told as what it is: no answer.
inline Support ReadSupport(octet_code code, const octet_error& error, const octet_support& in) {
  if (code == OCTET_UNIMPLEMENTED || code == OCTET_INVALID_ARGUMENT) {
    return Support::No(ReadStatus(code, error).message());
  }
  if (code != OCTET_OK) {
    return Support::No("the backend could not say (code " + std::to_string(code) +
                       "): " + ReadStatus(code, error).message());
  }
  Support out;
  out.level = in.level;
  out.workspace_bytes = in.workspace_bytes;
  out.resident_bytes = in.resident_bytes;
  out.q_row_bytes = in.q_row_bytes;
  out.reason = ReadText(in.reason);
  out.kernel = ReadText(in.kernel);
  if (in.level < 0 || in.level > 2) {
    return Support::No("the backend answered with support level " + std::to_string(in.level) +
                       "; known are 0, 1 and 2");
  }
  if (out.level == 0 && out.reason.empty()) out.reason = "the backend says no and gives no reason";
  return out;
}

// ---- The cache

inline octet_cache_side ToC(const CacheSide& in) {
  octet_cache_side out = Sized<octet_cache_side>();
  out.data_type = static_cast<octet_dtype>(in.data_type);
  out.scheme = static_cast<int32_t>(in.scheme);
  out.axis = static_cast<int32_t>(in.axis);
  out.group = in.group;
  out.scale_type = static_cast<octet_dtype>(in.scale_type);
  out.zero_type = static_cast<octet_dtype>(in.zero_type);
  out.head_dim = in.head_dim;
  out.rotation = in.rotation;
  out.order = in.order;
  out.data_base = in.data_base;
  out.scale_base = in.scale_base;
  out.zero_base = in.zero_base;
  std::copy_n(in.data_stride.begin(), 3, out.data_stride);
  std::copy_n(in.scale_stride.begin(), 3, out.scale_stride);
  std::copy_n(in.zero_stride.begin(), 3, out.zero_stride);
  return out;
}

inline Status FromC(const octet_cache_side* in, CacheSide* out) {
  octet_cache_side s;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_cache_side", in, &s));
  out->data_type = static_cast<DType>(s.data_type);
  out->scheme = static_cast<Scheme>(s.scheme);
  out->axis = static_cast<Axis>(s.axis);
  out->group = s.group;
  out->scale_type = static_cast<DType>(s.scale_type);
  out->zero_type = static_cast<DType>(s.zero_type);
  out->head_dim = s.head_dim;
  out->rotation = s.rotation;
  out->order = s.order;
  out->data_base = s.data_base;
  out->scale_base = s.scale_base;
  out->zero_base = s.zero_base;
  std::copy_n(s.data_stride, 3, out->data_stride.begin());
  std::copy_n(s.scale_stride, 3, out->scale_stride.begin());
  std::copy_n(s.zero_stride, 3, out->zero_stride.begin());
  return OkStatus();
}

// Points into itself: stays where it was made.
struct CKvLayout {
  octet_kv_layout layout = Sized<octet_kv_layout>();
  octet_cache_side k, v, k_extra;

  explicit CKvLayout(const KvLayout& in) : k(ToC(in.k)), v(ToC(in.v)), k_extra(ToC(in.k_extra)) {
    layout.page_tokens = in.page_tokens;
    layout.kv_heads = in.kv_heads;
    layout.num_pages = in.num_pages;
    layout.offset_block = in.offset_block;
    layout.layer_bytes = in.layer_bytes;
    layout.k = &k;
    layout.v = in.v_is_k ? &k : &v;
    layout.k_extra = in.has_k_extra ? &k_extra : nullptr;
  }
  CKvLayout(const CKvLayout&) = delete;
  CKvLayout& operator=(const CKvLayout&) = delete;
};

// With v_is_k, out->v equals out->k.
inline Status FromC(const octet_kv_layout* in, const octet_cache_side* k, const octet_cache_side* v,
                    const octet_cache_side* k_extra, KvLayout* out) {
  octet_kv_layout l;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_kv_layout", in, &l));
  OCTET_RETURN_IF_ERROR(ReadReserved("octet_kv_layout", static_cast<uint32_t>(l.reserved)));
  out->page_tokens = l.page_tokens;
  out->kv_heads = l.kv_heads;
  out->num_pages = l.num_pages;
  out->offset_block = l.offset_block;
  out->layer_bytes = l.layer_bytes;
  if (k == nullptr || v == nullptr) return InvalidArgument("octet_kv_layout has no k or no v side (NULL)");
  OCTET_RETURN_IF_ERROR(FromC(k, &out->k));
  out->v_is_k = v == k;
  if (out->v_is_k) {
    out->v = out->k;
  } else {
    OCTET_RETURN_IF_ERROR(FromC(v, &out->v));
  }
  out->has_k_extra = k_extra != nullptr;
  if (out->has_k_extra) OCTET_RETURN_IF_ERROR(FromC(k_extra, &out->k_extra));
  return OkStatus();
}

inline Status FromC(const octet_kv_layout* in, KvLayout* out) {
  octet_kv_layout l;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_kv_layout", in, &l));
  return FromC(in, l.k, l.v, l.k_extra, out);
}

// choose_layout's answer: order, bases and strides of one side.
inline void WritePlacement(const CacheSide& in, octet_cache_side* out) {
  octet_cache_side c = ToC(in);
  out->order = c.order;
  out->data_base = c.data_base;
  out->scale_base = c.scale_base;
  out->zero_base = c.zero_base;
  std::copy_n(c.data_stride, 3, out->data_stride);
  std::copy_n(c.scale_stride, 3, out->scale_stride);
  std::copy_n(c.zero_stride, 3, out->zero_stride);
}

inline octet_kv_layer ToC(const KvLayer& in) {
  octet_kv_layer out = Sized<octet_kv_layer>();
  out.layer = in.layer;
  out.cache = in.cache;
  out.cache_offset = in.cache_offset;
  out.k_offset = in.k_offset;
  out.k_scale = in.k_scale;
  out.k_zero = in.k_zero;
  out.v_scale = in.v_scale;
  out.v_zero = in.v_zero;
  out.sinks = in.sinks;
  return out;
}

inline Status FromC(const octet_kv_layer* in, KvLayer* out) {
  octet_kv_layer l;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_kv_layer", in, &l));
  *out = {.layer = l.layer,
          .cache = l.cache,
          .cache_offset = l.cache_offset,
          .k_offset = l.k_offset,
          .k_scale = l.k_scale,
          .k_zero = l.k_zero,
          .v_scale = l.v_scale,
          .v_zero = l.v_zero,
          .sinks = l.sinks};
  return OkStatus();
}

inline octet_kv_tokens ToC(const KvTokens& in) {
  octet_kv_tokens out = Sized<octet_kv_tokens>();
  out.k = in.k;
  out.v = in.v;
  out.slots = in.slots;
  out.positions = in.positions;
  return out;
}

inline Status FromC(const octet_kv_tokens* in, KvTokens* out) {
  octet_kv_tokens t;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_kv_tokens", in, &t));
  OCTET_RETURN_IF_ERROR(ReadReserved("octet_kv_tokens", static_cast<uint32_t>(t.reserved)));
  *out = {.k = t.k, .v = t.v, .slots = t.slots, .positions = t.positions};
  return OkStatus();
}

// ---- Attention

// Points into itself: stays where it was made. Needs in.kv.
struct CAttentionDesc {
  octet_attention_desc desc = Sized<octet_attention_desc>();
  octet_limits limits = Sized<octet_limits>();
  CKvLayout kv;

  explicit CAttentionDesc(const AttentionDesc& in) : kv(*in.kv) {
    desc.q_heads = in.q_heads;
    desc.causal = in.causal ? 1 : 0;
    desc.window = in.window;
    desc.scale = in.scale;
    desc.softcap = in.softcap;
    desc.q_type = static_cast<octet_dtype>(in.q_type);
    desc.out_type = static_cast<octet_dtype>(in.out_type);
    desc.compute = in.exact ? OCTET_COMPUTE_EXACT : OCTET_COMPUTE_BEST;
    desc.kv = &kv.layout;
    desc.limits = &limits;
    desc.alibi_slopes = in.alibi_slopes;
    limits.requests = in.limits.requests;
    limits.query_tokens = in.limits.query_tokens;
    limits.kv_len = in.limits.kv_len;
    limits.pages = in.limits.pages;
  }
};

// `out->kv` points to `kv`.
inline Status FromC(const octet_attention_desc* in, KvLayout* kv, AttentionDesc* out) {
  octet_attention_desc d;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_attention_desc", in, &d));
  OCTET_RETURN_IF_ERROR(ReadReserved("octet_attention_desc", static_cast<uint32_t>(d.reserved)));
  octet_limits l;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_limits", d.limits, &l));
  OCTET_RETURN_IF_ERROR(ReadReserved("octet_limits", static_cast<uint32_t>(l.reserved)));
  OCTET_RETURN_IF_ERROR(FromC(d.kv, kv));
  OCTET_RETURN_IF_ERROR(ReadBool("octet_attention_desc.causal", d.causal, &out->causal));
  OCTET_RETURN_IF_ERROR(ReadBool("octet_attention_desc.compute", d.compute, &out->exact));
  out->q_heads = d.q_heads;
  out->window = d.window;
  out->scale = d.scale;
  out->softcap = d.softcap;
  out->q_type = static_cast<DType>(d.q_type);
  out->out_type = static_cast<DType>(d.out_type);
  out->kv = kv;
  out->limits = {.requests = l.requests, .query_tokens = l.query_tokens, .kv_len = l.kv_len, .pages = l.pages};
  out->alibi_slopes = d.alibi_slopes;
  return OkStatus();
}

inline octet_batch ToC(const Batch& in) {
  octet_batch out = Sized<octet_batch>();
  out.requests = in.requests;
  out.q_start = in.q_start;
  out.kv_len = in.kv_len;
  out.kv_begin = in.kv_begin;
  out.page_start = in.page_start;
  out.pages = in.pages;
  return out;
}

inline Status FromC(const octet_batch* in, Batch* out) {
  octet_batch b;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_batch", in, &b));
  *out = {.requests = b.requests,
          .q_start = b.q_start,
          .kv_len = b.kv_len,
          .kv_begin = b.kv_begin,
          .page_start = b.page_start,
          .pages = b.pages};
  return OkStatus();
}

inline octet_attention_args ToC(const AttentionArgs& in) {
  octet_attention_args out = Sized<octet_attention_args>();
  out.q = in.q;
  out.out = in.out;
  out.lse = in.lse;
  out.mask = in.mask;
  return out;
}

inline Status FromC(const octet_attention_args* in, AttentionArgs* out) {
  octet_attention_args a;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_attention_args", in, &a));
  OCTET_RETURN_IF_ERROR(ReadReserved("octet_attention_args", static_cast<uint32_t>(a.reserved)));
  *out = {.q = a.q, .out = a.out, .lse = a.lse, .mask = a.mask};
  return OkStatus();
}

// ---- Dense

inline constexpr int32_t kMostWeightParts = 4096;

// Parts of a weight, without allocation up to 8 of them (packed QKV has 3).
template <typename T>
class PartList {
 public:
  void Resize(size_t n) {
    size_ = n;
    if (n > few_.size()) many_.resize(n);
  }
  T* data() { return size_ > few_.size() ? many_.data() : few_.data(); }
  T& operator[](size_t i) { return data()[i]; }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
  std::array<T, 8> few_{};
  std::vector<T> many_;
};

// Points into itself: stays where it was made.
class CWeightDesc {
 public:
  explicit CWeightDesc(const WeightDesc& in) {
    parts_.Resize(in.parts.size());
    pointers_.Resize(in.parts.size());
    for (size_t i = 0; i < in.parts.size(); ++i) {
      const WeightPart& part = in.parts[i];
      octet_weight_part c = Sized<octet_weight_part>();
      c.dtype = static_cast<octet_dtype>(part.dtype);
      c.rows = part.rows;
      c.row_stride_bytes = part.row_stride_bytes;
      c.data = part.data;
      c.row_scale = part.row_scale;
      parts_[i] = c;
      pointers_[i] = &parts_[i];
    }
    desc.num_parts = static_cast<int32_t>(in.parts.size());
    desc.columns = in.columns;
    desc.parts = pointers_.data();
    if (in.linear) desc.use |= OCTET_WEIGHT_LINEAR;
    if (in.embed) desc.use |= OCTET_WEIGHT_EMBED;
    if (in.exact) desc.use |= OCTET_WEIGHT_EXACT;
    desc.max_tokens = in.max_tokens;
    desc.x_type = static_cast<octet_dtype>(in.x_type);
    desc.y_type = static_cast<octet_dtype>(in.y_type);
  }
  CWeightDesc(const CWeightDesc&) = delete;
  CWeightDesc& operator=(const CWeightDesc&) = delete;

  octet_weight_desc desc = Sized<octet_weight_desc>();

 private:
  PartList<octet_weight_part> parts_;
  PartList<const octet_weight_part*> pointers_;
};

// `out->parts` points into `parts`.
inline Status FromC(const octet_weight_desc* in, PartList<WeightPart>* parts, WeightDesc* out) {
  octet_weight_desc d;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_weight_desc", in, &d));
  if (d.num_parts < 1 || d.num_parts > kMostWeightParts) {
    return InvalidArgument("octet_weight_desc.num_parts is " + std::to_string(d.num_parts) + "; 1 to " +
                           std::to_string(kMostWeightParts) + " are possible");
  }
  if (d.parts == nullptr) return InvalidArgument("octet_weight_desc.parts is NULL");
  constexpr uint32_t kKnown = OCTET_WEIGHT_LINEAR | OCTET_WEIGHT_EMBED | OCTET_WEIGHT_EXACT;
  if ((d.use & ~kKnown) != 0) {
    return Unimplemented("octet_weight_desc.use has unknown bits: " + std::to_string(d.use));
  }
  parts->Resize(static_cast<size_t>(d.num_parts));
  for (size_t i = 0; i < parts->size(); ++i) {
    octet_weight_part p;
    OCTET_RETURN_IF_ERROR(ReadStruct("octet_weight_part", d.parts[i], &p));
    (*parts)[i] = {.dtype = static_cast<DType>(p.dtype),
                   .rows = p.rows,
                   .row_stride_bytes = p.row_stride_bytes,
                   .data = p.data,
                   .row_scale = p.row_scale};
  }
  out->columns = d.columns;
  out->parts = std::span<const WeightPart>(parts->data(), parts->size());
  out->linear = (d.use & OCTET_WEIGHT_LINEAR) != 0;
  out->embed = (d.use & OCTET_WEIGHT_EMBED) != 0;
  out->exact = (d.use & OCTET_WEIGHT_EXACT) != 0;
  out->max_tokens = d.max_tokens;
  out->x_type = static_cast<DType>(d.x_type);
  out->y_type = static_cast<DType>(d.y_type);
  return OkStatus();
}

inline octet_linear_args ToC(const LinearArgs& in) {
  octet_linear_args out = Sized<octet_linear_args>();
  out.norm_eps = in.norm_eps;
  out.x = in.x;
  out.y = in.y;
  out.bias = in.bias;
  out.norm_gain = in.norm_gain;
  out.residual = in.residual;
  out.w = in.w;
  out.workspace = in.workspace;
  out.workspace_offset = in.workspace_offset;
  return out;
}

inline Status FromC(const octet_linear_args* in, LinearArgs* out) {
  octet_linear_args a;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_linear_args", in, &a));
  *out = {.x = a.x,
          .y = a.y,
          .bias = a.bias,
          .norm_gain = a.norm_gain,
          .norm_eps = a.norm_eps,
          .residual = a.residual,
          .w = a.w,
          .workspace = a.workspace,
          .workspace_offset = a.workspace_offset};
  return OkStatus();
}

// ---- Fused

inline octet_qkv_append_args ToC(const QkvAppendArgs& in) {
  octet_qkv_append_args out = Sized<octet_qkv_append_args>();
  out.rope_interleaved = in.rope_interleaved ? 1 : 0;
  out.qk_norm_eps = in.qk_norm_eps;
  out.qkv = in.qkv;
  out.bias = in.bias;
  out.q_gain = in.q_gain;
  out.k_gain = in.k_gain;
  out.cos_sin = in.cos_sin;
  out.positions = in.positions;
  out.slots = in.slots;
  out.q_out = in.q_out;
  return out;
}

inline Status FromC(const octet_qkv_append_args* in, QkvAppendArgs* out) {
  octet_qkv_append_args a;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_qkv_append_args", in, &a));
  OCTET_RETURN_IF_ERROR(ReadReserved("octet_qkv_append_args", static_cast<uint32_t>(a.reserved)));
  *out = {.qk_norm_eps = a.qk_norm_eps,
          .qkv = a.qkv,
          .bias = a.bias,
          .q_gain = a.q_gain,
          .k_gain = a.k_gain,
          .cos_sin = a.cos_sin,
          .positions = a.positions,
          .slots = a.slots,
          .q_out = a.q_out};
  return ReadBool("octet_qkv_append_args.rope_interleaved", a.rope_interleaved, &out->rope_interleaved);
}

inline octet_sample_args ToC(const SampleArgs& in) {
  octet_sample_args out = Sized<octet_sample_args>();
  out.softcap = in.softcap;
  out.logits = in.logits;
  out.params = in.params;
  out.history = in.history;
  out.ids = in.ids;
  out.logprobs = in.logprobs;
  return out;
}

inline Status FromC(const octet_sample_args* in, SampleArgs* out) {
  octet_sample_args a;
  OCTET_RETURN_IF_ERROR(ReadStruct("octet_sample_args", in, &a));
  *out = {.softcap = a.softcap,
          .logits = a.logits,
          .params = a.params,
          .history = a.history,
          .ids = a.ids,
          .logprobs = a.logprobs};
  return OkStatus();
}

}  // namespace convert
}  // namespace v1
}  // namespace octet

#endif  // OCTET_CONVERT_H_
