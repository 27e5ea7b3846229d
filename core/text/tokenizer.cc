#include "core/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/text/byte_level.h"
#include "core/text/sentence_piece.h"
#include "core/text/special_matcher.h"
#include "core/text/vocabulary.h"

namespace octet {
namespace {

// Tokens that end a turn, by spelling: the first that a vocabulary has is its end-of-turn token if it names none.
constexpr std::string_view kEndOfTurn[] = {
    "<|im_end|>",        "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>",
    "<|end_of_text|>",   "<EOT>",      "_<EOT>",        "[EOT]",   "<｜end▁of▁sentence｜>",
    "<end_of_utterance>"};
// Further ones that end a generation; the last group are fill-in-the-middle marks, which only follow a finished text.
constexpr std::string_view kEndOfGeneration[] = {"</s>",   "<|return|>", "<|call|>",     "<|eom_id|>",    "[EOS]",
                                                 "<eos>",  "<turn|>",    "<|fim_pad|>",  "<fim-pad>",     "<fim_pad>",
                                                 "<PAD>",  "[PAD]",      "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                                 "<REPO>", "<reponame>", "<|file_sep|>"};

bool ParseByteToken(std::string_view spelling, std::string* bytes) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return false;
  int value = 0;
  for (char digit : spelling.substr(3, 2)) {
    if (digit >= '0' && digit <= '9') {
      value = value * 16 + (digit - '0');
    } else if (digit >= 'A' && digit <= 'F') {
      value = value * 16 + (digit - 'A' + 10);
    } else {
      return false;
    }
  }
  bytes->assign(1, static_cast<char>(value));
  return true;
}

}  // namespace

absl::Status NoTokenForByte(char byte) {
  return absl::InvalidArgumentError(
      absl::StrFormat("the text contains the byte 0x%02X, for which this model's vocabulary has no token; remove it "
                      "from the text",
                      static_cast<uint8_t>(byte)));
}

struct Tokenizer::Impl {
  absl::Status BuildTokens();
  absl::Status BuildAlgorithm();
  absl::Status BuildSpecialIds();
  absl::Status AppendPlain(std::string_view text, bool at_start, std::vector<int32_t>* ids) const {
    return text.empty() ? absl::OkStatus() : algorithm->Append(text, at_start, ids);
  }

