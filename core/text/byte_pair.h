// Byte-pair encoding: repeatedly joins the neighbouring pair with the best rank, leftmost first, until none is left.
// Reference: Sennrich et al., https://arxiv.org/abs/1508.07909.
#ifndef OCTET_CORE_TEXT_BYTE_PAIR_H_
#define OCTET_CORE_TEXT_BYTE_PAIR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/hash/hash.h"

namespace octet {

// Immutable once filled; any number of threads may merge at once, each with its own Scratch.
class BytePairMerger {
 public:
  // Buffers that one caller keeps between calls.
  class Scratch {
    friend class BytePairMerger;
    struct Symbol {
      int32_t id, previous, next;  // neighbours by index, -1 at the ends; id -1 once joined to the left
    };
    struct Candidate {
      int32_t rank, left;  // left symbol's index
      int32_t left_id, right_id, joined_id;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

  // Room for so many pairs.
  void Reserve(size_t pairs) { pairs_.reserve(pairs); }

  // Ranks are the order of the calls; a pair added again keeps its first rank. Ids are not negative.
  void Add(int32_t left_id, int32_t right_id, int32_t joined_id);

  // Replaces `ids`, fewer than 2^31 of them, by what is left after all merges. Time n log n.
  void Merge(std::vector<int32_t>* ids, Scratch* scratch) const;

 private:
  struct Joined {
    int32_t rank, id;
  };
  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void Offer(int32_t left, Scratch* scratch) const;

  std::unordered_map<uint64_t, Joined, absl::Hash<uint64_t>> pairs_;
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_BYTE_PAIR_H_
