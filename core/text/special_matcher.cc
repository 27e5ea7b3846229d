#include "core/text/special_matcher.h"

#include <algorithm>
#include <tuple>

namespace octet {

void SpecialMatcher::Add(std::string_view spelling, int32_t id, bool control) {
  size_t node = 0;
  for (char byte : spelling) {
    const auto [edge, added] = edges_.try_emplace(Edge(node, byte), nodes_.size());
    if (added) nodes_.emplace_back();
    node = edge->second;
  }
  nodes_[node] = {id, control};
}

std::vector<SpecialMatcher::Match> SpecialMatcher::Find(std::string_view text, bool with_control) const {
  std::vector<Match> found;
  if (nodes_.size() == 1) return found;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    size_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto edge = edges_.find(Edge(node, text[at]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (nodes_[node].id >= 0 && (with_control || !nodes_[node].control)) {
        found.push_back({begin, at + 1 - begin, nodes_[node].id});
      }
    }
  }
  if (found.size() < 2) return found;
  std::sort(found.begin(), found.end(), [](const Match& a, const Match& b) {
    return std::tuple(b.size, a.id, a.begin) < std::tuple(a.size, b.id, b.begin);
  });
  // What is placed already is at least as long, so an overlap covers the first or the last byte.
  std::vector<bool> taken(text.size(), false);
  std::erase_if(found, [&taken](const Match& match) {
    if (taken[match.begin] || taken[match.begin + match.size - 1]) return true;
    std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(match.begin), match.size, true);
    return false;
  });
  std::sort(found.begin(), found.end(), [](const Match& a, const Match& b) { return a.begin < b.begin; });
  return found;
}

}  // namespace octet
