// The cache of the reference backend: which layouts it has, append, gather, and pages as wholes.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/checks.h"
#include "tests/mutants/fault.h"
#include "tests/mutants/reference_backend.h"
#include "tests/mutants/reference_cache.h"

namespace octet::mutants {
namespace {

// Are all rows of the side inside layer_bytes?
bool Inside(const KvLayout& l, uint64_t base, const std::array<int64_t, 3>& stride, int64_t row_bytes) {
  const int64_t last[3] = {l.num_pages - 1, l.kv_heads - 1, l.page_tokens - 1};
  uint64_t end = 0;
  bool overflow = __builtin_add_overflow(base, row_bytes, &end);
  for (size_t i = 0; i < 3; ++i) {
    uint64_t step = 0;
    overflow = overflow || stride[i] < 0 || __builtin_mul_overflow(last[i], stride[i], &step) ||
               __builtin_add_overflow(end, step, &end);
  }
  return !overflow && end <= l.layer_bytes;
}

}  // namespace

Status CheckUsable(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(CheckLayout(l));
  if (l.v_is_k || l.has_k_extra)
    return Unimplemented("the reference backend has no latent (MLA) cache; use K and V of their own");
  for (const CacheSide* s : {&l.k, &l.v}) {
    if (s->order != 0) return Unimplemented("the reference backend has rows in order 0 only");
    bool inside = Inside(l, s->data_base, s->data_stride, s->head_dim * ElementBytes(s->data_type));
    if (s->dynamic())
      inside = inside && Inside(l, s->scale_base, s->scale_stride, s->groups() * ElementBytes(s->scale_type));
    if (s->dynamic() && s->scheme == Scheme::kAsymmetric)
      inside = inside && Inside(l, s->zero_base, s->zero_stride, s->groups() * ElementBytes(s->zero_type));
    if (!inside) return InvalidArgument("KV layout: the strides leave layer_bytes; choose_layout fills them");
  }
  return OkStatus();
}

namespace {

class Quant final : public QuantOps {
 public:
  Status ChooseLayout(KvLayout& l) const override {
    OCTET_RETURN_IF_ERROR(CheckLayout(l));
    if (l.v_is_k || l.has_k_extra) return CheckUsable(l);
    // Scales before codes, tokens outermost: unlike the canonical page on purpose.
    uint64_t end = 0;
    auto place = [&](uint64_t& base, std::array<int64_t, 3>& stride, int64_t row_bytes) {
      base = end;
      stride = {row_bytes * l.kv_heads * l.page_tokens, row_bytes, row_bytes * l.kv_heads};
      end += (static_cast<uint64_t>(stride[0]) * static_cast<uint64_t>(l.num_pages) + 127) / 128 * 128;
    };
    for (CacheSide* s : {&l.k, &l.v}) {
      if (s->dynamic()) place(s->scale_base, s->scale_stride, s->groups() * ElementBytes(s->scale_type));
      if (s->dynamic() && s->scheme == Scheme::kAsymmetric)
        place(s->zero_base, s->zero_stride, s->groups() * ElementBytes(s->zero_type));
      place(s->data_base, s->data_stride, s->head_dim * ElementBytes(s->data_type));
    }
    l.layer_bytes = end;
    return OkStatus();
  }

  Support Supports(const KvLayout& l, DType input) const override {
    if (Faulty("claims_support")) return Support::Yes(2, "anything");
    if (const Status status = CheckUsable(l); !status.ok()) return Support::No(status.message());
    if (input != DType::kF32) return Support::No("rows must be f32");
    return Support::Yes(1, "reference");
  }

