// One row (a token's K or V of one KV head) to what a cache stores and back, in the order of arithmetic that
// docs/numerics.md fixes: codes and scales that leave here are the very bits that every backend must write.
#ifndef OCTET_TESTS_REFERENCE_QUANTIZE_H_
#define OCTET_TESTS_REFERENCE_QUANTIZE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "octet/kv_cache.h"

namespace octet::reference {

// A row as stored: data_type elements; scales and zeros only where the side is dynamic, one per group and already
// rounded to their types.
struct StoredRow {
  std::vector<uint8_t> data;  // [head_dim] elements
  std::vector<float> scale, zero;
};

// Static scales and zeros of a layer: [1], [kv_heads] or [kv_heads][head_dim] by the side's axis; zero empty when
// symmetric, both empty for axis TOKEN.
struct StaticQuant {
  std::vector<float> scale, zero;
};

// In place: block by block, butterflies (a + b, a - b) at stride 1, 2, 4, ..., then one multiplication by the rounded
// 1/sqrt(block). Its own inverse but for rounding. Real: float (the contract) or double.
template <typename Real>
void Hadamard(std::span<Real> x, int block);

// x: [head_dim], the K offset already subtracted.
StoredRow EncodeRow(const CacheSide& side, std::span<const float> x, const StaticQuant& statics, int kv_head);

// [head_dim]: dequantized and the rotation undone; the K offset is the caller's to add.
template <typename Real>
std::vector<Real> DecodeRow(const CacheSide& side, const StoredRow& row, const StaticQuant& statics, int kv_head);

}  // namespace octet::reference

#endif  // OCTET_TESTS_REFERENCE_QUANTIZE_H_
