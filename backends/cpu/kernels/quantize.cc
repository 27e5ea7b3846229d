// Append and gather: rows of K and V to and from a paged cache, bit for bit as docs/numerics.md says. Per (token, KV
// head): x = k - offset of the position's block, then encode.h. Memory: 4 bytes a channel in, 1 out.
#include "backends/cpu/kernels/encode.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

int KRow(const RowsParams& p) { return p.k.head_dim + p.k_extra.head_dim; }

void Append(const RowsParams& p, int64_t begin, int64_t end) {
  alignas(64) float x[2 * kMaxHeadDim];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / p.kv_heads, head = item % p.kv_heads;
    const int64_t slot = p.slots[token];
    if (slot < 0) continue;
    const int64_t page = slot / p.page_tokens, index = slot % p.page_tokens;
    if (p.k_rows != nullptr) {
      const float* k = p.k_rows + token * p.k_token_stride + head * p.k_head_stride;
      const float* offset = OffsetRow(p.offset, p.positions, token, head);
      for (int c = 0; c < KRow(p); ++c) x[c] = offset != nullptr ? k[c] - offset[c] : k[c];
      EncodeRow(p.k, x, page, head, index);
      if (p.k_extra.head_dim > 0) EncodeRow(p.k_extra, x + p.k.head_dim, page, head, index);
    }
    if (p.v_rows != nullptr) {
      const float* v = p.v_rows + token * p.v_token_stride + head * p.v_head_stride;
      __builtin_memcpy(x, v, static_cast<size_t>(p.v.head_dim) * sizeof(float));
      EncodeRow(p.v, x, page, head, index);
    }
  }
}

void Gather(const RowsParams& p, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / p.kv_heads, head = item % p.kv_heads;
    const int64_t slot = p.slots[token];
    if (slot < 0) continue;
    const int64_t page = slot / p.page_tokens, index = slot % p.page_tokens;
    if (p.k_rows != nullptr) {
      float* k = p.k_rows + token * p.k_token_stride + head * p.k_head_stride;
      DecodeRow(p.k, page, head, index, k);
      Hadamard(k, p.k.head_dim, p.k.rotation);
      if (p.k_extra.head_dim > 0) {
        DecodeRow(p.k_extra, page, head, index, k + p.k.head_dim);
        Hadamard(k + p.k.head_dim, p.k_extra.head_dim, p.k_extra.rotation);
      }
      const float* offset = OffsetRow(p.offset, p.positions, token, head);
      for (int c = 0; offset != nullptr && c < KRow(p); ++c) k[c] += offset[c];
    }
    if (p.v_rows != nullptr) {
      float* v = p.v_rows + token * p.v_token_stride + head * p.v_head_stride;
      DecodeRow(p.v, page, head, index, v);
      Hadamard(v, p.v.head_dim, p.v.rotation);
    }
  }
}

}  // namespace

void FillQuantize(KernelTable* table) {
  table->append = Append;
  table->gather = Gather;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
