// The numbers of the GGUF format: metadata value types and tensor types, with their names.
// Reference: docs/gguf.md and include/ggml.h (enum ggml_type) of the ggml project.
#ifndef OCTET_CORE_GGUF_GGUF_FORMAT_H_
#define OCTET_CORE_GGUF_GGUF_FORMAT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "octet/tensor.h"

namespace octet {

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
inline constexpr uint32_t kGgufTypes = 13;

std::string_view GgufTypeName(GgufType type);

// Fewest bytes that a value can take in the file; the exact size of all but strings and arrays.
uint64_t GgufTypeMinBytes(GgufType type);

bool IsGgufInteger(GgufType type);

// The number of a tensor type in a GGUF file, for the types that octet reads.
std::optional<DType> DTypeFromGgml(uint32_t ggml_type);

// "IQ2_XS", or "number 77" for a type this table does not know.
std::string GgmlTypeName(uint32_t ggml_type);

// "F32, F16, ...": what DTypeFromGgml accepts.
std::string ReadableGgmlTypes();

}  // namespace octet

#endif  // OCTET_CORE_GGUF_GGUF_FORMAT_H_
