// Rows and pages in and out of the cache: the first of the two classes that make a backend. See octet/quant_ops.h.
#ifndef TEMPLATE_QUANT_H_
#define TEMPLATE_QUANT_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cache.h"

namespace example {

// Codes of x[n]; returns the scale. One scale per row: x is about scale * code.
inline float Quantize(const float* x, int32_t n, int8_t* codes) {
  float largest = 0.0f;
  bool finite = true;
  for (int32_t c = 0; c < n; ++c) {
    finite = finite && std::isfinite(x[c]);
    largest = std::max(largest, std::fabs(x[c]));
  }
  if (!finite || largest < 1e-30f) {  // a damaged row must show in its sequence: NaN, never a plausible number
    std::fill_n(codes, n, int8_t{0});
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = 127.0f / largest;
  for (int32_t c = 0; c < n; ++c) {  // nearbyint: ties to even
    codes[c] = static_cast<int8_t>(std::clamp(std::nearbyint(x[c] * inverse), -127.0f, 127.0f));
  }
  return largest / 127.0f;
}

// The offset of K for token i, [head_dim]; null where the layer has none.
inline const float* OffsetOf(const KvLayout& l, const KvLayer& layer, const KvTokens& tokens, int64_t i, int64_t head) {
  if (layer.k_offset == nullptr) return nullptr;
  return RowOf(*layer.k_offset, HostData<const int32_t>(*tokens.positions)[i] / l.offset_block, head);
}

// Calls row(token i, head, page, token of the page) for every slot that is not -1. Heads run in parallel.
template <typename Body>
void ForEachRow(const KvLayout& l, const KvTokens& tokens, Body row) {
  const auto* slots = HostData<const int64_t>(*tokens.slots);
  octet::ParallelFor(l.kv_heads, [&](uint32_t, int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t i = 0; i < tokens.slots->shape[0]; ++i) {
        if (slots[i] >= 0) row(i, head, slots[i] / l.page_tokens, slots[i] % l.page_tokens);
      }
    }
  });
}

