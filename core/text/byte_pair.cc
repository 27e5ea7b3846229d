#include "core/text/byte_pair.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace octet {
namespace {

// Heap order: the front has the lowest rank, then the leftmost place.
constexpr auto kLater = [](const auto& a, const auto& b) {
  return std::tie(a.rank, a.left) > std::tie(b.rank, b.left);
};

}  // namespace

void BytePairMerger::Add(int32_t left_id, int32_t right_id, int32_t joined_id) {
  pairs_.try_emplace(Pair(left_id, right_id), Joined{static_cast<int32_t>(pairs_.size()), joined_id});
}

void BytePairMerger::Offer(int32_t left, Scratch* scratch) const {
  const auto& symbols = scratch->symbols_;
  const Scratch::Symbol& symbol = symbols[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const int32_t right_id = symbols[static_cast<size_t>(symbol.next)].id;
  const auto pair = pairs_.find(Pair(symbol.id, right_id));
  if (pair == pairs_.end()) return;
  scratch->heap_.push_back({pair->second.rank, left, symbol.id, right_id, pair->second.id});
  std::push_heap(scratch->heap_.begin(), scratch->heap_.end(), kLater);
}

void BytePairMerger::Merge(std::vector<int32_t>* ids, Scratch* scratch) const {
  if (ids->size() < 2) return;
  auto& symbols = scratch->symbols_;
  auto& heap = scratch->heap_;
  const auto count = static_cast<int32_t>(ids->size());
  symbols.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({(*ids)[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  heap.clear();
  for (int32_t i = 0; i + 1 < count; ++i) Offer(i, scratch);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kLater);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.left)];
    if (left.id != best.left_id || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != best.right_id) continue;
    left.id = best.joined_id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.left;
    if (left.previous >= 0) Offer(left.previous, scratch);
    Offer(best.left, scratch);
  }
  ids->clear();
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids->push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace octet
