#include "backends/gpu/quant.h"

#include <cmath>
#include <limits>
#include <string>

#include "octet/bounds.h"
#include "octet/cache_runs.h"
#include "octet/checks.h"

namespace octet_gpu {
namespace {

using octet::CacheRun;
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

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();  // of a launch

std::string Named(const char* text) { return std::string(runtime::kName) + ": " + text; }

Status CheckKnown(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(octet::CheckLayout(l));
  if (l.v_is_k && l.offset_block > 0) {
    return Unimplemented(
        Named("a K offset table is not supported where V is K's row (MLA), as V would lack the offsets; use "
              "offset_block 0"));
  }
  for (const auto& [name, s] : octet::StoredSides(l)) {
    if (s->order != 0) {
      return Unimplemented(Named("tile order ") + std::to_string(s->order) + " of " + name +
                           " is unknown; only order 0 (rows) is");
    }
  }
  return OkStatus();
}

// Element size of a run: what its addresses must be multiples of.
int64_t ElementBytesOf(const CacheSide& s, size_t run) {
  return run == 0 ? octet::ElementBytes(s.data_type) : octet::ElementBytes(run == 1 ? s.scale_type : s.zero_type);
}

Status CheckAlignment(const KvLayout& l) {
  for (const auto& [name, side] : octet::StoredSides(l)) {
    const auto runs = octet::RunsOf(*side);
    for (size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].row_bytes == 0) continue;
      const int64_t element = ElementBytesOf(*side, i);
      bool aligned = runs[i].base % static_cast<uint64_t>(element) == 0;
      for (const int64_t stride : runs[i].stride) aligned = aligned && stride % element == 0;
      if (!aligned) {
        return Unimplemented(Named("KV layout: the ") + runs[i].name + " of " + name +
                             " lie at addresses that are no multiples of their size");
      }
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

uint8_t* CacheOf(const KvLayer& layer) { return GpuBufferOf(*layer.cache).data() + layer.cache_offset; }

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
  if (scale != nullptr) {
    side.static_scale = DataOf<const float>(*scale);
    side.static_scale_stride = scale->stride[0];
  }
  if (zero != nullptr) {
    side.static_zero = DataOf<const float>(*zero);
    side.static_zero_stride = zero->stride[0];
  }
  side.rotation_factor = s.rotation > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.rotation))) : 1.0f;
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

// The largest power of two up to 16 that divides all that is added to an address.
int32_t WordOf(const PageCopyParams::Run& run) {
  uint64_t all = reinterpret_cast<uintptr_t>(run.from) | reinterpret_cast<uintptr_t>(run.to) |
                 static_cast<uint64_t>(run.row_bytes) | 16;
  for (int i = 0; i < 3; ++i) all |= static_cast<uint64_t>(run.from_stride[i] | run.to_stride[i]);
  return static_cast<int32_t>(all & ~(all - 1));
}

// Everything but the page lists, for two placements of the same descriptor.
PageCopyParams CopyBetween(const KvLayout& from, const uint8_t* source, const KvLayout& to, uint8_t* target) {
  PageCopyParams p{};
  p.kv_heads = from.kv_heads;
  p.page_tokens = from.page_tokens;
  const octet::StoredSides in_sides(from), out_sides(to);
  for (size_t s = 0; s < in_sides.count; ++s) {
    const auto in = octet::RunsOf(*in_sides.sides[s].second), out = octet::RunsOf(*out_sides.sides[s].second);
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i].row_bytes == 0) continue;
      PageCopyParams::Run& run = p.runs[p.num_runs++];
      run.from = source + in[i].base;
      run.to = target + out[i].base;
      run.row_bytes = static_cast<int32_t>(in[i].row_bytes);
      for (size_t d = 0; d < 3; ++d) {
        run.from_stride[d] = in[i].stride[d];
        run.to_stride[d] = out[i].stride[d];
      }
      run.word = WordOf(run);
    }
  }
  return p;
}

Status CheckBlocks(const char* what, int64_t n, int64_t kv_heads) {
  if (n <= kMostBlocks / kv_heads) return OkStatus();
  return Unimplemented(Named(what) + ": more than 2^31 - 1 rows of all heads in one call are not supported");
}

}  // namespace

Status CheckPlacedLayout(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(CheckKnown(l));
  OCTET_RETURN_IF_ERROR(octet::CheckRuns(l));
  return CheckAlignment(l);
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
  return {DataOf<const float>(*layer.k_offset), layer.k_offset->stride[0], layer.k_offset->stride[1],
          layer.k_offset->shape[0], l.offset_block};
}

Status Quant::ChooseLayout(KvLayout& l) const {
  l.k.order = l.v.order = l.k_extra.order = 0;
  OCTET_RETURN_IF_ERROR(CheckKnown(l));
  return octet::CanonicalLayout(l);
}

Support Quant::Supports(const KvLayout& l, DType input) const {
  if (const Status s = CheckPlacedLayout(l); !s.ok()) return Support::No(s.message());
  if (input != DType::kF32) {
    return Support::No(Named("rows of type ") + octet::DTypeName(input) + " cannot be appended; f32 rows can");
  }
  return Support::Yes(2, "quantize");
}

