#include "backends/cpu/quant.h"

#include <cstring>
#include <string>

#include "octet/cache_runs.h"
#include "octet/checks.h"

namespace octet_cpu {
namespace {

using octet::CacheSide;
using octet::DType;
using octet::InvalidArgument;
using octet::KvLayer;
using octet::KvLayout;
using octet::KvTokens;
using octet::OkStatus;
using octet::Status;
using octet::Support;
using octet::Tensor;
using octet::Unimplemented;

Status CheckKnown(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(octet::CheckLayout(l));
  if (l.v_is_k && l.offset_block > 0) {
    return Unimplemented(
        "cpu: a K offset table is not supported where V is K's row (MLA), as V would lack the offsets; use "
        "offset_block 0");
  }
  for (const auto& [name, s] : octet::StoredSides(l)) {
    if (s->order != 0) {
      return Unimplemented(std::string("cpu: tile order ") + std::to_string(s->order) + " of " + name +
                           " is unknown; only order 0 (rows) is");
    }
  }
  return OkStatus();
}

Status CheckPages(const char* name, const KvLayout& l, const int32_t* pages, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (pages[i] < 0 || pages[i] >= l.num_pages) {
      return InvalidArgument(std::string(name) + ": page " + std::to_string(pages[i]) +
                             " does not exist; the cache has " + std::to_string(l.num_pages));
    }
  }
  return OkStatus();
}

Scales ScalesOf(const CacheSide& s) {
  if (!s.quantized()) return Scales::kNone;
  switch (s.axis) {
    case octet::Axis::kTensor:
      return Scales::kTensor;
    case octet::Axis::kHead:
      return Scales::kHead;
    case octet::Axis::kChannel:
      return Scales::kChannel;
    default:
      return Scales::kToken;
  }
}

// Channels that a token takes per KV head.
int64_t RowChannels(const KvLayout& l) { return octet::KRowDim(l) + (l.v_is_k ? 0 : l.v.head_dim); }

uint8_t* CacheOf(const KvLayer& layer) { return octet::HostBufferOf(*layer.cache).data() + layer.cache_offset; }

Side SideOf(const KvLayer& layer, const CacheSide& s, const Tensor* scale, const Tensor* zero) {
  Side side{};
  uint8_t* cache = CacheOf(layer);
  side.data = cache + s.data_base;
  // A base that the layout does not use may hold anything.
  if (s.dynamic()) side.scale = cache + s.scale_base;
  if (s.dynamic() && s.scheme == octet::Scheme::kAsymmetric) side.zero = cache + s.zero_base;
  for (size_t i = 0; i < 3; ++i) {
    side.data_stride[i] = s.data_stride[i];
    side.scale_stride[i] = s.scale_stride[i];
    side.zero_stride[i] = s.zero_stride[i];
  }
  side.static_scale = scale != nullptr ? octet::HostData<const float>(*scale) : nullptr;
  side.static_zero = zero != nullptr ? octet::HostData<const float>(*zero) : nullptr;
  if (scale != nullptr) side.static_scale_stride = scale->stride[0];
  if (zero != nullptr) side.static_zero_stride = zero->stride[0];
  side.element = ElementOf(s.data_type);
  side.scales = ScalesOf(s);
  side.asymmetric = s.scheme == octet::Scheme::kAsymmetric;
  side.scale_bf16 = s.scale_type == DType::kBF16;
  side.zero_bf16 = s.zero_type == DType::kBF16;
  side.head_dim = s.head_dim;
  side.group = s.group > 0 ? s.group : s.head_dim;
  side.rotation = s.rotation;
  return side;
}

// Copies every row of one page between two placements of the same descriptor.
void CopyPage(const KvLayout& from, const uint8_t* source, int64_t source_page, const KvLayout& to, uint8_t* target,
              int64_t target_page) {
  const octet::StoredSides in_sides(from), out_sides(to);
  for (size_t s = 0; s < in_sides.count; ++s) {
    const auto in = octet::RunsOf(*in_sides.sides[s].second), out = octet::RunsOf(*out_sides.sides[s].second);
    for (size_t i = 0; i < in.size(); ++i) {
      const auto bytes = static_cast<size_t>(in[i].row_bytes);
      if (bytes == 0) continue;
      for (int64_t head = 0; head < from.kv_heads; ++head) {
        const uint8_t* x = source + in[i].base + source_page * in[i].stride[0] + head * in[i].stride[1];
        uint8_t* y = target + out[i].base + target_page * out[i].stride[0] + head * out[i].stride[1];
        for (int64_t t = 0; t < from.page_tokens; ++t) {
          std::memmove(y + t * out[i].stride[2], x + t * in[i].stride[2], bytes);  // strides may make rows overlap
        }
      }
    }
  }
}

}  // namespace

Status CheckPlacedLayout(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(CheckKnown(l));
  return octet::CheckRuns(l);
}

Side KSide(const KvLayout& l, const KvLayer& layer) { return SideOf(layer, l.k, layer.k_scale, layer.k_zero); }
Side VSide(const KvLayout& l, const KvLayer& layer) {
  return l.v_is_k ? KSide(l, layer) : SideOf(layer, l.v, layer.v_scale, layer.v_zero);
}
Side KExtraSide(const KvLayout& l, const KvLayer& layer) {
  return l.has_k_extra ? SideOf(layer, l.k_extra, nullptr, nullptr) : Side{};
}

