// Are tensors, caches and rows inside the buffers that they name? For any backend: nothing here looks into memory.
#ifndef OCTET_BOUNDS_H_
#define OCTET_BOUNDS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "octet/backend.hpp"
#include "octet/checks.h"

namespace octet {
inline namespace v1 {

// Every element inside the buffer, and the first one aligned. Expects rank, shape and strides as CheckTensor leaves
// them.
inline Status CheckBounds(const char* name, const Tensor& t) {
  const int64_t element = ElementBytes(TypeOf(t));
  if (element == 0) return InvalidArgument(std::string(name) + " has a type without elements");
  uint64_t last = 0;  // elements from the first to the last one
  bool overflow = false;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return OkStatus();
    uint64_t span = 0;
    overflow = overflow || __builtin_mul_overflow(t.shape[i] - 1, t.stride[i], &span) ||
               __builtin_add_overflow(last, span, &last);
  }
  uint64_t bytes = 0;
  overflow = overflow || __builtin_add_overflow(last, uint64_t{1}, &last) ||
             __builtin_mul_overflow(last, static_cast<uint64_t>(element), &bytes);
  if (overflow) return InvalidArgument(std::string(name) + " spans more than 2^64 bytes");
  if (t.offset % static_cast<uint64_t>(element) != 0) {
    return InvalidArgument(std::string(name) + " starts at byte " + std::to_string(t.offset) + ", not a multiple of " +
                           std::to_string(element));
  }
  return BufferOf(*t.buffer).CheckRange(name, t.offset, bytes);
}

// CheckTensor plus the bounds of the buffer: afterwards every element may be touched.
inline Status CheckTensorInside(const char* name, const Tensor* t, DType type, std::initializer_list<int64_t> dims) {
  OCTET_RETURN_IF_ERROR(CheckTensor(name, t, type, dims));
  return CheckBounds(name, *t);
}

// CheckLayer plus bounds: the whole cache of the layer and its tensors.
inline Status CheckLayerInside(const KvLayout& l, const KvLayer& layer, int32_t q_heads) {
  OCTET_RETURN_IF_ERROR(CheckLayer(l, layer, q_heads));
  OCTET_RETURN_IF_ERROR(BufferOf(*layer.cache).CheckRange("KV cache", layer.cache_offset, l.layer_bytes));
  const std::pair<const char*, const Tensor*> tensors[] = {
      {"k_offset", layer.k_offset}, {"k_scale", layer.k_scale}, {"k_zero", layer.k_zero},
      {"v_scale", layer.v_scale},   {"v_zero", layer.v_zero},   {"sinks", q_heads > 0 ? layer.sinks : nullptr}};
  for (const auto& [name, t] : tensors) {
    if (t != nullptr) OCTET_RETURN_IF_ERROR(CheckBounds(name, *t));
  }
  return OkStatus();
}

// CheckTokens plus bounds.
inline Status CheckTokensInside(const KvLayout& l, const KvLayer& layer, const KvTokens& t, bool gather) {
  OCTET_RETURN_IF_ERROR(CheckTokens(l, layer, t, gather));
  if (t.k != nullptr) OCTET_RETURN_IF_ERROR(CheckBounds("k", *t.k));
  if (t.v != nullptr) OCTET_RETURN_IF_ERROR(CheckBounds("v", *t.v));
  OCTET_RETURN_IF_ERROR(CheckBounds("slots", *t.slots));
  if (t.positions != nullptr) OCTET_RETURN_IF_ERROR(CheckBounds("positions", *t.positions));
  return OkStatus();
}

}  // namespace v1
}  // namespace octet

#endif  // OCTET_BOUNDS_H_
