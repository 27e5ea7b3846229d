// Descriptors of a paged KV cache: what a code means, where it lies, and which rows an operation touches. They mirror
// the C structs of abi.h field by field; the meaning of each field stands there, the numbers in docs/numerics.md.
#ifndef OCTET_KV_CACHE_H_
#define OCTET_KV_CACHE_H_

#include <array>
#include <cstdint>
#include <string>

#include "octet/tensor.h"

namespace octet {
inline namespace v1 {

enum class Scheme : int32_t {
  kNone = OCTET_SCHEME_NONE,
  kSymmetric = OCTET_SCHEME_SYMMETRIC,
  kAsymmetric = OCTET_SCHEME_ASYMMETRIC
};

enum class Axis : int32_t {
  kTensor = OCTET_AXIS_TENSOR,
  kHead = OCTET_AXIS_HEAD,
  kChannel = OCTET_AXIS_CHANNEL,
  kToken = OCTET_AXIS_TOKEN
};

// K or V.
struct CacheSide {
  DType data_type = DType::kF32;
  Scheme scheme = Scheme::kNone;
  Axis axis = Axis::kToken;
  int32_t group = 0;
  DType scale_type = DType::kNone;
  DType zero_type = DType::kNone;
  int32_t head_dim = 0;
  int32_t rotation = 0;
  int32_t order = 0;
  uint64_t data_base = 0, scale_base = 0, zero_base = 0;                // bytes from the layer's start
  std::array<int64_t, 3> data_stride{}, scale_stride{}, zero_stride{};  // bytes per page, KV head, token

  bool quantized() const { return scheme != Scheme::kNone; }
  bool dynamic() const { return quantized() && axis == Axis::kToken; }  // scales stand in the page
  int32_t groups() const { return group > 0 ? head_dim / group : 1; }
};

struct KvLayout {
  int32_t page_tokens = 0, kv_heads = 0, num_pages = 0;
  int32_t offset_block = 0;
  uint64_t layer_bytes = 0;
  CacheSide k, v;
  bool v_is_k = false;
  bool has_k_extra = false;
  CacheSide k_extra;
};

// One layer's cache. The pointers are borrowed for the call.
struct KvLayer {
  int32_t layer = 0;
  Buffer* cache = nullptr;
  uint64_t cache_offset = 0;
  const Tensor* k_offset = nullptr;
  const Tensor *k_scale = nullptr, *k_zero = nullptr, *v_scale = nullptr, *v_zero = nullptr;
  const Tensor* sinks = nullptr;
};

struct KvTokens {
  const Tensor* k = nullptr;
  const Tensor* v = nullptr;
  const Tensor* slots = nullptr;
  const Tensor* positions = nullptr;
};

// Answer to "could you?" (rule A10).
struct Support {
  int32_t level = 0;  // 0 no, 1 correct but slow, 2 native
  uint64_t workspace_bytes = 0, resident_bytes = 0, q_row_bytes = 0;
  std::string reason;  // required when level is 0
  std::string kernel;

  static Support No(std::string why) {
    Support s;
    s.reason = std::move(why);
    return s;
  }
  static Support Yes(int32_t support_level, std::string kernel_name, uint64_t workspace = 0) {
    Support s;
    s.level = support_level;
    s.kernel = std::move(kernel_name);
    s.workspace_bytes = workspace;
    return s;
  }
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_KV_CACHE_H_
