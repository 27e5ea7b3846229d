// The tokens of a vocabulary, and what an algorithm over them has to answer: byte_level.h and sentence_piece.h.
#ifndef OCTET_CORE_TEXT_VOCABULARY_H_
#define OCTET_CORE_TEXT_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "core/base/text_hash.h"
#include "core/text/tokenizer.h"

namespace octet {

// Does not move once filled: by_spelling and the algorithms point into it.
struct Vocabulary {
  std::vector<std::string> spellings;  // [vocab_size], as the file has them; none empty, no two equal
  std::vector<TokenType> types;        // [vocab_size]
  std::vector<std::string> pieces;     // [vocab_size], the bytes that each token stands for
  std::unordered_map<std::string_view, int32_t, TextHash> by_spelling;

  std::optional<int32_t> Find(std::string_view spelling) const {
    const auto found = by_spelling.find(spelling);
    return found == by_spelling.end() ? std::nullopt : std::optional(found->second);
  }
};

// How text without special tokens becomes tokens. Immutable; any number of threads may use one at once.
class TextAlgorithm {
 public:
  virtual ~TextAlgorithm() = default;

  // Appends the tokens of `text`, which is not empty. `at_start`: nothing or a special token stands before it.
  // InvalidArgument when the vocabulary has no token for a byte of the text.
  virtual absl::Status Append(std::string_view text, bool at_start, std::vector<int32_t>* ids) const = 0;
};

// The error of Append.
absl::Status NoTokenForByte(char byte);

}  // namespace octet

#endif  // OCTET_CORE_TEXT_VOCABULARY_H_
