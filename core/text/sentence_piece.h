// SentencePiece's scored merges, the GGUF vocabulary kind "llama": spaces become U+2581, and of all neighbours whose
// joined text is a token the pair with the best score is joined, leftmost first, until none is left. A character that
// is no token is spelled in byte tokens, <0x00> to <0xFF>.
// Reference: llama.cpp, src/llama-vocab.cpp, llm_tokenizer_spm.
#ifndef OCTET_CORE_TEXT_SENTENCE_PIECE_H_
#define OCTET_CORE_TEXT_SENTENCE_PIECE_H_

#include <array>
#include <memory>

#include "absl/status/statusor.h"
#include "core/text/vocabulary.h"

namespace octet {

class SentencePiece : public TextAlgorithm {
 public:
  // Fills the pieces of normal tokens. `vocabulary` must outlive the result. InvalidArgument for scores that are
  // missing or no numbers, and for a vocabulary without any byte token.
  static absl::StatusOr<std::unique_ptr<const TextAlgorithm>> Create(const TokenizerSpec& spec, Vocabulary& vocabulary);

  // Time n log n. Text that is not UTF-8 is spelled in byte tokens where it is broken.
  absl::Status Append(std::string_view text, bool at_start, std::vector<int32_t>* ids) const override;

 private:
  struct Symbol;
  struct Candidate;

  explicit SentencePiece(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  void Offer(std::string_view text, const std::vector<Symbol>& symbols, int32_t left,
             std::vector<Candidate>* heap) const;

  const Vocabulary& vocabulary_;
  std::vector<float> scores_;            // [vocab_size], finite
  std::array<int32_t, 256> byte_ids_{};  // -1 where the vocabulary lacks the byte
  size_t longest_ = 0;                   // bytes of the longest spelling
  bool add_space_prefix_ = false;
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_SENTENCE_PIECE_H_
