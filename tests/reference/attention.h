// Attention of one request in double precision, straight from the formula: on unquantized K and V it is the truth, on
// dequantized rows it is exact arithmetic on the quantized cache. Rotations are orthonormal and offsets are exact
// algebra, so neither appears here: K and V come as decoded rows. Reference: abi.h, octet_attention_desc.
#ifndef OCTET_TESTS_REFERENCE_ATTENTION_H_
#define OCTET_TESTS_REFERENCE_ATTENTION_H_

#include <cstdint>
#include <vector>

namespace octet::reference {

struct AttentionSpec {
  int q_heads = 1, kv_heads = 1;
  int k_dim = 0, v_dim = 0;
  bool causal = true;
  int window = 0;  // a query at p sees keys at (p - window, p]; 0 none
  double scale = 1.0;
  double softcap = 0.0;                    // 0 none
  std::vector<float> alibi_slopes, sinks;  // [q_heads] or empty
};

struct AttentionInput {
  int queries = 0;  // query i stands at position kv_len - queries + i
  int kv_len = 0;
  int kv_begin = 0;          // position of the first key
  std::vector<double> q;     // [queries][q_heads][k_dim]
  std::vector<double> k, v;  // [kv_len - kv_begin][kv_heads][k_dim or v_dim]
  std::vector<int8_t> mask;  // [queries][queries] over this step's tokens, or empty
};

struct AttentionOutput {
  std::vector<double> out;  // [queries][q_heads][v_dim]; zeros for a row that sees no key
  std::vector<double> lse;  // [queries][q_heads]: natural log of the denominator, sink included; -inf when it is 0
};

AttentionOutput Attend(const AttentionSpec& spec, const AttentionInput& input);

}  // namespace octet::reference

#endif  // OCTET_TESTS_REFERENCE_ATTENTION_H_
