// The fused append of the reference backend: bias, norm, rope and append, one row after the other.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/checks.h"
#include "tests/mutants/fault.h"
#include "tests/mutants/host_tensors.h"
#include "tests/mutants/reference_backend.h"
#include "tests/mutants/reference_cache.h"

namespace octet::mutants {
namespace {

constexpr const char* kNoSampling = "the reference backend has no fused sampling";

class Fused final : public FusedOps {
 public:
  Support Supports(FusedEntry entry, const AttentionDesc& d) const override {
    if (entry == FusedEntry::kSample) return Support::No(kNoSampling);
    if (entry != FusedEntry::kQkvAppend)
      return Support::No("fused operation " + std::to_string(static_cast<int>(entry)) + " is unknown");
    if (const Status status = CheckAttentionDesc(d); !status.ok()) return Support::No(status.message());
    if (const Status status = CheckUsable(*d.kv); !status.ok()) return Support::No(status.message());
    if (d.q_type == DType::kOpaque) return Support::No("q is f32, f16 or bf16");
    return Support::Yes(1, "reference");
  }

  Status QkvAppend(Stream&, const KvLayout& l, const KvLayer& y, const QkvAppendArgs& a) override {
    OCTET_RETURN_IF_ERROR(CheckUsable(l));
    OCTET_RETURN_IF_ERROR(CheckLayerInside(l, y, 0));
    OCTET_RETURN_IF_ERROR(CheckHostQkvAppend(l, y, a));
    if (TypeOf(*a.q_out) == DType::kOpaque) return Unimplemented("q is f32, f16 or bf16");
    const int64_t tokens = a.qkv->shape[0], q_heads = a.q_out->shape[1];
    const int64_t first_k = q_heads * l.k.head_dim, first_v = first_k + l.kv_heads * l.k.head_dim;
    ref::Vector rows = All(*a.qkv);
    if (a.bias != nullptr) {
      for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i) {
        const int64_t c = i % a.qkv->shape[1];
        rows[static_cast<size_t>(i)] += Get(*a.bias, Faulty("fused_bias_shifted") && c >= first_k ? c - first_k : c);
      }
    }
    const ref::Vector q = Turned(a, Columns(a, rows, 0, first_k), q_heads, l.k.head_dim, a.q_gain);
    const ref::Vector k = Turned(a, Columns(a, rows, first_k, first_v), l.kv_heads, l.k.head_dim,
                                 Faulty("fused_norm_skipped") ? nullptr : a.k_gain);
    const ref::Vector v = Columns(a, rows, first_v, a.qkv->shape[1]);
    for (int64_t t = 0; t < tokens && !Faulty("fused_q_not_written"); ++t) {
      if (Faulty("fused_q_follows_slots") && HostData<const int64_t>(*a.slots)[t] < 0) continue;
      for (int64_t i = 0; i < first_k; ++i) {
        Set(*a.q_out, q[static_cast<size_t>(t * first_k + i)], t, i / l.k.head_dim, i % l.k.head_dim);
      }
    }
    const OpenCache cache(l, y);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t slot = HostData<const int64_t>(*a.slots)[t];
      for (int h = 0; h < l.kv_heads && slot >= 0; ++h) {
        std::vector<float> k_row = Row(k, t * l.kv_heads + h, l.k.head_dim);
        if (const float* offset = cache.offsets.empty() ? nullptr : cache.Offset(Int(*a.positions, t), h)) {
          for (size_t c = 0; c < k_row.size(); ++c) k_row[c] -= offset[c];
        }
        cache.k.Store(slot / l.page_tokens, h, slot % l.page_tokens, ref::EncodeRow(l.k, k_row, cache.k_static, h));
        cache.v.Store(slot / l.page_tokens, h, slot % l.page_tokens,
                      ref::EncodeRow(l.v, Row(v, t * l.kv_heads + h, l.v.head_dim), cache.v_static, h));
      }
    }
    return OkStatus();
  }

  Status Sample(Stream&, const SampleArgs&) override { return Unimplemented(kNoSampling); }

 private:
  // Columns [begin, end) of packed rows.
  static ref::Vector Columns(const QkvAppendArgs& a, const ref::Vector& rows, int64_t begin, int64_t end) {
    ref::Vector some;
    for (int64_t t = 0; t < a.qkv->shape[0]; ++t) {
      const auto row = rows.begin() + t * a.qkv->shape[1];
      some.insert(some.end(), row + begin, row + end);
    }
    return some;
  }
  // Heads after norm and RoPE.
  static ref::Vector Turned(const QkvAppendArgs& a, ref::Vector x, int64_t heads, int64_t head_dim,
                            const Tensor* gain) {
    if (gain != nullptr) x = ref::Norm(NormKind::kRms, x, All(*gain), {}, a.qk_norm_eps).value;
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < a.positions->shape[0]; ++t) positions.push_back(Int(*a.positions, t));
    return ref::Rope(x, heads, head_dim, positions, Floats(a.cos_sin), a.cos_sin->shape[1],
                     a.rope_interleaved != Faulty("fused_rope_other_pairs"))
        .value;
  }
  static std::vector<float> Row(const ref::Vector& rows, int64_t row, int64_t n) {
    const auto begin = rows.begin() + row * n;
    std::vector<float> some;
    for (auto x = begin; x != begin + n; ++x) some.push_back(static_cast<float>(*x));
    return some;
  }
};

}  // namespace

std::unique_ptr<FusedOps> MakeReferenceFused() { return std::make_unique<Fused>(); }

}  // namespace octet::mutants
