#include "core/kv/paged_cache.h"

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

constexpr uint64_t kLayerAlignment = 128;
constexpr uint64_t kMaxBytes = uint64_t{1} << 62;

uint64_t TableBytes(const std::vector<float>& table) { return table.size() * sizeof(float); }

}  // namespace

absl::StatusOr<KvPlan> PagedCache::Plan(const KvLayout& layout, int32_t layers, int32_t offset_layers,
                                        int64_t max_len) {
  KvPlan plan;
  plan.layout = layout;
  plan.layers = layers;
  const KvBytes layer = CountKvBytes(layout);
  const uint64_t n = static_cast<uint64_t>(layers);
  plan.pages = {layer.data * n, layer.scales * n, layer.padding * n};
  const uint64_t blocks = static_cast<uint64_t>((max_len + kOffsetBlock - 1) / kOffsetBlock);
  plan.offset_bytes = static_cast<uint64_t>(offset_layers) * blocks * static_cast<uint64_t>(layout.kv_heads) *
                      static_cast<uint64_t>(layout.k.head_dim) * sizeof(float);
  uint64_t total = 0;
  if (__builtin_mul_overflow(layout.layer_bytes, n, &total) ||
      __builtin_add_overflow(total, plan.offset_bytes, &total) || total > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a KV cache of ", layout.num_pages, " pages of ", layout.page_tokens,
                                                   " tokens in ", layers,
                                                   " layers needs more than 2^62 bytes; ask for fewer tokens"));
  }
  return plan;
}

absl::StatusOr<std::unique_ptr<PagedCache>> PagedCache::Create(Device& device, octet_stream* stream, const KvPlan& plan,
                                                               const KOffsetTables& offsets) {
  if (plan.layout.layer_bytes % kLayerAlignment != 0) {
    return absl::InternalError(absl::StrCat(device.id(), " chose a KV layout of ", plan.layout.layer_bytes,
                                            " bytes per layer, which is no multiple of ", kLayerAlignment));
  }
  auto before = device.memory();
  if (!before.ok()) return before.status();
  std::unique_ptr<PagedCache> cache(new PagedCache(plan));
  auto pages = device.Alloc(plan.pages.total());
  if (!pages.ok()) return pages.status();
  cache->pages_ = *std::move(pages);
  if (plan.offset_bytes > 0) {
    auto buffer = device.Alloc(plan.offset_bytes);
    if (!buffer.ok()) return buffer.status();
    cache->offsets_ = *std::move(buffer);
  }
  auto after = device.memory();
  if (!after.ok()) return after.status();
  cache->allocated_bytes_ = after->held_bytes - before->held_bytes;
  if (cache->allocated_bytes_ != plan.total()) {
    return absl::InternalError(absl::StrCat(device.id(), " holds ", cache->allocated_bytes_,
                                            " bytes for the KV cache, and the plan says ", plan.total()));
  }

  const DrainAtEnd drain(device, stream);  // tables, which the caller may free afterwards, may be on their way
  uint64_t offset = 0;
  cache->offset_tensors_.resize(static_cast<size_t>(plan.layers));
  for (int32_t i = 0; i < plan.layers; ++i) {
    KvLayer layer;
    layer.layer = i;
    layer.cache = cache->pages_.get();
    layer.cache_offset = static_cast<uint64_t>(i) * plan.layout.layer_bytes;
    const size_t index = static_cast<size_t>(i);
    if (index < offsets.size() && !offsets[index].empty()) {
      const std::vector<float>& table = offsets[index];
      const int64_t row = static_cast<int64_t>(plan.layout.kv_heads) * plan.layout.k.head_dim;
      cache->offset_tensors_[index] =
          MakeTensor(cache->offsets_.get(), DType::kF32,
                     {static_cast<int64_t>(table.size()) / row, plan.layout.kv_heads, plan.layout.k.head_dim}, offset);
      layer.k_offset = &cache->offset_tensors_[index];
      if (auto status = device.Write(stream, cache->offsets_.get(), offset, table.data(), TableBytes(table));
          !status.ok()) {
        return status;
      }
      offset += TableBytes(table);
    }
    cache->layers_.push_back(layer);
  }
  if (auto status = device.Sync(stream); !status.ok()) return status;
  return cache;
}

}  // namespace octet
