#include "core/kv/kv_options.h"

#include "absl/strings/str_cat.h"
#include "core/loader/device.h"

namespace octet {
namespace {

CacheSide MakeSide(const KvOptions& options, int32_t head_dim, bool is_k) {
  CacheSide side;
  side.data_type = options.dtype;
  side.head_dim = head_dim;
  if (options.dtype != DType::kI8) return side;
  side.scheme = Scheme::kSymmetric;
  side.axis = Axis::kToken;
  side.scale_type = DType::kF32;
  if (options.recipe == Int8Recipe::kGroup32) side.group = head_dim % 32 == 0 ? 32 : 8;
  const bool rotate = options.recipe == Int8Recipe::kDefault || options.recipe == Int8Recipe::kRotation;
  if (rotate && (is_k || head_dim >= kRotatedVHeadDim)) side.rotation = RotationBlock(head_dim);
  return side;
}

uint64_t SideScaleBytes(const CacheSide& side, uint64_t rows) {
  if (!side.dynamic()) return 0;
  return rows * static_cast<uint64_t>(side.groups()) *
         static_cast<uint64_t>(ElementBytes(side.scale_type) + ElementBytes(side.zero_type));
}

}  // namespace

absl::StatusOr<DType> ParseKvDType(std::string_view name, DType model_type) {
  if (name == "auto") return model_type;
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "int8") return DType::kI8;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown KV cache dtype '", std::string(name), "'; use auto, f32, f16, bf16 or int8"));
}

absl::StatusOr<Int8Recipe> ParseInt8Recipe(std::string_view name) {
  if (name == "default") return Int8Recipe::kDefault;
  if (name == "rotation") return Int8Recipe::kRotation;
  if (name == "plain") return Int8Recipe::kPlain;
  if (name == "group32") return Int8Recipe::kGroup32;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown INT8 recipe '", std::string(name), "'; use default, rotation, plain or group32"));
}

int32_t RotationBlock(int32_t head_dim) { return head_dim & -head_dim; }

absl::StatusOr<KvLayout> MakeKvLayout(const QuantOps& quant, const KvOptions& options, const KvShape& shape) {
  KvLayout layout;
  layout.page_tokens = options.page_tokens;
  layout.kv_heads = shape.kv_heads;
  layout.num_pages = shape.num_pages;
  layout.k = MakeSide(options, shape.k_head_dim, /*is_k=*/true);
  layout.v = MakeSide(options, shape.v_head_dim, /*is_k=*/false);
  if (shape.has_k_offsets) layout.offset_block = kOffsetBlock;
  if (Status status = quant.ChooseLayout(layout); !status.ok()) return ToAbsl(status);
  const Support support = quant.Supports(layout, DType::kF32);
  if (support.level == 0) {
    return absl::UnimplementedError(absl::StrCat("the device cannot keep a ", DTypeName(options.dtype),
                                                 " KV cache of this shape: ", support.reason));
  }
  return layout;
}

KvBytes CountKvBytes(const KvLayout& layout) {
  const uint64_t rows = static_cast<uint64_t>(layout.num_pages) * static_cast<uint64_t>(layout.page_tokens) *
                        static_cast<uint64_t>(layout.kv_heads);
  KvBytes bytes;
  for (const CacheSide* side : {&layout.k, &layout.v}) {
    bytes.data += rows * static_cast<uint64_t>(side->head_dim * ElementBytes(side->data_type));
    bytes.scales += SideScaleBytes(*side, rows);
  }
  bytes.padding = layout.layer_bytes - bytes.data - bytes.scales;
  return bytes;
}

}  // namespace octet
