#include "core/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/text/byte_pair.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/special_matcher.h"
#include "core/text/utf8.h"

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

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes are U+0100, U+0101, ... in ascending order.
std::array<uint32_t, 256> ByteAlphabet() {
  std::array<uint32_t, 256> code{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    code[byte] = printable ? byte : next++;
  }
  return code;
}

// The bytes that a spelling in GPT-2's alphabet stands for; false when it has a character of another alphabet.
bool DecodeSpelling(std::string_view spelling, const absl::flat_hash_map<std::string, char>& alphabet,
                    std::string* bytes) {
  bytes->clear();
  while (!spelling.empty()) {
    const size_t size = FirstUtf8Char(spelling).size;
    const auto byte = alphabet.find(std::string(spelling.substr(0, size)));
    if (byte == alphabet.end()) return false;
    bytes->push_back(byte->second);
    spelling.remove_prefix(size);
  }
  return true;
}

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

struct Tokenizer::Impl {
  explicit Impl(PreTokenizer splitter) : pre_tokenizer(std::move(splitter)) {}

  absl::Status BuildTokens();
  absl::Status BuildMerges();
  absl::Status BuildSpecialIds();
  absl::Status AppendPlain(std::string_view text, std::vector<int32_t>* ids) const;
  std::optional<int32_t> Find(std::string_view spelling) const {
    const auto found = by_spelling.find(spelling);
    return found == by_spelling.end() ? std::nullopt : std::optional(found->second);
  }

  TokenizerSpec spec;
  PreTokenizer pre_tokenizer;
  std::vector<std::string> pieces;                             // [vocab_size]
  absl::flat_hash_map<std::string_view, int32_t> by_spelling;  // views into spec.tokens
  absl::flat_hash_map<std::string_view, int32_t> by_bytes;     // normal tokens, views into pieces; for ignore_merges
  std::array<int32_t, 256> byte_ids{};                         // -1 where the vocabulary lacks the byte
  BytePairMerger merger;
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
  absl::flat_hash_map<std::string, char> alphabet;
  const std::array<uint32_t, 256> codes = ByteAlphabet();
  std::array<std::string, 256> byte_spelling;
  for (size_t byte = 0; byte < 256; ++byte) {
    AppendUtf8(codes[byte], &byte_spelling[byte]);
    alphabet[byte_spelling[byte]] = static_cast<char>(byte);
  }
  pieces.resize(count);
  by_spelling.reserve(count);
  if (pre_tokenizer.ignore_merges()) by_bytes.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::string& spelling = spec.tokens[i];
    const auto id = static_cast<int32_t>(i);
    if (spelling.empty()) return absl::InvalidArgumentError(absl::StrCat("token ", id, " of the vocabulary is empty"));
    const auto [other, added] = by_spelling.emplace(spelling, id);
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens ", other->second, " and ", id, " of the vocabulary are both '", spelling, "'"));
    }
    switch (spec.token_types[i]) {
      case TokenType::kNormal:
        if (!DecodeSpelling(spelling, alphabet, &pieces[i])) pieces[i] = spelling;
        if (pre_tokenizer.ignore_merges()) by_bytes.emplace(pieces[i], id);
        break;
      case TokenType::kUnknown:
      case TokenType::kControl:
      case TokenType::kUserDefined:
        pieces[i] = spelling;
        break;
      case TokenType::kUnused:
        break;
      case TokenType::kByte:
        if (!ParseByteToken(spelling, &pieces[i])) {
          return absl::InvalidArgumentError(
              absl::StrCat("token ", id, " is marked as a byte, but '", spelling, "' is not of the form <0xNN>"));
        }
        break;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("token ", id, " has the unknown type ", static_cast<int32_t>(spec.token_types[i])));
    }
  }
  bool any_byte = false;
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_ids[byte] = Find(byte_spelling[byte]).value_or(-1);
    any_byte = any_byte || byte_ids[byte] >= 0;
  }
  if (!any_byte) return absl::InvalidArgumentError("the vocabulary has no byte tokens, so it cannot encode any text");
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::BuildMerges() {
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view merge = spec.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, ", '", spec.merges[rank], "', is not two tokens with a space between"));
    }
    const std::string left(merge.substr(0, space));
    const std::string right(merge.substr(space + 1));
    std::array<int32_t, 3> ids;
    const std::array<std::string, 3> spellings = {left, right, left + right};
    for (size_t i = 0; i < 3; ++i) {
      const std::optional<int32_t> id = Find(spellings[i]);
      if (!id.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("merge ", rank, ", '", spec.merges[rank], "', needs the token '",
                                                       spellings[i], "', which the vocabulary does not have"));
      }
      ids[i] = *id;
    }
    merger.Add(ids[0], ids[1], ids[2]);
  }
  spec.merges = {};
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::BuildSpecialIds() {
  const auto count = static_cast<int64_t>(spec.tokens.size());
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
    const std::optional<int32_t> id = Find(spelling);
    if (!id.has_value()) continue;
    if (!eot.has_value()) eot = id;
    end_of_generation.push_back(*id);
  }
  for (std::string_view spelling : kEndOfGeneration) {
    if (const std::optional<int32_t> id = Find(spelling)) end_of_generation.push_back(*id);
  }
  // Some files mark these as normal tokens; what ends a generation is a control token whatever the file says.
  for (int32_t id : end_of_generation) spec.token_types[static_cast<size_t>(id)] = TokenType::kControl;
  if (eos.has_value()) end_of_generation.push_back(*eos);
  if (eot.has_value()) end_of_generation.push_back(*eot);
  std::sort(end_of_generation.begin(), end_of_generation.end());
  end_of_generation.erase(std::unique(end_of_generation.begin(), end_of_generation.end()), end_of_generation.end());
  for (int64_t id = 0; id < count; ++id) {
    const TokenType type = spec.token_types[static_cast<size_t>(id)];
    if (type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown) {
      specials.Add(spec.tokens[static_cast<size_t>(id)], static_cast<int32_t>(id), type != TokenType::kUserDefined);
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::AppendPlain(std::string_view text, std::vector<int32_t>* ids) const {
  std::vector<std::string_view> words;
  if (absl::Status status = pre_tokenizer.Split(text, &words); !status.ok()) return status;
  std::vector<int32_t> symbols;
  BytePairMerger::Scratch scratch;
  for (std::string_view word : words) {
    if (pre_tokenizer.ignore_merges()) {
      if (const auto whole = by_bytes.find(word); whole != by_bytes.end()) {
        ids->push_back(whole->second);
        continue;
      }
    }
    symbols.clear();
    for (char c : word) {
      const int32_t id = byte_ids[static_cast<uint8_t>(c)];
      if (id < 0) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the text contains the byte 0x%02X, for which this model's vocabulary has no token; remove "
                            "it from the text",
                            static_cast<uint8_t>(c)));
      }
      symbols.push_back(id);
    }
    merger.Merge(&symbols, &scratch);
    ids->insert(ids->end(), symbols.begin(), symbols.end());
  }
  return absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

