// Splits text into the pieces that byte-pair encoding never merges across, by the regular expressions that a GGUF file
// names in tokenizer.ggml.pre.
// Assumes nothing of the text: bytes that are not UTF-8 become pieces of their own and are never seen by an expression.
// Reference: the expressions per name are those of llama.cpp, src/llama-vocab.cpp.
#ifndef OCTET_CORE_TEXT_PRE_TOKENIZER_H_
#define OCTET_CORE_TEXT_PRE_TOKENIZER_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace octet {

// Immutable; any number of threads may split at once.
class PreTokenizer {
 public:
  // The expressions of a name are compiled once and kept. Unimplemented for a name that is not known; the message lists
  // the known ones.
  static absl::StatusOr<PreTokenizer> Create(std::string_view name);

  // Appends to `pieces` non-empty views into `text` that together are exactly `text`.
  absl::Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

  // A piece that is a token as it stands is taken whole, whatever the merges would make of it.
  bool ignore_merges() const;

 private:
  struct Impl;
  explicit PreTokenizer(const Impl* impl) : impl_(impl) {}
  const Impl* impl_;  // lives until the process ends
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_PRE_TOKENIZER_H_
