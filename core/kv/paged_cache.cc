#include "core/kv/paged_cache.h"

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

constexpr uint64_t kLayerAlignment = 128;

uint64_t TableBytes(const std::vector<float>& table) { return table.size() * sizeof(float); }

}  // namespace

KvPlan PagedCache::Plan(const KvLayout& layout, int32_t layers, const KOffsetTables& offsets) {
  KvPlan plan;
  plan.layout = layout;
  plan.layers = layers;
  const KvBytes layer = CountKvBytes(layout);
  const uint64_t n = static_cast<uint64_t>(layers);
  plan.pages = {layer.data * n, layer.scales * n, layer.padding * n};
  for (const std::vector<float>& table : offsets) plan.offset_bytes += TableBytes(table);
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
