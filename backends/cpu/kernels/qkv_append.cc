// Rows of a packed QKV in one pass each: bias, norm, RoPE, then what quantize.cc does to K and V, and q to where
// attention reads it. A row is worked on in L1; norm and RoPE are the functions of elementwise.cc, so that every byte
// is the one that the separate operations give. Memory: 4 bytes a channel in, 1 of K and V and 4 of Q out.
#include "backends/cpu/kernels/encode.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

// y = row + bias; y may be the row.
void AddBias(const float* row, const float* bias, int n, float* y) {
  if (bias != nullptr) {
    for (int c = 0; c < n; ++c) y[c] = row[c] + bias[c];
  } else if (y != row) {
    __builtin_memcpy(y, row, static_cast<size_t>(n) * sizeof(float));
  }
}

// The head of Q or K that starts at `column`.
void MakeHead(const QkvParams& p, int64_t token, int64_t column, const float* gain, float* y) {
  const int n = p.k.head_dim;
  AddBias(p.qkv + token * p.qkv_stride + column, p.bias != nullptr ? p.bias + column : nullptr, n, y);
  if (gain != nullptr) p.norm_row({.layer = false, .n = n, .gain = gain, .bias = nullptr, .eps = p.eps}, y, y);
  if (p.rope.pairs > 0) p.rope_row(p.rope, p.cos_sin + p.positions[token] * p.cos_sin_stride, y);
}

void QkvAppend(const QkvParams& p, int64_t begin, int64_t end) {
  alignas(64) float x[kMaxHeadDim];
  const int64_t heads = p.q_heads + p.kv_heads, k_dim = p.k.head_dim, v_dim = p.v.head_dim;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / heads, head = item % heads;
    if (head < p.q_heads) {
      uint8_t* out = p.q_out + token * p.q_token_stride + head * p.q_head_stride;
      const bool f32 = p.q_element == Element::kF32;
      MakeHead(p, token, head * k_dim, p.q_gain, f32 ? reinterpret_cast<float*>(out) : x);
      if (!f32) StoreRow(p.q_element, x, k_dim, out);
      continue;
    }
    const int64_t slot = p.slots[token];
    if (slot < 0) continue;
    const int64_t page = slot / p.page_tokens, index = slot % p.page_tokens, kv_head = head - p.q_heads;
    MakeHead(p, token, head * k_dim, p.k_gain, x);
    if (const float* offset = OffsetRow(p.offset, p.positions, token, kv_head)) {
      for (int c = 0; c < p.k.head_dim; ++c) x[c] -= offset[c];
    }
    EncodeRow(p.k, x, page, kv_head, index);
    const int64_t column = heads * k_dim + kv_head * v_dim;
    AddBias(p.qkv + token * p.qkv_stride + column, p.bias != nullptr ? p.bias + column : nullptr, p.v.head_dim, x);
    EncodeRow(p.v, x, page, kv_head, index);
  }
}

}  // namespace

void FillQkvAppend(KernelTable* table) { table->qkv_append = QkvAppend; }

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