Status Quant::RunRows(octet::Stream& stream, const KvLayout& l, const KvLayer& layer, const KvTokens& t, bool gather) {
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(octet::CheckTokensInside(l, layer, t, gather));
  OCTET_RETURN_IF_ERROR(CheckBlocks(gather ? "gather" : "append", t.slots->shape[0], l.kv_heads));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  RowsParams p{};
  p.tokens = t.slots->shape[0];
  if (p.tokens == 0) return OkStatus();
  p.k = KSide(l, layer);
  p.v = VSide(l, layer);
  p.k_extra = KExtraSide(l, layer);
  if (t.k != nullptr) {
    p.k_rows = DataOf<float>(*t.k);
    p.k_token_stride = t.k->stride[0];
    p.k_head_stride = t.k->stride[1];
  }
  if (t.v != nullptr) {
    p.v_rows = DataOf<float>(*t.v);
    p.v_token_stride = t.v->stride[0];
    p.v_head_stride = t.v->stride[1];
  }
  p.slots = DataOf<const int64_t>(*t.slots);
  p.slot_count = int64_t{l.num_pages} * l.page_tokens;
  p.positions = t.positions != nullptr ? DataOf<const int32_t>(*t.positions) : nullptr;
  p.offset = OffsetsOf(l, layer);
  p.kv_heads = l.kv_heads;
  p.page_tokens = l.page_tokens;
  gather ? LaunchGather(p, NativeOf(stream)) : LaunchAppend(p, NativeOf(stream));
  return context_.CheckLaunch(gather ? "gather" : "append");
}

Status Quant::Append(octet::Stream& stream, const KvLayout& l, const KvLayer& layer, const KvTokens& tokens) {
  return RunRows(stream, l, layer, tokens, false);
}

Status Quant::Gather(octet::Stream& stream, const KvLayout& l, const KvLayer& layer, const KvTokens& tokens) {
  return RunRows(stream, l, layer, tokens, true);
}

Status Quant::CopyPages(octet::Stream& stream, const KvLayout& l, const KvLayer& layer, const Tensor& pairs) {
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("pairs", &pairs, DType::kI32, {-1, 2}));
  OCTET_RETURN_IF_ERROR(CheckBlocks("copy_pages", pairs.shape[0], l.kv_heads));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (pairs.shape[0] == 0) return OkStatus();
  PageCopyParams p = CopyBetween(l, CacheOf(layer), l, CacheOf(layer));
  p.from_pages = DataOf<const int32_t>(pairs);
  p.to_pages = p.from_pages + 1;
  p.list_stride = pairs.stride[0];
  p.pages = pairs.shape[0];
  p.from_count = p.to_count = l.num_pages;
  LaunchPageCopy(p, NativeOf(stream));
  return context_.CheckLaunch("copy_pages");
}

// The canonical order is the layout that ChooseLayout gives, so this is a copy of rows between two placements.
Status Quant::Exchange(octet::Stream& stream, const KvLayout& l, const KvLayer& layer, const Tensor& pages,
                       octet::Buffer& canonical, uint64_t offset, bool to_canonical) {
  const char* const what = to_canonical ? "export_pages" : "import_pages";
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(l));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(l, layer, 0));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("pages", &pages, DType::kI32, {-1}));
  OCTET_RETURN_IF_ERROR(CheckBlocks(what, pages.shape[0], l.kv_heads));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  const int64_t n = pages.shape[0];
  if (n == 0) return OkStatus();
  KvLayout packed = l;
  OCTET_RETURN_IF_ERROR(octet::CanonicalLayout(packed));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(n), static_cast<uint64_t>(packed.k.data_stride[0]), &bytes)) {
    return InvalidArgument("canonical pages of more than 2^64 bytes");
  }
  GpuBuffer& buffer = GpuBufferOf(canonical);
  OCTET_RETURN_IF_ERROR(buffer.CheckRange("canonical pages", offset, bytes));
  const auto* list = DataOf<const int32_t>(pages);
  uint8_t* other = buffer.data() + offset;
  PageCopyParams p{};
  if (to_canonical) {
    // Padding between runs.
    OCTET_RETURN_IF_ERROR(context_.Check(runtime::FillAsync(other, 0, bytes, NativeOf(stream)), what));
    p = CopyBetween(l, CacheOf(layer), packed, other);
    p.from_pages = list;
    p.from_count = l.num_pages;
    p.to_count = n;
  } else {
    p = CopyBetween(packed, other, l, CacheOf(layer));
    p.to_pages = list;
    p.from_count = n;
    p.to_count = l.num_pages;
  }
  p.list_stride = pages.stride[0];
  p.pages = n;
  LaunchPageCopy(p, NativeOf(stream));
  return context_.CheckLaunch(what);
}

Status Quant::ExportPages(octet::Stream& stream, const KvLayout& l, const KvLayer& layer, const Tensor& pages,
                          octet::Buffer& canonical, uint64_t offset) {
  return Exchange(stream, l, layer, pages, canonical, offset, true);
}

Status Quant::ImportPages(octet::Stream& stream, const KvLayout& l, const KvLayer& layer, const Tensor& pages,
                          octet::Buffer& canonical, uint64_t offset) {
  return Exchange(stream, l, layer, pages, canonical, offset, false);
}

}  // namespace octet_gpu
