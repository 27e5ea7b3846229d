// What append, gather and attention share: which caches this backend has, where their rows lie, and the rotation.
// The layout's strides say where a row is; nothing is derived from a shape.
#ifndef TEMPLATE_CACHE_H_
#define TEMPLATE_CACHE_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "octet/plugin.hpp"

namespace example {

using octet::AttentionArgs;
using octet::AttentionDesc;
using octet::Buffer;
using octet::CacheSide;
using octet::DType;
using octet::HostBufferOf;
using octet::HostData;
using octet::InvalidArgument;
using octet::KvLayer;
using octet::KvLayout;
using octet::KvTokens;
using octet::OkStatus;
using octet::Status;
using octet::StatusOr;
using octet::Stream;
using octet::Support;
using octet::Tensor;
using octet::Unimplemented;

constexpr int32_t kMaxHeadDim = 576;  // CheckLayout lets no more through

// What this backend does not have is Unimplemented, with what it has instead. Called wherever a layout comes in.
inline Status CheckKnown(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(octet::CheckLayout(l));
  if (l.v_is_k || l.has_k_extra) {
    return Unimplemented("a latent (MLA) cache is not supported; K and V need rows of their own");
  }
  for (const auto& [name, s] : {std::pair{"K", &l.k}, {"V", &l.v}}) {
    if (s->scheme != octet::Scheme::kSymmetric || s->axis != octet::Axis::kToken || s->groups() != 1 ||
        s->scale_type != DType::kF32) {
      return Unimplemented(std::string("this ") + name +
                           " cache is not supported; int8 with one symmetric f32 scale per token and head is");
    }
    if (s->order != 0) {
      return Unimplemented(std::string("") + name + " has tile order " + std::to_string(s->order) +
                           "; only rows (0) are supported");
    }
  }
  return OkStatus();
}

// Are all rows of one run (codes or scales of a side) inside the layer?
inline Status CheckRun(const KvLayout& l, uint64_t base, const std::array<int64_t, 3>& stride, uint64_t row_bytes) {
  const int64_t last[3] = {l.num_pages - 1, l.kv_heads - 1, l.page_tokens - 1};
  uint64_t end = 0;
  bool fits = !__builtin_add_overflow(base, row_bytes, &end);
  for (size_t i = 0; i < 3; ++i) {
    uint64_t span = 0;
    fits = fits && stride[i] >= 0 && !__builtin_mul_overflow(last[i], stride[i], &span) &&
           !__builtin_add_overflow(end, span, &end);
  }
  if (fits && end <= l.layer_bytes) return OkStatus();
  return InvalidArgument("the strides of the KV layout leave its layer_bytes; choose_layout sets both");
}

inline Status CheckCache(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(CheckKnown(l));
  for (const CacheSide* s : {&l.k, &l.v}) {
    OCTET_RETURN_IF_ERROR(CheckRun(l, s->data_base, s->data_stride, static_cast<uint64_t>(s->head_dim)));
    OCTET_RETURN_IF_ERROR(CheckRun(l, s->scale_base, s->scale_stride, sizeof(float)));
  }
  return OkStatus();
}

inline uint8_t* CacheOf(const KvLayer& layer) { return HostBufferOf(*layer.cache).data() + layer.cache_offset; }

// The rows of K or of V: head_dim codes and one scale per (page, KV head, token of the page).
class Rows {
 public:
  Rows(uint8_t* base, const CacheSide& side) : base_(base), side_(&side) {}

  int8_t* Codes(int64_t page, int64_t head, int64_t token) const {
    return reinterpret_cast<int8_t*>(base_ + side_->data_base + Offset(side_->data_stride, page, head, token));
  }
  float Scale(int64_t page, int64_t head, int64_t token) const {
    float scale;
    std::memcpy(&scale, ScaleAt(page, head, token), sizeof scale);
    return scale;
  }
  void SetScale(int64_t page, int64_t head, int64_t token, float scale) const {
    std::memcpy(ScaleAt(page, head, token), &scale, sizeof scale);
  }

 private:
  // 64 bits: a cache may be larger than 4 GiB.
  static uint64_t Offset(const std::array<int64_t, 3>& stride, int64_t page, int64_t head, int64_t token) {
    return static_cast<uint64_t>(page * stride[0] + head * stride[1] + token * stride[2]);
  }
  uint8_t* ScaleAt(int64_t page, int64_t head, int64_t token) const {
    return base_ + side_->scale_base + Offset(side_->scale_stride, page, head, token);
  }

  uint8_t* base_;
  const CacheSide* side_;
};

// Row (i, j) of a host tensor [..][..][n].
inline float* RowOf(const Tensor& t, int64_t i, int64_t j) {
  return HostData<float>(t) + i * t.stride[0] + j * t.stride[1];
}

// The orthonormal Walsh-Hadamard transform of each block of x[n], its own inverse; block 0 does nothing. The order of
// the arithmetic is fixed (docs/numerics.md), so that equal K and V give equal pages on every backend.
inline void Rotate(float* x, int32_t n, int32_t block) {
  if (block == 0) return;
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  for (int32_t stride = 1; stride < block; stride *= 2) {
    for (int32_t i = 0; i < n; ++i) {
      if ((i & stride) != 0) continue;  // a block is a power of two and starts at a multiple of it
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  for (int32_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace example

#endif  // TEMPLATE_CACHE_H_
