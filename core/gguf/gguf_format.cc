#include "core/gguf/gguf_format.h"

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

struct ValueType {
  std::string_view name;
  uint32_t min_bytes;
};

constexpr ValueType kValueTypes[kGgufTypes] = {
    {"uint8", 1}, {"int8", 1},   {"uint16", 2}, {"int16", 2},  {"uint32", 4}, {"int32", 4},   {"float32", 4},
    {"bool", 1},  {"string", 8}, {"array", 12}, {"uint64", 8}, {"int64", 8},  {"float64", 8},
};

struct TensorType {
  uint32_t number;
  std::string_view name;
  DType dtype;  // kOpaque: octet does not read it
};

constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {30, "BF16", DType::kBF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    {4, "Q4_2", DType::kOpaque},
    {5, "Q4_3", DType::kOpaque},
    {9, "Q8_1", DType::kOpaque},
    {10, "Q2_K", DType::kOpaque},
    {11, "Q3_K", DType::kOpaque},
    {15, "Q8_K", DType::kOpaque},
    {16, "IQ2_XXS", DType::kOpaque},
    {17, "IQ2_XS", DType::kOpaque},
    {18, "IQ3_XXS", DType::kOpaque},
    {19, "IQ1_S", DType::kOpaque},
    {20, "IQ4_NL", DType::kOpaque},
    {21, "IQ3_S", DType::kOpaque},
    {22, "IQ2_S", DType::kOpaque},
    {23, "IQ4_XS", DType::kOpaque},
    {24, "I8", DType::kOpaque},
    {25, "I16", DType::kOpaque},
    {26, "I32", DType::kOpaque},
    {27, "I64", DType::kOpaque},
    {28, "F64", DType::kOpaque},
    {29, "IQ1_M", DType::kOpaque},
    {31, "Q4_0_4_4", DType::kOpaque},
    {32, "Q4_0_4_8", DType::kOpaque},
    {33, "Q4_0_8_8", DType::kOpaque},
    {34, "TQ1_0", DType::kOpaque},
    {35, "TQ2_0", DType::kOpaque},
    {36, "IQ4_NL_4_4", DType::kOpaque},
    {37, "IQ4_NL_4_8", DType::kOpaque},
    {38, "IQ4_NL_8_8", DType::kOpaque},
    {39, "MXFP4", DType::kOpaque},
    {40, "NVFP4", DType::kOpaque},
    {41, "Q1_0", DType::kOpaque},
};

const TensorType* FindTensorType(uint32_t number) {
  for (const TensorType& type : kTensorTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

}  // namespace

std::string_view GgufTypeName(GgufType type) { return kValueTypes[static_cast<uint32_t>(type)].name; }

uint64_t GgufTypeMinBytes(GgufType type) { return kValueTypes[static_cast<uint32_t>(type)].min_bytes; }

bool IsGgufInteger(GgufType type) {
  switch (type) {
    case GgufType::kFloat32:
    case GgufType::kFloat64:
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
      return false;
    default:
      return true;
  }
}

std::optional<DType> DTypeFromGgml(uint32_t ggml_type) {
  const TensorType* type = FindTensorType(ggml_type);
  if (type == nullptr || type->dtype == DType::kOpaque) return std::nullopt;
  return type->dtype;
}

std::string GgmlTypeName(uint32_t ggml_type) {
  const TensorType* type = FindTensorType(ggml_type);
  return type == nullptr ? absl::StrCat("number ", ggml_type) : std::string(type->name);
}

std::string ReadableGgmlTypes() {
  std::string names;
  for (const TensorType& type : kTensorTypes) {
    if (type.dtype == DType::kOpaque) continue;
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace octet
