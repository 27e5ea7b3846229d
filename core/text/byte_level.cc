#include "core/text/byte_level.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace octet {
namespace {

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes are U+0100, U+0101, ... in ascending order.
struct ByteAlphabet {
  ByteAlphabet() {
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      AppendUtf8(printable ? byte : next++, &spelling[byte]);
      byte_of.emplace(spelling[byte], static_cast<char>(byte));
    }
  }
  static const ByteAlphabet& Get() {
    static const auto* const alphabet = new ByteAlphabet;
    return *alphabet;
  }

  std::array<std::string, 256> spelling;
  std::unordered_map<std::string_view, char> byte_of;
};

// The bytes that a spelling in GPT-2's alphabet stands for; false when it has a character of another alphabet.
bool DecodeSpelling(std::string_view spelling, std::string* bytes) {
  const auto& alphabet = ByteAlphabet::Get().byte_of;
  bytes->clear();
  while (!spelling.empty()) {
    const size_t size = FirstUtf8Char(spelling).size;
    const auto byte = alphabet.find(spelling.substr(0, size));
    if (byte == alphabet.end()) return false;
    bytes->push_back(byte->second);
    spelling.remove_prefix(size);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TextAlgorithm>> ByteLevel::Create(const TokenizerSpec& spec,
                                                                       Vocabulary& vocabulary) {
  absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(spec.pre_tokenizer);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  std::unique_ptr<ByteLevel> algorithm(new ByteLevel(*std::move(pre_tokenizer)));
  if (absl::Status status = algorithm->ReadTokens(vocabulary); !status.ok()) return status;
  if (absl::Status status = algorithm->ReadMerges(spec.merges, vocabulary); !status.ok()) return status;
  return algorithm;
}

absl::Status ByteLevel::ReadTokens(Vocabulary& vocabulary) {
  bool any_byte = false;
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = vocabulary.Find(ByteAlphabet::Get().spelling[byte]).value_or(-1);
    any_byte = any_byte || byte_ids_[byte] >= 0;
  }
  if (!any_byte) return absl::InvalidArgumentError("the vocabulary has no byte tokens, so it cannot encode any text");
  if (pre_tokenizer_.ignore_merges()) by_bytes_.reserve(vocabulary.pieces.size());
  for (size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    if (vocabulary.types[i] != TokenType::kNormal) continue;
    std::string& piece = vocabulary.pieces[i];
    if (!DecodeSpelling(vocabulary.spellings[i], &piece)) piece = vocabulary.spellings[i];
    if (pre_tokenizer_.ignore_merges()) by_bytes_.emplace(piece, static_cast<int32_t>(i));
  }
  return absl::OkStatus();
}

absl::Status ByteLevel::ReadMerges(const std::vector<std::string>& merges, const Vocabulary& vocabulary) {
  merger_.Reserve(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, ", '", merges[rank], "', is not two tokens with a space between"));
    }
    joined.assign(merge, 0, space).append(merge, space + 1);
    std::array<int32_t, 3> ids;
    const std::array<std::string_view, 3> spellings = {merge.substr(0, space), merge.substr(space + 1), joined};
    for (size_t i = 0; i < 3; ++i) {
      const std::optional<int32_t> id = vocabulary.Find(spellings[i]);
      if (!id.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("merge ", rank, ", '", merges[rank], "', needs the token '",
                                                       std::string(spellings[i]),
                                                       "', which the vocabulary does not have"));
      }
      ids[i] = *id;
    }
    merger_.Add(ids[0], ids[1], ids[2]);
  }
  return absl::OkStatus();
}

absl::Status ByteLevel::Append(std::string_view text, bool, std::vector<int32_t>* ids) const {
  std::vector<std::string_view> words;
  if (absl::Status status = pre_tokenizer_.Split(text, &words); !status.ok()) return status;
  std::vector<int32_t> symbols;
  BytePairMerger::Scratch scratch;
  for (std::string_view word : words) {
    if (pre_tokenizer_.ignore_merges()) {
      if (const auto whole = by_bytes_.find(word); whole != by_bytes_.end()) {
        ids->push_back(whole->second);
        continue;
      }
    }
    symbols.clear();
    for (char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id < 0) return NoTokenForByte(c);
      symbols.push_back(id);
    }
    merger_.Merge(&symbols, &scratch);
    ids->insert(ids->end(), symbols.begin(), symbols.end());
  }
  return absl::OkStatus();
}

}  // namespace octet
