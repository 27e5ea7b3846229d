#include "backends/cpu/fused.h"

#include <string>

#include "backends/cpu/quant.h"
#include "octet/checks.h"
#include "octet/host_memory.hpp"

namespace octet_cpu {
namespace {

using octet::DType;
using octet::OkStatus;
using octet::Status;
using octet::Support;
using octet::Unimplemented;

constexpr const char* kNoSampling = "cpu: sampling is not fused; the logits are sampled by the host";

Status CheckFusedLayout(const octet::KvLayout& l) {
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(l));
  if (!l.v_is_k && !l.has_k_extra) return OkStatus();
  return Unimplemented("cpu: the fused append has no latent cache, where V is K's row or K has an extra part");
}

Status CheckQType(DType type) {
  if (type == DType::kF32 || type == DType::kF16 || type == DType::kBF16) return OkStatus();
  return Unimplemented(std::string("cpu: the fused append writes q as f32, f16 or bf16, not as ") +
                       octet::DTypeName(type));
}

}  // namespace

Support Fused::Supports(octet::FusedEntry entry, const octet::AttentionDesc& desc) const {
  if (entry == octet::FusedEntry::kSample) return Support::No(kNoSampling);
  if (entry != octet::FusedEntry::kQkvAppend) {
    return Support::No("cpu: fused operation " + std::to_string(static_cast<int32_t>(entry)) +
                       " is unknown; known is 1 (QKV append)");
  }
  Status status = octet::CheckAttentionDesc(desc);
  if (status.ok()) status = CheckFusedLayout(*desc.kv);
  if (status.ok()) status = CheckQType(desc.q_type);
  if (!status.ok()) return Support::No(status.message());
  return Support::Yes(2, std::string("qkv append ") + context_.kernels->name);
}

Status Fused::QkvAppend(octet::Stream&, const octet::KvLayout& l, const octet::KvLayer& layer,
                        const octet::QkvAppendArgs& a) {
  OCTET_RETURN_IF_ERROR(CheckFusedLayout(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(octet::CheckHostQkvAppend(l, layer, a));
  OCTET_RETURN_IF_ERROR(CheckQType(octet::TypeOf(*a.q_out)));
  const int64_t tokens = a.qkv->shape[0];
  if (tokens == 0) return OkStatus();
  const auto floats = [](const octet::Tensor* t) { return t != nullptr ? octet::HostData<const float>(*t) : nullptr; };
  const int64_t q_bytes = octet::ElementBytes(octet::TypeOf(*a.q_out));
  QkvParams p{};
  p.qkv = floats(a.qkv);
  p.qkv_stride = a.qkv->stride[0];
  p.bias = floats(a.bias);
  p.q_gain = floats(a.q_gain);
  p.k_gain = floats(a.k_gain);
  p.eps = a.qk_norm_eps;
  p.rope = {.pairs = a.cos_sin->shape[1], .pair_stride = a.cos_sin->stride[1], .interleaved = a.rope_interleaved};
  p.cos_sin = floats(a.cos_sin);
  p.cos_sin_stride = a.cos_sin->stride[0];
  p.q_out = octet::HostData<uint8_t>(*a.q_out);
  p.q_token_stride = a.q_out->stride[0] * q_bytes;
  p.q_head_stride = a.q_out->stride[1] * q_bytes;
  p.q_element = ElementOf(octet::TypeOf(*a.q_out));
  p.k = KSide(l, layer);
  p.v = VSide(l, layer);
  p.slots = octet::HostData<const int64_t>(*a.slots);
  p.positions = octet::HostData<const int32_t>(*a.positions);
  p.offset = OffsetsOf(l, layer);
  p.q_heads = static_cast<int32_t>(a.q_out->shape[1]);
  p.kv_heads = l.kv_heads;
  p.page_tokens = l.page_tokens;
  p.norm_row = context_.kernels->norm;
  p.rope_row = context_.kernels->rope;
  // A head of Q is turned only; a KV head is turned and two rows of it are quantized. The mean of both.
  const int64_t heads = p.q_heads + p.kv_heads, quantized = int64_t{p.kv_heads} * (l.k.head_dim + l.v.head_dim);
  context_.For(tokens * heads, 4 * l.k.head_dim + 8 * quantized / heads,
               [&](int64_t begin, int64_t end) { context_.kernels->qkv_append(p, begin, end); });
  return OkStatus();
}

Status Fused::Sample(octet::Stream&, const octet::SampleArgs&) { return Unimplemented(kNoSampling); }

}  // namespace octet_cpu
