// Element types of tensors.
#ifndef OCTET_INTERFACES_TENSOR_H_
#define OCTET_INTERFACES_TENSOR_H_

#include <cstdint>

namespace octet {

enum class DType : int32_t {
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kI8 = 4,
  kI32 = 5,
  kI64 = 6,
  kOpaque = 15,
  kQ4_0 = 16,
  kQ4_1 = 17,
  kQ5_0 = 18,
  kQ5_1 = 19,
  kQ8_0 = 20,
  kQ4_K = 24,
  kQ5_K = 25,
  kQ6_K = 26,
};

}  // namespace octet

#endif  // OCTET_INTERFACES_TENSOR_H_
