// Byte-level byte pairs, the GGUF vocabulary kind "gpt2": text is cut into words, each word's bytes are joined by rank.
// Assumes the vocabulary spells bytes in GPT-2's printable alphabet (0x20 is U+0120) and merges are listed best first.
// Reference: encoder.py of GPT-2; llama.cpp, src/llama-vocab.cpp.
#ifndef OCTET_CORE_TEXT_BYTE_LEVEL_H_
#define OCTET_CORE_TEXT_BYTE_LEVEL_H_

#include <array>
#include <memory>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "core/text/byte_pair.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/vocabulary.h"

namespace octet {

class ByteLevel : public TextAlgorithm {
 public:
  // Fills the pieces of normal tokens. `vocabulary` must outlive the result. Unimplemented for an unknown
  // pre-tokenizer, InvalidArgument for merges that do not fit the vocabulary.
  static absl::StatusOr<std::unique_ptr<const TextAlgorithm>> Create(const TokenizerSpec& spec, Vocabulary& vocabulary);

  absl::Status Append(std::string_view text, bool at_start, std::vector<int32_t>* ids) const override;

 private:
  explicit ByteLevel(PreTokenizer splitter) : pre_tokenizer_(std::move(splitter)) {}
  absl::Status ReadTokens(Vocabulary& vocabulary);
  absl::Status ReadMerges(const std::vector<std::string>& merges, const Vocabulary& vocabulary);

  PreTokenizer pre_tokenizer_;
  std::unordered_map<std::string_view, int32_t, TextHash>
      by_bytes_;                         // normal tokens, views into pieces; for ignore_merges
  std::array<int32_t, 256> byte_ids_{};  // -1 where the vocabulary lacks the byte
  BytePairMerger merger_;
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_BYTE_LEVEL_H_
