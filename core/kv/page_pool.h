// The pages of one KV cache, and the page tables of the sequences that use them. A page number means the same page in
// every layer.
#ifndef OCTET_CORE_KV_PAGE_POOL_H_
#define OCTET_CORE_KV_PAGE_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace octet {

// Thread-compatible. Lowest free page first, so that a run is repeatable.
class PagePool {
 public:
  PagePool(int32_t num_pages, int32_t page_tokens);

  int32_t page_tokens() const { return page_tokens_; }
  int32_t num_pages() const { return num_pages_; }
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()); }

 private:
  friend class PageTable;
  int32_t num_pages_, page_tokens_;
  std::vector<int32_t> free_;  // descending: the lowest page is last
};

// One sequence's pages, in order of position. Gives them back when it ends; must not outlive its pool.
class PageTable {
 public:
  explicit PageTable(PagePool* pool) : pool_(pool) {}
  PageTable(PageTable&& other) noexcept;
  PageTable& operator=(PageTable&&) = delete;
  ~PageTable() { Truncate(0); }

  // Makes room for `tokens` tokens in all. ResourceExhausted, with nothing taken, when the pool has too few pages.
  absl::Status Reserve(int64_t tokens);
  // Keeps the pages that the first `tokens` tokens lie in and gives back the rest.
  void Truncate(int64_t tokens);

  std::span<const int32_t> pages() const { return pages_; }
  // page * page_tokens + index of a position that Reserve covered.
  int64_t Slot(int64_t position) const {
    return static_cast<int64_t>(pages_[static_cast<size_t>(position / pool_->page_tokens())]) * pool_->page_tokens() +
           position % pool_->page_tokens();
  }

 private:
  PagePool* pool_;
  std::vector<int32_t> pages_;
};

}  // namespace octet

#endif  // OCTET_CORE_KV_PAGE_POOL_H_