  Status Append(Stream&, const KvLayout& l, const KvLayer& y, const KvTokens& t) override {
    if (Faulty("writes_then_refuses") && y.cache != nullptr) HostBufferOf(*y.cache).data()[y.cache_offset] = 0;
    OCTET_RETURN_IF_ERROR(Check(l, y, t, false));
    const OpenCache cache(l, y);
    for (int64_t i = 0; i < t.slots->shape[0]; ++i) {
      int64_t slot = HostData<const int64_t>(*t.slots)[i];
      if (slot < 0 && Faulty("slot_minus_one_written")) slot = 0;
      if (slot < 0) continue;
      for (int h = 0; h < l.kv_heads; ++h) {
        std::vector<float> k, v;
        for (int c = 0; c < l.k.head_dim; ++c) k.push_back(static_cast<float>(Get(*t.k, i, h, c)));
        for (int c = 0; c < l.v.head_dim; ++c) v.push_back(static_cast<float>(Get(*t.v, i, h, c)));
        if (const float* offset = cache.offsets.empty() ? nullptr : cache.Offset(Int(*t.positions, i), h)) {
          for (size_t c = 0; c < k.size(); ++c) k[c] -= offset[c];
        }
        ref::StoredRow row = ref::EncodeRow(l.k, k, cache.k_static, h);
        Spoil(l.k, k, row);
        if (Faulty("stale_scale")) {
          const auto old = cache.k.Load(slot / l.page_tokens, h, slot % l.page_tokens).scale;
          if (!old.empty() && !std::isnan(old[0])) row.scale = old;
        }
        cache.k.Store(slot / l.page_tokens, h, slot % l.page_tokens, row);
        cache.v.Store(slot / l.page_tokens, h, slot % l.page_tokens, ref::EncodeRow(l.v, v, cache.v_static, h));
      }
    }
    return OkStatus();
  }

  Status Gather(Stream&, const KvLayout& l, const KvLayer& y, const KvTokens& t) override {
    OCTET_RETURN_IF_ERROR(Check(l, y, t, true));
    const OpenCache cache(l, y);
    for (int64_t i = 0; i < t.slots->shape[0]; ++i) {
      const int64_t slot = HostData<const int64_t>(*t.slots)[i];
      if (slot < 0) continue;
      for (int h = 0; h < l.kv_heads; ++h) {
        const int position = cache.offsets.empty() ? 0 : Int(*t.positions, i);
        const auto k = cache.K<float>(slot / l.page_tokens, slot % l.page_tokens, h, position);
        const auto v = cache.V<float>(slot / l.page_tokens, slot % l.page_tokens, h);
        for (size_t c = 0; c < k.size() && t.k != nullptr; ++c) Set(*t.k, k[c], i, h, static_cast<int64_t>(c));
        for (size_t c = 0; c < v.size() && t.v != nullptr; ++c) Set(*t.v, v[c], i, h, static_cast<int64_t>(c));
      }
    }
    return OkStatus();
  }

  Status CopyPages(Stream&, const KvLayout& l, const KvLayer& y, const Tensor& pairs) override {
    OCTET_RETURN_IF_ERROR(CheckUsable(l));
    OCTET_RETURN_IF_ERROR(CheckLayerInside(l, y, 0));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("pairs", &pairs, DType::kI32, {-1, 2}));
    std::vector<int32_t> list;
    for (int64_t i = 0; i < pairs.shape[0]; ++i) {
      for (int64_t j = 0; j < 2; ++j) list.push_back(HostData<const int32_t>(pairs)[i * pairs.stride[0] + j]);
    }
    OCTET_RETURN_IF_ERROR(CheckPages(l, list));
    const OpenCache cache(l, y);
    for (size_t i = 0; i < list.size(); i += 2) {
      if (Faulty("copy_pages_reversed")) std::swap(list[i], list[i + 1]);
      ForEachRow(l, [&](int h, int t) {
        for (const Place* place : {&cache.k, &cache.v}) place->Store(list[i + 1], h, t, place->Load(list[i], h, t));
      });
    }
    return OkStatus();
  }

