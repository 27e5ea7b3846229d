#include "backends/cuda/decode.h"

#include <cstdint>
#include <string>

#include "backends/cuda/kernels/decode.h"

namespace octet_cuda {
namespace {

using octet::AttentionDesc;
using octet::CacheSide;
using octet::DType;
using octet_gpu::AttentionParams;
using octet_gpu::DecodeParams;
using octet_gpu::kDecodeGroup;
using octet_gpu::kDecodeTile;
using octet_gpu::Side;
using octet_gpu::Traits;

bool PlainCodes(const CacheSide& s) {
  return s.data_type == DType::kI8 && s.scheme == octet::Scheme::kSymmetric && s.dynamic() && s.groups() == 1 &&
         s.scale_type == DType::kF32;
}

// Rows side by side, where bulk copies may begin: at multiples of 16 bytes.
bool Packed(const CacheSide& s) {
  bool aligned =
      s.data_base % 16 == 0 && s.scale_base % 16 == 0 && s.data_stride[2] == s.head_dim && s.scale_stride[2] == 4;
  for (const auto* stride : {&s.data_stride, &s.scale_stride}) {
    aligned = aligned && (*stride)[0] % 16 == 0 && (*stride)[1] % 16 == 0;
  }
  return aligned;
}

std::string Decline(const AttentionDesc& d, const Traits& traits) {
  const octet::KvLayout& l = *d.kv;
  if (traits.capability != 90 || traits.processors > octet_gpu::kDecodeBlocks) {
    return "it is made for compute capability 9.0 and up to " + std::to_string(octet_gpu::kDecodeBlocks) +
           " multiprocessors";
  }
  if (d.exact) return "exact compute was asked for";
  if (l.has_k_extra || l.v_is_k || !PlainCodes(l.k) || !PlainCodes(l.v)) {
    return "it takes INT8 K and V with one symmetric f32 scale per token";
  }
  if (l.k.head_dim != l.v.head_dim || (l.k.head_dim != 64 && l.k.head_dim != 128 && l.k.head_dim != 256)) {
    return "it takes head dims 64, 128 and 256, the same for K and V";
  }
  if (d.q_heads / l.kv_heads > kDecodeGroup) return "it takes up to 8 query heads per KV head";
  if (l.page_tokens % kDecodeTile != 0 && (kDecodeTile % l.page_tokens != 0 || l.page_tokens < 16)) {
    return "it takes pages of 16, 32 or a multiple of 64 tokens";
  }
  if (!Packed(l.k) || !Packed(l.v)) return "it takes rows that lie side by side, aligned to 16 bytes";
  return {};
}

bool Takes(const AttentionParams& p) {
  const bool whole_blocks = p.offset.block_tokens % kDecodeTile == 0 && p.page_tokens % kDecodeTile == 0;
  return p.mask == nullptr && (p.offset.data == nullptr || whole_blocks);
}

uint64_t ArrivedBytes(const Traits& traits) { return (static_cast<uint64_t>(traits.processors) * 4 + 127) / 128 * 128; }

uint64_t WorkspaceBytes(const AttentionDesc& d, const Traits& traits) {
  return ArrivedBytes(traits) +
         static_cast<uint64_t>(octet_gpu::DecodePartialBytes(d.kv->k.head_dim, traits.processors));
}

void Launch(const AttentionParams& p, void* workspace, const Traits& traits, octet_gpu::runtime::Stream stream) {
  DecodeParams decode{};
  decode.attention = p;
  decode.arrived = static_cast<int32_t*>(workspace);
  decode.partials = static_cast<uint8_t*>(workspace) + ArrivedBytes(traits);
  const int64_t codes = int64_t{kDecodeTile} * p.k.head_dim;
  decode.whole_pages = p.page_tokens == kDecodeTile && p.v.data == p.k.data + codes &&
                       p.k.scale == p.k.data + 2 * codes && p.v.scale == p.k.scale + 4 * kDecodeTile;
  for (int i = 0; i < 2; ++i) {
    for (const int64_t stride : {p.v.data_stride[i], p.k.scale_stride[i], p.v.scale_stride[i]}) {
      decode.whole_pages = decode.whole_pages && stride == p.k.data_stride[i];
    }
  }
  octet_gpu::LaunchDecode(decode, traits.processors, stream);
}

}  // namespace

constexpr octet_gpu::AttentionKernel kDecodeSm90 = {"attention int8 sm90", 2, Decline, Takes, WorkspaceBytes, Launch};

}  // namespace octet_cuda
