// Which KV cache was asked for, and the page layout that it becomes on a device.
#ifndef OCTET_CORE_KV_KV_OPTIONS_H_
#define OCTET_CORE_KV_KV_OPTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "octet/kv_cache.h"
#include "octet/quant_ops.h"

namespace octet {

// How K and V become INT8. kDefault is the product (docs/numerics.md); the others are what it is measured against.
enum class Int8Recipe {
  kDefault,   // K offsets where the weights ask for them, rotation, one scale per (token, head)
  kRotation,  // rotation alone
  kPlain,     // one scale per (token, head), nothing else
  kGroup32,   // one scale per 32 channels, as llama.cpp's q8_0 has; per 8 where 32 does not divide the head dim
};

struct KvOptions {
  DType dtype = DType::kI8;  // F32, F16, BF16 or I8
  Int8Recipe recipe = Int8Recipe::kDefault;
  int32_t page_tokens = 64;
};

// Positions that share one row of the K offset table, whatever the page size.
inline constexpr int32_t kOffsetBlock = 64;

// "auto", "f32", "f16", "bf16", "int8"; `model_type` is what auto means: the model's own 16-bit type. InvalidArgument
// for another name.
absl::StatusOr<DType> ParseKvDType(std::string_view name, DType model_type);
// "default", "rotation", "plain", "group32"; InvalidArgument for another name.
absl::StatusOr<Int8Recipe> ParseInt8Recipe(std::string_view name);

// The largest power of two that divides head_dim: the Hadamard block of the default recipe.
int32_t RotationBlock(int32_t head_dim);

// Shape of a cache: what a model and the command line say.
struct KvShape {
  int32_t kv_heads = 0, k_head_dim = 0, v_head_dim = 0;
  int32_t num_pages = 0;
  bool has_k_offsets = false;  // some layer has a K offset table
};

// The layout on the device behind `quant`; InvalidArgument or Unimplemented with the reason where there is none.
absl::StatusOr<KvLayout> MakeKvLayout(const QuantOps& quant, const KvOptions& options, const KvShape& shape);

// What the bytes of one layer are for; data + scales + padding = layout.layer_bytes.
struct KvBytes {
  uint64_t data = 0, scales = 0, padding = 0;
  uint64_t total() const { return data + scales + padding; }
};
KvBytes CountKvBytes(const KvLayout& layout);

}  // namespace octet

#endif  // OCTET_CORE_KV_KV_OPTIONS_H_
