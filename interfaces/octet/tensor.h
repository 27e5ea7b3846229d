// Element types and views of device memory. A Stream, Buffer or Event belongs to the backend that made it; only that
// backend looks inside. Functions are static so that files compiled for different instruction sets never share a copy.
#ifndef OCTET_TENSOR_H_
#define OCTET_TENSOR_H_

#include <cstdint>
#include <initializer_list>

#include "octet/abi.h"

namespace octet {
inline namespace v1 {

enum class DType : octet_dtype {
  kNone = 0,
  kF32 = OCTET_F32,
  kF16 = OCTET_F16,
  kBF16 = OCTET_BF16,
  kI8 = OCTET_I8,
  kI32 = OCTET_I32,
  kI64 = OCTET_I64,
  kOpaque = OCTET_OPAQUE,
  kQ4_0 = OCTET_Q4_0,
  kQ4_1 = OCTET_Q4_1,
  kQ5_0 = OCTET_Q5_0,
  kQ5_1 = OCTET_Q5_1,
  kQ8_0 = OCTET_Q8_0,
  kQ4_K = OCTET_Q4_K,
  kQ5_K = OCTET_Q5_K,
  kQ6_K = OCTET_Q6_K,
};

// "f32", "q4_K", ...; "?" for an unknown value.
static inline const char* DTypeName(DType type) {
  switch (type) {
    case DType::kNone:
      return "none";
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI8:
      return "int8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kOpaque:
      return "opaque";
    case DType::kQ4_0:
      return "q4_0";
    case DType::kQ4_1:
      return "q4_1";
    case DType::kQ5_0:
      return "q5_0";
    case DType::kQ5_1:
      return "q5_1";
    case DType::kQ8_0:
      return "q8_0";
    case DType::kQ4_K:
      return "q4_K";
    case DType::kQ5_K:
      return "q5_K";
    case DType::kQ6_K:
      return "q6_K";
  }
  return "?";
}

// Bytes of one element; 0 for block types and unknown values.
static inline int64_t ElementBytes(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI8:
    case DType::kOpaque:
      return 1;
    case DType::kI64:
      return 8;
    default:
      return 0;
  }
}

using Stream = octet_stream;
using Buffer = octet_buffer;
using Event = octet_event;
using Weight = octet_weight;
using Tensor = octet_tensor;

static inline DType TypeOf(const Tensor& t) { return static_cast<DType>(t.dtype); }

// A dense row-major view that starts `offset_bytes` into the buffer.
static inline Tensor MakeTensor(Buffer* buffer, DType type, std::initializer_list<int64_t> shape,
                                uint64_t offset_bytes = 0) {
  Tensor t{};
  t.buffer = buffer;
  t.offset = offset_bytes;
  t.dtype = static_cast<octet_dtype>(type);
  t.rank = static_cast<int32_t>(shape.size());
  int i = 0;
  for (int64_t n : shape) t.shape[i++] = n;
  for (; i < 5; ++i) t.shape[i] = 1;
  int64_t stride = 1;
  for (i = 4; i >= 0; --i) {
    t.stride[i] = stride;
    if (i < t.rank) stride *= t.shape[i];
  }
  return t;
}

// Of a rank from 1 to 5 and lengths of 0 or more; what exceeds 2^63 - 1 counts as that.
static inline int64_t NumElements(const Tensor& t) {
  int64_t n = 1;
  bool overflow = false;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return 0;
    overflow = overflow || __builtin_mul_overflow(n, t.shape[i], &n);
  }
  return overflow ? INT64_MAX : n;
}

// Rows [first, first + rows) of the outermost dimension.
static inline Tensor Rows(Tensor t, int64_t first, int64_t rows) {
  t.offset += static_cast<uint64_t>(first * t.stride[0] * ElementBytes(TypeOf(t)));
  t.shape[0] = rows;
  return t;
}

}  // namespace v1
}  // namespace octet

#endif  // OCTET_TENSOR_H_