OffsetTable OffsetsOf(const KvLayout& l, const KvLayer& layer) {
  if (layer.k_offset == nullptr) return {};
  return {octet::HostData<const float>(*layer.k_offset), layer.k_offset->stride[0], layer.k_offset->stride[1],
          l.offset_block};
}

Status Quant::ChooseLayout(KvLayout& l) const {
  l.k.order = l.v.order = l.k_extra.order = 0;
  OCTET_RETURN_IF_ERROR(CheckKnown(l));
  return octet::CanonicalLayout(l);
}

Support Quant::Supports(const KvLayout& l, DType input) const {
  if (const Status s = CheckPlacedLayout(l); !s.ok()) return Support::No(s.message());
  if (input != DType::kF32) {
    return Support::No(std::string("cpu: rows of type ") + octet::DTypeName(input) +
                       " cannot be appended; f32 rows can");
  }
  return Support::Yes(2, std::string("quantize ") + context_.kernels->name);
}

Status Quant::RunRows(const KvLayout& l, const KvLayer& layer, const KvTokens& t, bool gather) {
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(octet::CheckHostTokens(l, layer, t, gather));
  const int64_t tokens = t.slots->shape[0];
  if (tokens == 0) return OkStatus();
  RowsParams p{};
  p.k = KSide(l, layer);
  p.v = VSide(l, layer);
  p.k_extra = KExtraSide(l, layer);
  if (t.k != nullptr) {
    p.k_rows = octet::HostData<float>(*t.k);
    p.k_token_stride = t.k->stride[0];
    p.k_head_stride = t.k->stride[1];
  }
  if (t.v != nullptr) {
    p.v_rows = octet::HostData<float>(*t.v);
    p.v_token_stride = t.v->stride[0];
    p.v_head_stride = t.v->stride[1];
  }
  p.slots = octet::HostData<const int64_t>(*t.slots);
  p.positions = t.positions != nullptr ? octet::HostData<const int32_t>(*t.positions) : nullptr;
  p.offset = OffsetsOf(l, layer);
  p.kv_heads = l.kv_heads;
  p.page_tokens = l.page_tokens;
  auto* run = gather ? context_.kernels->gather : context_.kernels->append;
  context_.For(tokens * l.kv_heads, 8 * RowChannels(l), [&](int64_t begin, int64_t end) { run(p, begin, end); });
  return OkStatus();
}

Status Quant::Append(octet::Stream&, const KvLayout& l, const KvLayer& layer, const KvTokens& tokens) {
  return RunRows(l, layer, tokens, false);
}

Status Quant::Gather(octet::Stream&, const KvLayout& l, const KvLayer& layer, const KvTokens& tokens) {
  return RunRows(l, layer, tokens, true);
}

Status Quant::CopyPages(octet::Stream&, const KvLayout& l, const KvLayer& layer, const Tensor& pairs) {
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("pairs", &pairs, DType::kI32, {-1, 2}));
  const auto* data = octet::HostData<const int32_t>(pairs);
  for (int64_t i = 0; i < pairs.shape[0]; ++i) {
    OCTET_RETURN_IF_ERROR(CheckPages("copy_pages", l, data + i * pairs.stride[0], 2));
  }
  uint8_t* cache = CacheOf(layer);
  context_.For(pairs.shape[0], l.page_tokens * l.kv_heads * RowChannels(l), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* pair = data + i * pairs.stride[0];
      CopyPage(l, cache, pair[0], l, cache, pair[1]);
    }
  });
  return OkStatus();
}

// The canonical order is the layout that ChooseLayout gives, so this is a copy of rows between two placements.
Status Quant::Exchange(const KvLayout& l, const KvLayer& layer, const Tensor& pages, octet::Buffer& canonical,
                       uint64_t offset, bool to_canonical) {
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("pages", &pages, DType::kI32, {-1}));
  const int64_t n = pages.shape[0];
  if (n == 0) return OkStatus();
  const auto* data = octet::HostData<const int32_t>(pages);
  OCTET_RETURN_IF_ERROR(CheckPages(to_canonical ? "export_pages" : "import_pages", l, data, n));
  KvLayout packed = l;
  OCTET_RETURN_IF_ERROR(octet::CanonicalLayout(packed));
  const auto page_bytes = static_cast<uint64_t>(packed.k.data_stride[0]);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(n), page_bytes, &bytes)) {
    return InvalidArgument("canonical pages of more than 2^64 bytes");
  }
  OCTET_RETURN_IF_ERROR(octet::HostBufferOf(canonical).CheckRange("canonical pages", offset, bytes));
  uint8_t* cache = CacheOf(layer);
  uint8_t* out = octet::HostBufferOf(canonical).data() + offset;
  if (to_canonical) std::memset(out, 0, bytes);  // padding between runs
  context_.For(n, l.page_tokens * l.kv_heads * RowChannels(l), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (to_canonical) {
        CopyPage(l, cache, data[i], packed, out, i);
      } else {
        CopyPage(packed, out, i, l, cache, data[i]);
      }
    }
  });
  return OkStatus();
}

Status Quant::ExportPages(octet::Stream&, const KvLayout& l, const KvLayer& layer, const Tensor& pages,
                          octet::Buffer& canonical, uint64_t offset) {
  return Exchange(l, layer, pages, canonical, offset, true);
}

Status Quant::ImportPages(octet::Stream&, const KvLayout& l, const KvLayer& layer, const Tensor& pages,
                          octet::Buffer& canonical, uint64_t offset) {
  return Exchange(l, layer, pages, canonical, offset, false);
}

}  // namespace octet_cpu