  TokenizerSpec spec;  // without its tokens, types, merges and scores
  Vocabulary vocabulary;
  std::unique_ptr<const TextAlgorithm> algorithm;
  SpecialMatcher specials;
  std::optional<int32_t> bos, eos, eot, pad;
  std::vector<int32_t> end_of_generation;  // ascending
};

absl::Status Tokenizer::Impl::BuildTokens() {
  const size_t count = spec.tokens.size();
  if (count == 0) return absl::InvalidArgumentError("the vocabulary has no tokens");
  if (count > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("the vocabulary has ", count, " tokens; at most 2^31 - 1 fit"));
  }
  if (spec.token_types.empty()) spec.token_types.assign(count, TokenType::kNormal);
  if (spec.token_types.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", count, " tokens but ", spec.token_types.size(), " token types"));
  }
  vocabulary.spellings = std::move(spec.tokens);
  vocabulary.types = std::move(spec.token_types);
  vocabulary.pieces.resize(count);
  vocabulary.by_spelling.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::string& spelling = vocabulary.spellings[i];
    const auto id = static_cast<int32_t>(i);
    if (spelling.empty()) return absl::InvalidArgumentError(absl::StrCat("token ", id, " of the vocabulary is empty"));
    const auto [other, added] = vocabulary.by_spelling.emplace(spelling, id);
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens ", other->second, " and ", id, " of the vocabulary are both '", spelling, "'"));
    }
    switch (vocabulary.types[i]) {
      case TokenType::kNormal:  // the algorithm's matter
      case TokenType::kUnused:
        break;
      case TokenType::kUnknown:
      case TokenType::kControl:
      case TokenType::kUserDefined:
        vocabulary.pieces[i] = spelling;
        break;
      case TokenType::kByte:
        if (!ParseByteToken(spelling, &vocabulary.pieces[i])) {
          return absl::InvalidArgumentError(
              absl::StrCat("token ", id, " is marked as a byte, but '", spelling, "' is not of the form <0xNN>"));
        }
        break;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("token ", id, " has the unknown type ", static_cast<int32_t>(vocabulary.types[i])));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::BuildAlgorithm() {
  auto created = spec.model == "llama" ? SentencePiece::Create(spec, vocabulary) : ByteLevel::Create(spec, vocabulary);
  if (!created.ok()) return created.status();
  algorithm = *std::move(created);
  spec.merges = {};
  spec.scores = {};
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::BuildSpecialIds() {
  const auto count = static_cast<int64_t>(vocabulary.spellings.size());
  struct Named {
    const char* name;
    const std::optional<int64_t>& from;
    std::optional<int32_t>& to;
  };
  for (const Named& special : {Named{"BOS", spec.bos_id, bos}, Named{"EOS", spec.eos_id, eos},
                               Named{"end-of-turn", spec.eot_id, eot}, Named{"padding", spec.pad_id, pad}}) {
    if (!special.from.has_value()) continue;
    if (*special.from < 0 || *special.from >= count) {
      return absl::InvalidArgumentError(absl::StrCat("the ", special.name, " token id ", *special.from,
                                                     " is outside the vocabulary of ", count, " tokens"));
    }
    special.to = static_cast<int32_t>(*special.from);
  }
  if (spec.add_bos && !bos.has_value()) {
    return absl::InvalidArgumentError("the vocabulary wants a BOS token before every text but does not name one");
  }
  if (spec.add_eos && !eos.has_value()) {
    return absl::InvalidArgumentError("the vocabulary wants an EOS token after every text but does not name one");
  }
  for (std::string_view spelling : kEndOfTurn) {
    const std::optional<int32_t> id = vocabulary.Find(spelling);
    if (!id.has_value()) continue;
    if (!eot.has_value()) eot = id;
    end_of_generation.push_back(*id);
  }
  for (std::string_view spelling : kEndOfGeneration) {
    if (const std::optional<int32_t> id = vocabulary.Find(spelling)) end_of_generation.push_back(*id);
  }
  // Some files mark these as normal tokens; what ends a generation is a control token whatever the file says.
  for (int32_t id : end_of_generation) vocabulary.types[static_cast<size_t>(id)] = TokenType::kControl;
  if (eos.has_value()) end_of_generation.push_back(*eos);
  if (eot.has_value()) end_of_generation.push_back(*eot);
  std::sort(end_of_generation.begin(), end_of_generation.end());
  end_of_generation.erase(std::unique(end_of_generation.begin(), end_of_generation.end()), end_of_generation.end());
  for (int64_t id = 0; id < count; ++id) {
    const TokenType type = vocabulary.types[static_cast<size_t>(id)];
    if (type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown) {
      specials.Add(vocabulary.spellings[static_cast<size_t>(id)], static_cast<int32_t>(id),
                   type != TokenType::kUserDefined);
    }
  }
  return absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

absl::StatusOr<Tokenizer> Tokenizer::Create(TokenizerSpec spec) {
  if (spec.model != "gpt2" && spec.model != "llama") {
    return absl::UnimplementedError(absl::StrCat("the vocabulary kind '", spec.model, "' is not supported; ",
                                                 "supported are 'gpt2' (byte-level byte pairs) and 'llama' "
                                                 "(SentencePiece with scores)"));
  }
  auto impl = std::make_unique<Impl>();
  impl->spec = std::move(spec);
  if (absl::Status status = impl->BuildTokens(); !status.ok()) return status;
  if (absl::Status status = impl->BuildAlgorithm(); !status.ok()) return status;
  if (absl::Status status = impl->BuildSpecialIds(); !status.ok()) return status;
  return Tokenizer(std::move(impl));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("a text of ", text.size(), " bytes is too long; at most 2 GiB fit"));
  }
  std::vector<int32_t> ids;
  if (options.add_special && impl_->spec.add_bos) ids.push_back(*impl_->bos);
  size_t at = 0;
  for (const SpecialMatcher::Match& match : impl_->specials.Find(text, options.parse_special)) {
    absl::Status status = impl_->AppendPlain(text.substr(at, match.begin - at), true, &ids);
    if (!status.ok()) return status;
    ids.push_back(match.id);
    at = match.begin + match.size;
  }
  if (absl::Status status = impl_->AppendPlain(text.substr(at), true, &ids); !status.ok()) return status;
  if (options.add_special && impl_->spec.add_eos) ids.push_back(*impl_->eos);
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t& id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return absl::OutOfRangeError(
          absl::StrCat("the token id ", id, " is outside the vocabulary of ", vocab_size(), " tokens"));
    }
    std::string_view piece = impl_->vocabulary.pieces[static_cast<size_t>(id)];
    // The space that encoding put before the text is not part of it.
    if (&id == ids.data() && impl_->spec.add_space_prefix && piece.starts_with(' ')) piece.remove_prefix(1);
    text += piece;
  }
  return text;
}

std::string_view Tokenizer::Piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->vocabulary.pieces[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::FindToken(std::string_view spelling) const {
  return impl_->vocabulary.Find(spelling);
}
int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->vocabulary.spellings.size()); }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos; }
std::optional<int32_t> Tokenizer::eot_id() const { return impl_->eot; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad; }
bool Tokenizer::add_bos() const { return impl_->spec.add_bos; }
bool Tokenizer::add_eos() const { return impl_->spec.add_eos; }

bool Tokenizer::IsControl(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->vocabulary.types[static_cast<size_t>(id)] == TokenType::kControl;
}

bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  return std::binary_search(impl_->end_of_generation.begin(), impl_->end_of_generation.end(), id);
}

std::span<const int32_t> Tokenizer::end_of_generation_ids() const { return impl_->end_of_generation; }
const std::string& Tokenizer::chat_template() const { return impl_->spec.chat_template; }

}  // namespace octet
