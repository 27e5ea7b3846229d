// Finds special tokens spelled out in a text.
// Where spellings overlap, the longer one wins wherever it stands; of equal lengths the lower id, then the earlier
// place. That is the order in which llama.cpp cuts a text (src/llama-vocab.cpp, tokenizer_st_partition).
#ifndef OCTET_CORE_TEXT_SPECIAL_MATCHER_H_
#define OCTET_CORE_TEXT_SPECIAL_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/hash/hash.h"

namespace octet {

class SpecialMatcher {
 public:
  struct Match {
    size_t begin, size;  // bytes
    int32_t id;
  };

  // `spelling` is not empty and not added before. `control`: found only when the caller asks for control tokens.
  void Add(std::string_view spelling, int32_t id, bool control);

  // Non-overlapping matches in ascending order. Time: text length times the longest spelling.
  std::vector<Match> Find(std::string_view text, bool with_control) const;

 private:
  struct Node {
    int32_t id = -1;
    bool control = false;
  };
  static uint64_t Edge(size_t node, char byte) { return node << 8 | static_cast<uint8_t>(byte); }

  std::vector<Node> nodes_{1};                                        // a trie; 0 is the root
  std::unordered_map<uint64_t, size_t, absl::Hash<uint64_t>> edges_;  // (node, byte) to node
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_SPECIAL_MATCHER_H_
