// Weights of the GGUF block types as numbers, written from the definition of each format, one element at a time.
// Reference: the GGUF specification and ggml's block structures (super-blocks of 256 for the K types, blocks of 32 for
// the others; every multi-byte field little-endian).
#ifndef OCTET_TESTS_REFERENCE_GGUF_H_
#define OCTET_TESTS_REFERENCE_GGUF_H_

#include <cstdint>
#include <vector>

#include "octet/tensor.h"
#include "tests/reference/random.h"

namespace octet::reference {

struct BlockShape {
  int elements = 0, bytes = 0;  // 1 and the element's size for F32, F16, BF16; 0 for a type that no weight has
};
BlockShape BlockOf(DType type);

// Element `index` of a row stored in `row`.
double WeightElement(DType type, const uint8_t* row, int64_t index);

// A row of `columns` elements (whole blocks), about `size` in magnitude: random codes under sensible scales.
std::vector<uint8_t> RandomWeightRow(DType type, int64_t columns, double size, Random& random);

}  // namespace octet::reference

#endif  // OCTET_TESTS_REFERENCE_GGUF_H_