  Status ExportPages(Stream&, const KvLayout& l, const KvLayer& y, const Tensor& pages, Buffer& canonical,
                     uint64_t offset) override {
    return Exchange(l, y, pages, canonical, offset,
                    [&](const OpenCache& cache, int32_t page, std::span<uint8_t> bytes, int h, int t) {
                      ref::PutRow(l, ref::kSideK, bytes, h, t, cache.k.Load(page, h, t));
                      ref::PutRow(l, ref::kSideV, bytes, h, t,
                                  cache.v.Load(page, Faulty("export_other_head") ? 0 : h, t));
                    });
  }
  Status ImportPages(Stream&, const KvLayout& l, const KvLayer& y, const Tensor& pages, Buffer& canonical,
                     uint64_t offset) override {
    return Exchange(l, y, pages, canonical, offset,
                    [&](const OpenCache& cache, int32_t page, std::span<uint8_t> bytes, int h, int t) {
                      cache.k.Store(page, h, t, ref::GetRow(l, ref::kSideK, bytes, h, t));
                      cache.v.Store(page, h, t, ref::GetRow(l, ref::kSideV, bytes, h, t));
                    });
  }

 private:
  // Faults in a row that has one symmetric scale.
  static void Spoil(const CacheSide& side, std::vector<float> x, ref::StoredRow& row) {
    if (!side.dynamic() || side.groups() != 1 || side.scheme != Scheme::kSymmetric) return;
    if (Faulty("nan_swallowed") && std::isnan(row.scale[0])) row.scale[0] = 0;
    if (!(row.scale[0] > 0)) return;
    ref::Hadamard<float>(x, side.rotation);
    for (size_t c = 0; c < x.size(); ++c) {
      const float quotient = x[c] / row.scale[0];
      float code = static_cast<int8_t>(row.data[c]);
      if (Faulty("round_half_away")) code = std::round(quotient);
      if (Faulty("truncates")) code = std::trunc(quotient);
      code = std::clamp(code, -127.0f, 127.0f);
      if (Faulty("writes_minus_128") && code == -127.0f) code = -128.0f;
      row.data[c] = static_cast<uint8_t>(static_cast<int8_t>(code));
    }
  }
  static Status Check(const KvLayout& l, const KvLayer& y, const KvTokens& t, bool gather) {
    OCTET_RETURN_IF_ERROR(CheckUsable(l));
    OCTET_RETURN_IF_ERROR(CheckLayerInside(l, y, 0));
    return CheckHostTokens(l, y, t, gather);
  }
  static Status CheckPages(const KvLayout& l, const std::vector<int32_t>& pages) {
    for (int32_t p : pages) {
      if (p < 0 || p >= l.num_pages) return InvalidArgument("page " + std::to_string(p) + " does not exist");
    }
    return OkStatus();
  }
  template <typename Body>
  static void ForEachRow(const KvLayout& l, Body body) {
    for (int h = 0; h < l.kv_heads; ++h) {
      for (int t = 0; t < l.page_tokens; ++t) body(h, t);
    }
  }
  template <typename Body>
  static Status Exchange(const KvLayout& l, const KvLayer& y, const Tensor& pages, Buffer& canonical, uint64_t offset,
                         Body body) {
    OCTET_RETURN_IF_ERROR(CheckUsable(l));
    OCTET_RETURN_IF_ERROR(CheckLayerInside(l, y, 0));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("pages", &pages, DType::kI32, {-1}));
    std::vector<int32_t> list;
    for (int64_t i = 0; i < pages.shape[0]; ++i) list.push_back(Int(pages, i));
    OCTET_RETURN_IF_ERROR(CheckPages(l, list));
    const size_t page_bytes = static_cast<size_t>(ref::CanonicalPageBytes(l));
    OCTET_RETURN_IF_ERROR(HostBufferOf(canonical).CheckRange("canonical pages", offset, list.size() * page_bytes));
    const OpenCache cache(l, y);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::span<uint8_t> bytes(HostBufferOf(canonical).data() + offset + i * page_bytes, page_bytes);
      ForEachRow(l, [&](int h, int t) { body(cache, list[i], bytes, h, t); });
    }
    return OkStatus();
  }
};

}  // namespace

std::unique_ptr<QuantOps> MakeReferenceQuant() { return std::make_unique<Quant>(); }

}  // namespace octet::mutants
