// Does a weight make sense, and is it of types that GGUF has? For backends that take all of them.
#ifndef OCTET_WEIGHT_CHECKS_H_
#define OCTET_WEIGHT_CHECKS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "octet/dense_ops.h"
#include "octet/gguf_blocks.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {

constexpr int64_t kMostWeightBytes = int64_t{1} << 48;  // no machine holds more, and no size below overflows

// Everything but the data.
inline Status CheckWeightDesc(const WeightDesc& d) {
  if (d.columns < 1 || d.columns > (int64_t{1} << 31)) {
    return InvalidArgument("weight: columns is " + std::to_string(d.columns) + "; it must be 1 to 2^31");
  }
  if (d.parts.empty()) return InvalidArgument("weight: there are no parts");
  if (!d.linear && !d.embed) return InvalidArgument("weight: use names neither linear nor embed");
  if (d.max_tokens < 1)
    return InvalidArgument("weight: max_tokens is " + std::to_string(d.max_tokens) + "; it must be 1 or more");
  for (const auto& [name, type] : {std::pair{"x", d.x_type}, std::pair{"y", d.y_type}}) {
    if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16 && (d.linear || name[0] == 'y')) {
      return Unimplemented(std::string("weight: ") + name + " of type " + DTypeName(type) +
                           " is not supported in linear layers; f32, f16 and bf16 are");
    }
  }
  int64_t rows = 0;
  for (const WeightPart& part : d.parts) {
    const GgufBlock block = GgufBlockOf(part.dtype);
    if (block.elements == 0) {
      return Unimplemented(std::string("weights of type ") + DTypeName(part.dtype) + " (" +
                           std::to_string(static_cast<int32_t>(part.dtype)) +
                           ") are not supported; f32, f16, bf16 and the GGUF types q4_0, q4_1, q5_0, q5_1, q8_0, q4_K, "
                           "q5_K and q6_K are");
    }
    if (d.columns % block.elements != 0) {
      return InvalidArgument("weight: " + std::to_string(d.columns) + " columns are no multiple of the " +
                             std::to_string(block.elements) + " weights in a block of " + DTypeName(part.dtype));
    }
    if (part.rows < 1 || part.rows > (int64_t{1} << 31)) {
      return InvalidArgument("weight: a part has " + std::to_string(part.rows) + " rows; it must have 1 to 2^31");
    }
    if (part.rows > 1 && part.row_stride_bytes < GgufRowBytes(part.dtype, d.columns)) {
      return InvalidArgument("weight: rows of " + std::to_string(GgufRowBytes(part.dtype, d.columns)) +
                             " bytes are only " + std::to_string(part.row_stride_bytes) + " bytes apart");
    }
    if (part.rows > kMostWeightBytes / GgufRowBytes(part.dtype, d.columns)) {
      return InvalidArgument("weight: a part of " + std::to_string(part.rows) + " rows and " +
                             std::to_string(d.columns) + " columns has more than 2^48 bytes");
    }
    rows += part.rows;
  }
  if (d.linear && d.columns > kMostWeightBytes / d.max_tokens) {
    return InvalidArgument("weight: x of " + std::to_string(d.max_tokens) + " rows and " + std::to_string(d.columns) +
                           " columns has more than 2^48 elements");
  }
  if (rows > (int64_t{1} << 31)) return InvalidArgument("weight: more than 2^31 rows");
  if (d.linear && rows > kMostWeightBytes / d.max_tokens) {
    return InvalidArgument("weight: y of " + std::to_string(d.max_tokens) + " rows and " + std::to_string(rows) +
                           " columns has more than 2^48 elements");
  }
  return OkStatus();
}

}  // namespace v1
}  // namespace octet

#endif  // OCTET_WEIGHT_CHECKS_H_
