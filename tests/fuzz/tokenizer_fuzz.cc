// A vocabulary of any content, and a text through it. An input that begins with "GGUF" is a model file whose metadata
// is the vocabulary. Any other is lines: flags, the text, then one token or merge a line, so that a change of one line
// leaves the rest as it was.
//
//   line 1   model kind, pre-tokenizer, ids, flags: one character each (see ReadSpec)
//   line 2   the text
//   "t..."   a token: the digit of its type, a signed byte of score, the spelling
//   "m..."   a merge

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/gguf/gguf_file.h"
#include "core/text/gguf_tokenizer.h"
#include "core/text/stream_decoder.h"
#include "core/text/tokenizer.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/live_bytes.h"

namespace octet {
namespace {

using fuzz::FuzzInput;
using fuzz::Require;
using fuzz::RequireSentence;

// Byte-level merging accepts no text before it has the bytes of it, so the first line "*" stands for all of them.
void AddAllBytes(TokenizerSpec* spec) {
  for (uint32_t byte = 0, next = 0x100; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const uint32_t code = printable ? byte : next++;
    std::string spelling;
    if (code < 0x80) {
      spelling += static_cast<char>(code);
    } else {
      spelling += static_cast<char>(0xC0 | code >> 6);
      spelling += static_cast<char>(0x80 | (code & 0x3F));
    }
    spec->tokens.push_back(spelling);
    spec->token_types.push_back(TokenType::kNormal);
    spec->scores.push_back(0);
  }
}

std::optional<int64_t> Id(char c) {
  if (c == '-') return std::nullopt;
  if (c == '~') return std::numeric_limits<int64_t>::max();
  return static_cast<signed char>(c) - '0';
}

TokenizerSpec ReadSpec(FuzzInput& input, std::string_view* text) {
  constexpr const char* kPreTokenizers[] = {"default", "smollm", "qwen2", "llama-bpe", "gpt-2", "none such"};
  std::string head(input.Line());
  head.resize(9, '-');
  TokenizerSpec spec;
  spec.model = head[0] == 's' ? "llama" : head[0] == 'b' ? "gpt2" : "bert";
  spec.pre_tokenizer = kPreTokenizers[static_cast<unsigned char>(head[1]) % std::size(kPreTokenizers)];
  spec.bos_id = Id(head[2]);
  spec.eos_id = Id(head[3]);
  spec.eot_id = Id(head[4]);
  spec.pad_id = Id(head[5]);
  spec.add_bos = head[6] == 'b';
  spec.add_eos = head[7] == 'e';
  spec.add_space_prefix = head[8] == 's';
  *text = input.Line();
  bool all_bytes = false;
  while (!input.empty()) {
    std::string_view line = input.Line();
    if (line == "*") {
      if (!std::exchange(all_bytes, true)) AddAllBytes(&spec);
    } else if (line.starts_with('t') && line.size() >= 3) {
      spec.token_types.push_back(static_cast<TokenType>(line[1] - '0'));
      spec.scores.push_back(static_cast<float>(static_cast<signed char>(line[2])));
      spec.tokens.emplace_back(line.substr(3));
    } else if (line.starts_with('m')) {
      spec.merges.emplace_back(line.substr(1));
    }
  }
  return spec;
}

void RoundTrip(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    const auto ids = tokenizer.Encode(text, {.parse_special = special, .add_special = special});
    RequireSentence(ids.status());
    if (!ids.ok()) continue;
    // A SentencePiece vocabulary may put a space behind every special token, and spell a space in three bytes.
    Require(ids->size() <= 4 * text.size() + 4, "more than four tokens a byte");
    const auto decoded = tokenizer.Decode(*ids);
    Require(decoded.ok(), "a text that is encoded and not decoded");
    auto stream = StreamDecoder::Create({"stop", std::string(text.substr(0, 3)) + "."});
    if (!stream.ok()) continue;
    std::string streamed;
    for (const int32_t id : *ids) streamed += stream->Push(tokenizer.Piece(id));
    streamed += stream->Finish();
    Require(stream->stopped() || streamed.size() >= decoded->size() / 4, "a stream that loses text");
  }
  for (int32_t id = -1; id <= tokenizer.vocab_size(); ++id) {
    tokenizer.Piece(id);
    Require(!tokenizer.IsEndOfGeneration(id) || (id >= 0 && id < tokenizer.vocab_size()),
            "an end outside the vocabulary");
  }
  RequireSentence(tokenizer.Decode(std::vector<int32_t>{tokenizer.vocab_size()}).status());
}

}  // namespace
}  // namespace octet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octet::fuzz::FuzzInput input(data, size);
  const octet::fuzz::LiveBytes memory;
  octet::TokenizerSpec spec;
  std::string_view text;
  std::unique_ptr<octet::GgufFile> file;
  if (input.Rest().starts_with("GGUF")) {
    auto opened = octet::GgufFile::FromBytes("input", std::as_bytes(std::span(data, size)));
    if (!opened.ok()) return 0;
    file = *std::move(opened);
    auto read = octet::TokenizerSpecFromGguf(*file);
    octet::fuzz::RequireSentence(read.status());
    if (!read.ok()) return 0;
    spec = *std::move(read);
    text = spec.chat_template;
  } else {
    spec = octet::ReadSpec(input, &text);
  }
  const std::string kept(text.substr(0, 4096));
  auto tokenizer = octet::Tokenizer::Create(std::move(spec));
  octet::fuzz::RequireSentence(tokenizer.status());
  if (tokenizer.ok()) octet::RoundTrip(*tokenizer, kept);
  memory.RequireAtMost(1 << 20, 256, size, "tokenizing");
  return 0;
}
