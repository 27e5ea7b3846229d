// The KV cache of one runner on one device: one buffer of pages for all layers, and the K offset tables.
#ifndef OCTET_CORE_KV_PAGED_CACHE_H_
#define OCTET_CORE_KV_PAGED_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/kv/kv_options.h"
#include "core/kv/page_pool.h"
#include "core/loader/device.h"

namespace octet {

// Bytes that a cache takes on its device, known before anything is allocated.
struct KvPlan {
  KvLayout layout;
  int32_t layers = 0;
  KvBytes pages;              // all layers
  uint64_t offset_bytes = 0;  // K offset tables
  uint64_t total() const { return pages.total() + offset_bytes; }
};

// f32 [blocks][kv_heads][head_dim] per layer, empty where a layer has none; no tables at all where no layer has one.
using KOffsetTables = std::vector<std::vector<float>>;

// Thread-compatible, like its pool. Plan and layers are constant after Create.
class PagedCache {
 public:
  // `offset_layers` layers have a K offset table for positions below max_len. InvalidArgument beyond 2^62 bytes.
  static absl::StatusOr<KvPlan> Plan(const KvLayout& layout, int32_t layers, int32_t offset_layers, int64_t max_len);

  // Allocates what the plan says and checks with the device that exactly that was taken (Internal otherwise), so
  // nothing else may allocate on the device meanwhile. `offsets` are the tables that were planned for. `device` and
  // `stream` are borrowed; the device must outlive the cache.
  static absl::StatusOr<std::unique_ptr<PagedCache>> Create(Device& device, octet_stream* stream, const KvPlan& plan,
                                                            const KOffsetTables& offsets);

  const KvLayout& layout() const { return plan_.layout; }
  const KvPlan& plan() const { return plan_; }
  uint64_t allocated_bytes() const { return allocated_bytes_; }  // as the device counted them
  PagePool& pool() { return pool_; }
  const KvLayer& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }

 private:
  explicit PagedCache(const KvPlan& plan) : plan_(plan), pool_(plan.layout.num_pages, plan.layout.page_tokens) {}

  KvPlan plan_;
  uint64_t allocated_bytes_ = 0;
  OwnedBuffer pages_, offsets_;
  std::vector<Tensor> offset_tensors_;
  std::vector<KvLayer> layers_;
  PagePool pool_;
};

}  // namespace octet

#endif  // OCTET_CORE_KV_PAGED_CACHE_H_
