// Append and gather: rows of K and V to and from a paged cache, bit for bit as docs/numerics.md says.
//
// Per (token, KV head): x = k - offset of the position's block; then, for the channels of each side (K, K extra, V)
// apart, Walsh-Hadamard rotation and
//   dynamic  a = max|x| per group; any x not finite: scale NaN, codes 0; a < 1e-30: scale 0, codes 0; else
//            scale = a / 127, code = clamp(round_half_even(x * (127 / a)), -127, 127). bf16 scales: s = bf16(a / 127),
//            code from x * (1 / s). Asymmetric: zero = (min + max) * 0.5 rounded to its type, then the same
//            of x - zero.
//   static   code = clamp(round_half_even((x - zero) * (1 / scale)), -127, 127). No scale of the row could
//            carry a NaN, so +inf saturates to 127, -inf to -127, and NaN becomes 0.
//   float    f32 as it is, f16 and bf16 to nearest even.
// Compiled with -ffp-contract=off: a fused multiply-add would change codes. Memory: 4 bytes a channel in, 1 out.
#include "backends/cpu/kernels/row.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

// Clamped first, which changes nothing below 127.5 and makes the rounding by addition valid; NaN gives 0.
OCTET_INLINE int8_t ToCode(float v) {
  const float low = v > -127.0f ? v : -127.0f;
  const float clamped = low < 127.0f ? low : 127.0f;
  const float magic = 12582912.0f;  // 1.5 * 2^23
  const float rounded = (clamped + magic) - magic;
  return v != v ? static_cast<int8_t>(0) : static_cast<int8_t>(static_cast<int32_t>(rounded));
}

OCTET_INLINE float Absolute(float x) { return octet::FloatFromBits(octet::FloatBits(x) & 0x7fffffff); }

// One scale (and zero) for n channels.
void QuantizeGroup(const Side& side, const float* x, int n, int8_t* codes, uint8_t* scale_out, uint8_t* zero_out) {
  float zero = 0.0f;
  bool finite = true;
  for (int i = 0; i < n; ++i) finite &= Absolute(x[i]) <= 3.402823466e+38f;
  if (side.asymmetric && finite) {
    float low = x[0], high = x[0];
    for (int i = 1; i < n; ++i) {
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
    }
    zero = (low + high) * 0.5f;
    if (side.zero_bf16) zero = octet::Bf16ToFloat(octet::FloatToBf16(zero));
  }
  uint32_t top = 0;  // bits of a: magnitudes order like their bits, and infinities stay on top
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = octet::FloatBits(x[i] - zero) & 0x7fffffff;
    top = bits > top ? bits : top;
  }
  const float a = octet::FloatFromBits(top);
  finite &= top < 0x7f800000;

  float scale = 0.0f, inverse = 0.0f;
  if (!finite) {
    scale = octet::FloatFromBits(0x7fc00000);
  } else if (!(a < 1e-30f)) {
    scale = a / 127.0f;
    inverse = 127.0f / a;
    if (side.scale_bf16) {
      scale = octet::Bf16ToFloat(octet::FloatToBf16(scale));
      inverse = 1.0f / scale;
    }
  }
  if (finite) {
    for (int i = 0; i < n; ++i) codes[i] = ToCode((x[i] - zero) * inverse);
  } else {
    __builtin_memset(codes, 0, static_cast<size_t>(n));
  }
  StoreScale(scale_out, side.scale_bf16, scale);
  if (side.asymmetric) StoreScale(zero_out, side.zero_bf16, zero);
}

// x is overwritten by its rotation.
void EncodeRow(const Side& side, float* x, int64_t page, int64_t head, int64_t token) {
  const int n = side.head_dim;
  Hadamard(x, n, side.rotation);
  uint8_t* data = side.data + RowOffset(side.data_stride, page, head, token);
  if (side.scales == Scales::kNone) return StoreRow(side.element, x, n, data);
  int8_t* codes = reinterpret_cast<int8_t*>(data);
  if (side.scales == Scales::kToken) {
    uint8_t* scales = side.scale + RowOffset(side.scale_stride, page, head, token);
    uint8_t* zeros = side.asymmetric ? side.zero + RowOffset(side.zero_stride, page, head, token) : nullptr;
    for (int c = 0, g = 0; c < n; c += side.group, ++g) {
      QuantizeGroup(side, x + c, side.group, codes + c, scales + g * (side.scale_bf16 ? 2 : 4),
                    zeros != nullptr ? zeros + g * (side.zero_bf16 ? 2 : 4) : nullptr);
    }
    return;
  }
  for (int c = 0; c < n; ++c) {
    const float zero = StaticValue(side, side.static_zero, side.static_zero_stride, head, c);
    codes[c] = ToCode((x[c] - zero) * (1.0f / StaticValue(side, side.static_scale, side.static_scale_stride, head, c)));
  }
}

int KRow(const RowsParams& p) { return p.k.head_dim + p.k_extra.head_dim; }

// The row of the offset table for a position, or null.
const float* OffsetRow(const RowsParams& p, int64_t token, int64_t head) {
  if (p.offset.data == nullptr) return nullptr;
  const int64_t block = p.positions[token] / p.offset.block_tokens;
  return p.offset.data + block * p.offset.block_stride + head * p.offset.head_stride;
}

void Append(const RowsParams& p, int64_t begin, int64_t end) {
  alignas(64) float x[2 * kMaxHeadDim];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / p.kv_heads, head = item % p.kv_heads;
    const int64_t slot = p.slots[token];
    if (slot < 0) continue;
    const int64_t page = slot / p.page_tokens, index = slot % p.page_tokens;
    if (p.k_rows != nullptr) {
      const float* k = p.k_rows + token * p.k_token_stride + head * p.k_head_stride;
      const float* offset = OffsetRow(p, token, head);
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
      const float* offset = OffsetRow(p, token, head);
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
