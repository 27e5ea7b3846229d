#include "core/kv/page_pool.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"

namespace octet {

PagePool::PagePool(int32_t num_pages, int32_t page_tokens) : num_pages_(num_pages), page_tokens_(page_tokens) {
  free_.reserve(static_cast<size_t>(num_pages));
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

PageTable::PageTable(PageTable&& other) noexcept : pool_(other.pool_), pages_(std::move(other.pages_)) {
  other.pages_.clear();
}

absl::Status PageTable::Reserve(int64_t tokens) {
  const int64_t page_tokens = pool_->page_tokens_;
  const size_t wanted = static_cast<size_t>((tokens + page_tokens - 1) / page_tokens);
  if (wanted <= pages_.size()) return absl::OkStatus();
  const size_t missing = wanted - pages_.size();
  if (missing > pool_->free_.size()) {
    return absl::ResourceExhaustedError(absl::StrCat("the KV cache is full: ", tokens, " tokens need ", missing,
                                                     " more pages, and ", pool_->free_.size(), " of ",
                                                     pool_->num_pages_, " are free"));
  }
  for (size_t i = 0; i < missing; ++i) {
    pages_.push_back(pool_->free_.back());
    pool_->free_.pop_back();
  }
  return absl::OkStatus();
}

void PageTable::Truncate(int64_t tokens) {
  const int64_t page_tokens = pool_->page_tokens_;
  const size_t kept = static_cast<size_t>((tokens + page_tokens - 1) / page_tokens);
  while (pages_.size() > kept) {
    const int32_t page = pages_.back();
    pages_.pop_back();
    std::vector<int32_t>& free = pool_->free_;
    free.insert(std::lower_bound(free.begin(), free.end(), page, std::greater<>()), page);
  }
}

}  // namespace octet
