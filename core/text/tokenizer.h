// Text to token ids and back, for byte-level byte-pair vocabularies (the GGUF kind "gpt2", byte_level.h) and
// SentencePiece's with scores ("llama", sentence_piece.h).
// Special tokens, their order of matching and the set that ends a generation follow llama.cpp, src/llama-vocab.cpp.
#ifndef OCTET_CORE_TEXT_TOKENIZER_H_
#define OCTET_CORE_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace octet {

// Values are those of tokenizer.ggml.token_type.
enum class TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct TokenizerSpec {
  std::string model = "gpt2";
  std::string pre_tokenizer = "default";  // gpt2 only
  std::vector<std::string> tokens;        // [vocab_size], as the file spells them
  std::vector<TokenType> token_types;     // [vocab_size], or empty: all normal
  std::vector<std::string> merges;        // "left right", best first; gpt2 only
  std::vector<float> scores;              // [vocab_size]; llama only
  bool add_space_prefix = false;          // a space before text at the start and behind special tokens; llama only
  std::optional<int64_t> bos_id, eos_id, eot_id, pad_id;
  bool add_bos = false;
  bool add_eos = false;
  std::string chat_template;  // Jinja source; empty when the file has none
};

// Immutable after Create; any number of threads may use one at once.
class Tokenizer {
 public:
  struct EncodeOptions {
    bool parse_special =
        false;                 // control tokens spelled out in the text become that token; user-defined ones always do
    bool add_special = false;  // put BOS before and EOS after, where the vocabulary asks for them
  };

  // Unimplemented for another model kind or an unknown pre-tokenizer; InvalidArgument for a vocabulary that does not
  // fit together. The message names the offending token or merge.
  static absl::StatusOr<Tokenizer> Create(TokenizerSpec spec);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes are accepted, UTF-8 or not. InvalidArgument when the vocabulary has no token for a byte of the text (some
  // vocabularies leave out control bytes that their training data lacked).
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, EncodeOptions options) const;
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const { return Encode(text, EncodeOptions()); }

  // The bytes of all tokens, special ones by their spelling, without the space that add_space_prefix put first. The
  // result need not be UTF-8. OutOfRange for a bad id.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;

  // Bytes of one token; empty for unused tokens and for ids outside the vocabulary. Lives as long as the tokenizer.
  std::string_view Piece(int32_t id) const;

  // Id of a token by its spelling in the file.
  std::optional<int32_t> FindToken(std::string_view spelling) const;

  int32_t vocab_size() const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> eot_id() const;
  std::optional<int32_t> pad_id() const;
  bool add_bos() const;
  bool add_eos() const;
  bool IsControl(int32_t id) const;
  // A generation ends with any of these: EOS, end of turn, and tokens known by name to mean it.
  bool IsEndOfGeneration(int32_t id) const;
  std::span<const int32_t> end_of_generation_ids() const;  // ascending
  const std::string& chat_template() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_TOKENIZER_H_
