#include "core/text/sentence_piece.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/utf8.h"

namespace octet {
namespace {

constexpr char kSpace[] = "\xE2\x96\x81";  // U+2581

}  // namespace

struct SentencePiece::Symbol {
  size_t begin, size;      // bytes of the text; size 0 once joined to the left
  int32_t previous, next;  // neighbours by index, -1 at the ends
};

struct SentencePiece::Candidate {
  float score;
  int32_t left;  // left symbol's index
  size_t size;   // of both together when it was offered: either has grown since when they differ

  // Heap order: the front has the best score, then the leftmost place.
  bool operator<(const Candidate& other) const {
    return score < other.score || (score == other.score && left > other.left);
  }
};

absl::StatusOr<std::unique_ptr<const TextAlgorithm>> SentencePiece::Create(const TokenizerSpec& spec,
                                                                           Vocabulary& vocabulary) {
  const size_t count = vocabulary.spellings.size();
  if (spec.scores.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", count, " tokens but ", spec.scores.size(), " scores"));
  }
  std::unique_ptr<SentencePiece> algorithm(new SentencePiece(vocabulary));
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(spec.scores[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("the score of token ", i, " is ", spec.scores[i], ", which is not a number to compare with"));
    }
    const std::string& spelling = vocabulary.spellings[i];
    algorithm->longest_ = std::max(algorithm->longest_, spelling.size());
    if (vocabulary.types[i] == TokenType::kNormal)
      vocabulary.pieces[i] = absl::StrReplaceAll(spelling, {{kSpace, " "}});
  }
  algorithm->scores_ = spec.scores;
  algorithm->add_space_prefix_ = spec.add_space_prefix;
  bool any_byte = false;
  for (int byte = 0; byte < 256; ++byte) {
    auto id = vocabulary.Find(absl::StrFormat("<0x%02X>", byte));
    if (!id.has_value()) id = vocabulary.Find(std::string(1, static_cast<char>(byte)));
    algorithm->byte_ids_[static_cast<size_t>(byte)] = id.value_or(-1);
    any_byte = any_byte || id.has_value();
  }
  if (!any_byte) {
    return absl::InvalidArgumentError("the vocabulary has no byte tokens such as <0x0A>, so it cannot encode any text");
  }
  return algorithm;
}

void SentencePiece::Offer(std::string_view text, const std::vector<Symbol>& symbols, int32_t left,
                          std::vector<Candidate>* heap) const {
  const Symbol& symbol = symbols[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const size_t size = symbol.size + symbols[static_cast<size_t>(symbol.next)].size;
  if (size > longest_) return;
  const auto token = vocabulary_.by_spelling.find(text.substr(symbol.begin, size));
  if (token == vocabulary_.by_spelling.end()) return;
  heap->push_back({scores_[static_cast<size_t>(token->second)], left, size});
  std::push_heap(heap->begin(), heap->end());
}

absl::Status SentencePiece::Append(std::string_view raw, bool at_start, std::vector<int32_t>* ids) const {
  std::string text;
  text.reserve(raw.size() + raw.size() / 2);
  if (add_space_prefix_ && at_start) text += kSpace;
  for (char c : raw) {
    if (c == ' ') {
      text += kSpace;
    } else {
      text += c;
    }
  }

  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const size_t size = FirstUtf8Char(std::string_view(text).substr(at)).size;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({at, size, index - 1, index + 1});
    at += size;
  }
  symbols.back().next = -1;
  std::vector<Candidate> heap;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) Offer(text, symbols, static_cast<int32_t>(i), &heap);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.left)];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (left.size + right.size != best.size) continue;
    left.size = best.size;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.left;
    if (left.previous >= 0) Offer(text, symbols, left.previous, &heap);
    Offer(text, symbols, best.left, &heap);
  }

  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<size_t>(i)];
    const std::string_view spelling = std::string_view(text).substr(symbol.begin, symbol.size);
    if (const auto token = vocabulary_.by_spelling.find(spelling); token != vocabulary_.by_spelling.end()) {
      ids->push_back(token->second);
      continue;
    }
    for (char c : spelling) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id < 0) return NoTokenForByte(c);
      ids->push_back(id);
    }
  }
  return absl::OkStatus();
}

}  // namespace octet