inline Status CheckPages(const KvLayout& l, const KvLayer& layer, const Tensor& pages, int64_t columns) {
  OCTET_RETURN_IF_ERROR(CheckCache(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(columns == 1 ? octet::CheckTensorInside("pages", &pages, DType::kI32, {-1})
                                     : octet::CheckTensorInside("pairs", &pages, DType::kI32, {-1, columns}));
  for (int64_t i = 0; i < pages.shape[0] * columns; ++i) {
    const int32_t page = HostData<const int32_t>(pages)[i / columns * pages.stride[0] + i % columns];
    if (page >= 0 && page < l.num_pages) continue;
    return InvalidArgument("page " + std::to_string(page) + " does not exist; the cache has " +
                           std::to_string(l.num_pages));
  }
  return OkStatus();
}

inline void CopyPage(const KvLayout& from, uint8_t* source, int64_t source_page, const KvLayout& to, uint8_t* target,
                     int64_t target_page) {
  for (const auto side : {&KvLayout::k, &KvLayout::v}) {
    const Rows in(source, from.*side), out(target, to.*side);
    for (int64_t head = 0; head < from.kv_heads; ++head) {
      for (int64_t t = 0; t < from.page_tokens; ++t) {
        std::copy_n(in.Codes(source_page, head, t), (from.*side).head_dim, out.Codes(target_page, head, t));
        out.SetScale(target_page, head, t, in.Scale(source_page, head, t));
      }
    }
  }
}

// The canonical form of this layout, once `pages` pages of it fit into the buffer from `offset` on.
inline StatusOr<KvLayout> CanonicalPages(KvLayout l, const Tensor& pages, Buffer& canonical, uint64_t offset) {
  OCTET_RETURN_IF_ERROR(octet::CanonicalLayout(l));
  const auto bytes = static_cast<uint64_t>(l.k.data_stride[0]) * static_cast<uint64_t>(pages.shape[0]);
  OCTET_RETURN_IF_ERROR(HostBufferOf(canonical).CheckRange("canonical pages", offset, bytes));
  return l;
}

// Has no state: usable from any thread.
class Quant final : public octet::QuantOps {
 public:
  // Codes of K and V, then scales, per page and head: the canonical page. Yours may be any that its strides can say.
  Status ChooseLayout(KvLayout& layout) const override {
    OCTET_RETURN_IF_ERROR(CheckKnown(layout));
    return octet::CanonicalLayout(layout);
  }

  Support Supports(const KvLayout& layout, DType input) const override {
    if (const Status status = CheckCache(layout); !status.ok()) return Support::No(status.message());
    if (input != DType::kF32) return Support::No("rows of K and V must be f32");
    return Support::Yes(1, "template loops");
  }

  // Per token and head: k - offset, rotate, quantize, store; V without an offset.
  Status Append(Stream&, const KvLayout& l, const KvLayer& layer, const KvTokens& tokens) override {
    OCTET_RETURN_IF_ERROR(CheckCache(l));
    OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
    OCTET_RETURN_IF_ERROR(octet::CheckHostTokens(l, layer, tokens, false));
    const Rows keys(CacheOf(layer), l.k), values(CacheOf(layer), l.v);
    ForEachRow(l, tokens, [&](int64_t i, int64_t head, int64_t page, int64_t t) {
      float x[kMaxHeadDim];
      std::copy_n(RowOf(*tokens.k, i, head), l.k.head_dim, x);
      if (const float* offset = OffsetOf(l, layer, tokens, i, head)) {
        for (int32_t c = 0; c < l.k.head_dim; ++c) x[c] -= offset[c];
      }
      Rotate(x, l.k.head_dim, l.k.rotation);
      keys.SetScale(page, head, t, Quantize(x, l.k.head_dim, keys.Codes(page, head, t)));

      std::copy_n(RowOf(*tokens.v, i, head), l.v.head_dim, x);
      Rotate(x, l.v.head_dim, l.v.rotation);
      values.SetScale(page, head, t, Quantize(x, l.v.head_dim, values.Codes(page, head, t)));
    });
    return OkStatus();
  }

  Status Gather(Stream&, const KvLayout& l, const KvLayer& layer, const KvTokens& tokens) override {
    OCTET_RETURN_IF_ERROR(CheckCache(l));
    OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
    OCTET_RETURN_IF_ERROR(octet::CheckHostTokens(l, layer, tokens, true));
    const Rows keys(CacheOf(layer), l.k), values(CacheOf(layer), l.v);
    const auto dequantize = [](const Rows& rows, const CacheSide& side, int64_t page, int64_t head, int64_t t,
                               float* x) {
      for (int32_t c = 0; c < side.head_dim; ++c) x[c] = rows.Scale(page, head, t) * rows.Codes(page, head, t)[c];
      Rotate(x, side.head_dim, side.rotation);
    };
    ForEachRow(l, tokens, [&](int64_t i, int64_t head, int64_t page, int64_t t) {
      if (tokens.k != nullptr) {
        float* k = RowOf(*tokens.k, i, head);
        dequantize(keys, l.k, page, head, t, k);
        if (const float* offset = OffsetOf(l, layer, tokens, i, head)) {
          for (int32_t c = 0; c < l.k.head_dim; ++c) k[c] += offset[c];
        }
      }
      if (tokens.v != nullptr) dequantize(values, l.v, page, head, t, RowOf(*tokens.v, i, head));
    });
    return OkStatus();
  }

  Status CopyPages(Stream&, const KvLayout& l, const KvLayer& layer, const Tensor& pairs) override {
    OCTET_RETURN_IF_ERROR(CheckPages(l, layer, pairs, 2));
    for (int64_t i = 0; i < pairs.shape[0]; ++i) {
      const auto* pair = HostData<const int32_t>(pairs) + i * pairs.stride[0];
      CopyPage(l, CacheOf(layer), pair[0], l, CacheOf(layer), pair[1]);
    }
    return OkStatus();
  }

  Status ExportPages(Stream&, const KvLayout& l, const KvLayer& layer, const Tensor& pages, Buffer& canonical,
                     uint64_t offset) override {
    OCTET_RETURN_IF_ERROR(CheckPages(l, layer, pages, 1));
    const auto form = CanonicalPages(l, pages, canonical, offset);
    if (!form.ok()) return form.status();
    for (int64_t i = 0; i < pages.shape[0]; ++i) {
      CopyPage(l, CacheOf(layer), HostData<const int32_t>(pages)[i], *form, HostBufferOf(canonical).data() + offset, i);
    }
    return OkStatus();
  }

  Status ImportPages(Stream&, const KvLayout& l, const KvLayer& layer, const Tensor& pages, Buffer& canonical,
                     uint64_t offset) override {
    OCTET_RETURN_IF_ERROR(CheckPages(l, layer, pages, 1));
    const auto form = CanonicalPages(l, pages, canonical, offset);
    if (!form.ok()) return form.status();
    for (int64_t i = 0; i < pages.shape[0]; ++i) {
      CopyPage(*form, HostBufferOf(canonical).data() + offset, i, l, CacheOf(layer), HostData<const int32_t>(pages)[i]);
    }
    return OkStatus();
  }
};

}  // namespace example

#endif  // TEMPLATE_QUANT_H_