absl::StatusOr<Tokenizer> Tokenizer::Create(TokenizerSpec spec) {
  if (spec.model != "gpt2") {
    return absl::UnimplementedError(absl::StrCat("the vocabulary kind '", spec.model,
                                                 "' is not supported; supported is 'gpt2' (byte-level byte pairs)"));
  }
  absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(spec.pre_tokenizer);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  auto impl = std::make_unique<Impl>(*std::move(pre_tokenizer));
  impl->spec = std::move(spec);
  if (absl::Status status = impl->BuildTokens(); !status.ok()) return status;
  if (absl::Status status = impl->BuildMerges(); !status.ok()) return status;
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
    absl::Status status = impl_->AppendPlain(text.substr(at, match.begin - at), &ids);
    if (!status.ok()) return status;
    ids.push_back(match.id);
    at = match.begin + match.size;
  }
  if (absl::Status status = impl_->AppendPlain(text.substr(at), &ids); !status.ok()) return status;
  if (options.add_special && impl_->spec.add_eos) ids.push_back(*impl_->eos);
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return absl::OutOfRangeError(
          absl::StrCat("the token id ", id, " is outside the vocabulary of ", vocab_size(), " tokens"));
    }
    text += impl_->pieces[static_cast<size_t>(id)];
  }
  return text;
}

std::string_view Tokenizer::Piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->pieces[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::FindToken(std::string_view spelling) const { return impl_->Find(spelling); }
int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->spec.tokens.size()); }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos; }
std::optional<int32_t> Tokenizer::eot_id() const { return impl_->eot; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad; }
bool Tokenizer::add_bos() const { return impl_->spec.add_bos; }
bool Tokenizer::add_eos() const { return impl_->spec.add_eos; }

bool Tokenizer::IsControl(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->spec.token_types[static_cast<size_t>(id)] == TokenType::kControl;
}

bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  return std::binary_search(impl_->end_of_generation.begin(), impl_->end_of_generation.end(), id);
}

std::span<const int32_t> Tokenizer::end_of_generation_ids() const { return impl_->end_of_generation; }
const std::string& Tokenizer::chat_template() const { return impl_->spec.chat_template; }

}  // namespace octet
