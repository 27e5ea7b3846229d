#include "core/text/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/special_matcher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 256 bytes in byte order (so byte b has id b), then a few merged and special tokens.
TokenizerSpec ByteSpec() {
  TokenizerSpec spec;
  spec.pre_tokenizer = "gpt-2";
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::string spelling;
    AppendUtf8(printable ? byte : next++, &spelling);
    spec.tokens.push_back(spelling);
    spec.token_types.push_back(TokenType::kNormal);
  }
  return spec;
}

int32_t Add(TokenizerSpec* spec, const std::string& spelling, TokenType type = TokenType::kNormal) {
  spec->tokens.push_back(spelling);
  spec->token_types.push_back(type);
  return static_cast<int32_t>(spec->tokens.size()) - 1;
}

Tokenizer Make(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, std::string_view text, Tokenizer::EncodeOptions options = {}) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>{-1});
}

std::vector<std::string> Split(std::string_view name, std::string_view text) {
  auto splitter = PreTokenizer::Create(name);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  std::vector<std::string_view> pieces;
  EXPECT_TRUE(splitter->Split(text, &pieces).ok());
  return {pieces.begin(), pieces.end()};
}

TEST(PreTokenizerTest, SplitsAsEachNameAsks) {
  EXPECT_THAT(Split("gpt-2", "I'll pay 1234  $!\n x"),
              ElementsAre("I", "'ll", " pay", " 1234", " ", " $!", "\n", " x"));
  EXPECT_THAT(Split("smollm", "a 1234  b"), ElementsAre("a", " ", "1", "2", "3", "4", " ", " b"));
  EXPECT_THAT(Split("qwen2", "I'LL x12!\n\n  y"), ElementsAre("I", "'LL", " x", "1", "2", "!\n\n", " ", " y"));
  EXPECT_THAT(Split("llama-bpe", "12345 (ab"), ElementsAre("123", "45", " (", "ab"));
  EXPECT_THAT(Split("default", "a+b 12345"), ElementsAre("a", "+", "b", " ", "123", "45"));
  EXPECT_THAT(Split("gpt-2", "\xCE\xA9\xCE\xA9 \xC2\xA0x"), ElementsAre("\xCE\xA9\xCE\xA9", " ", "\xC2\xA0", "x"));
}

TEST(PreTokenizerTest, MongolianVowelSeparatorIsNotASpace) {
  EXPECT_THAT(Split("gpt-2", "!\xE1\xA0\x8E!"), ElementsAre("!\xE1\xA0\x8E!"));
}

TEST(PreTokenizerTest, KeepsBytesThatAreNotUtf8Apart) {
  EXPECT_THAT(Split("gpt-2",
                    "ab\xFF"
                    "cd\xE2\x82"),
              ElementsAre("ab", "\xFF", "cd", "\xE2\x82"));
}

TEST(PreTokenizerTest, NamesWhatItDoesNotKnow) {
  const absl::Status status = PreTokenizer::Create("tekken").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'tekken' is not supported; supported are smollm, qwen2"));
}

TEST(TokenizerTest, MergesByRankThenLeftmost) {
  TokenizerSpec spec = ByteSpec();
  const int32_t bc = Add(&spec, "bc");
  const int32_t ab = Add(&spec, "ab");
  const int32_t abc = Add(&spec, "abc");
  const int32_t aa = Add(&spec, "aa");
  spec.merges = {"b c", "a b", "ab c", "a a"};
  const Tokenizer tokenizer = Make(std::move(spec));
  EXPECT_THAT(Encode(tokenizer, "abc"), ElementsAre('a', bc));
  EXPECT_THAT(Encode(tokenizer, "abab"), ElementsAre(ab, ab));
  EXPECT_THAT(Encode(tokenizer, "aaa"), ElementsAre(aa, 'a'));
  EXPECT_THAT(Encode(tokenizer, "aaab"), ElementsAre(aa, ab));
  EXPECT_THAT(Encode(tokenizer, "b c"), ElementsAre('b', ' ', 'c'));
  EXPECT_EQ(tokenizer.Piece(abc), "abc");
}

// The merger against the definition, on random words and random merge lists.
TEST(TokenizerTest, AgreesWithMergingOnePairAtATime) {
  std::mt19937 random(20240229);
  for (int round = 0; round < 200; ++round) {
    TokenizerSpec spec = ByteSpec();
    std::vector<std::string> known = {"a", "b", "c"};
    for (int i = 0; i < 12; ++i) {
      const std::string left = known[random() % known.size()];
      const std::string right = known[random() % known.size()];
      if (std::find(known.begin(), known.end(), left + right) == known.end()) {
        known.push_back(left + right);
        Add(&spec, left + right);
      }
      spec.merges.push_back(absl::StrCat(left, " ", right));
    }
    const std::vector<std::string> merges = spec.merges;
    const Tokenizer tokenizer = Make(std::move(spec));
    std::string word;
    for (size_t i = random() % 40 + 1; i > 0; --i) word += static_cast<char>('a' + random() % 3);
    std::vector<std::string> parts;
    for (char c : word) parts.emplace_back(1, c);
    for (size_t rank = 0; rank < merges.size();) {
      size_t at = 0;
      while (at + 1 < parts.size() && absl::StrCat(parts[at], " ", parts[at + 1]) != merges[rank]) ++at;
      if (at + 1 >= parts.size()) {
        ++rank;
        continue;
      }
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      rank = 0;
    }
    std::vector<int32_t> expected;
    for (const std::string& part : parts) expected.push_back(*tokenizer.FindToken(part));
    EXPECT_EQ(Encode(tokenizer, word), expected) << "round " << round << ", word " << word;
  }
}

TEST(TokenizerTest, AMegabyteOfOneLetterOrOfSpacesTakesSeconds) {
  TokenizerSpec spec = ByteSpec();
  Add(&spec, "aa");
  const int32_t four = Add(&spec, "aaaa");
  spec.merges = {"a a", "aa aa"};
  for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe", "default"}) {
    spec.pre_tokenizer = name;
    const Tokenizer tokenizer = Make(spec);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(Encode(tokenizer, std::string(1 << 20, 'a')), std::vector<int32_t>(1 << 18, four));
    for (const char* unit : {" ", "\n", "\xE2\x80\x83", " \t", "'", "5", "\xFF", "<"}) {
      std::string text;
      while (text.size() < 1 << 18) text += unit;
      EXPECT_EQ(*tokenizer.Decode(Encode(tokenizer, text)), text) << name << " " << unit;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << name;
  }
}

TEST(TokenizerTest, AnyBytesRoundTrip) {
  std::mt19937 random(7);
  for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe", "default"}) {
    TokenizerSpec spec = ByteSpec();
    Add(&spec, "<|x|>", TokenType::kControl);
    spec.pre_tokenizer = name;
    const Tokenizer tokenizer = Make(std::move(spec));
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (size_t i = random() % 24; i > 0; --i) {
        text += random() % 4 == 0 ? std::string("\xF0\x9F\x99\x82 <|x|>") : std::string(1, static_cast<char>(random()));
      }
      const std::vector<int32_t> ids = Encode(tokenizer, text, {.parse_special = round % 2 == 0});
      EXPECT_EQ(*tokenizer.Decode(ids), text);
    }
  }
}

TEST(TokenizerTest, FindsControlTokensOnlyWhenAskedAndUserDefinedAlways) {
  TokenizerSpec spec = ByteSpec();
  const int32_t control = Add(&spec, "<|x|>", TokenType::kControl);
  const int32_t user = Add(&spec, "<t>", TokenType::kUserDefined);
  const Tokenizer tokenizer = Make(std::move(spec));
  EXPECT_THAT(Encode(tokenizer, "a<|x|> <t>", {.parse_special = true}), ElementsAre('a', control, ' ', user));
  EXPECT_THAT(Encode(tokenizer, "a<|x|> <t>"), ElementsAre('a', '<', '|', 'x', '|', '>', ' ', user));
  EXPECT_TRUE(tokenizer.IsControl(control));
  EXPECT_FALSE(tokenizer.IsControl(user));
  EXPECT_EQ(*tokenizer.Decode(std::vector<int32_t>{control, user}), "<|x|><t>");
}

TEST(SpecialMatcherTest, LongerSpellingsWinWhereverTheyStand) {
  SpecialMatcher matcher;
  matcher.Add("ab", 1, false);
  matcher.Add("abc", 2, false);
  matcher.Add("bcde", 3, false);
  matcher.Add("aa", 4, true);
  const auto ids = [&matcher](std::string_view text, bool control) {
    std::vector<int32_t> found;
    for (const auto& match : matcher.Find(text, control)) found.push_back(match.id);
    return found;
  };
  EXPECT_THAT(ids("abc", true), ElementsAre(2));
  EXPECT_THAT(ids("abcde", true), ElementsAre(3));
  EXPECT_THAT(ids("xabxabcx", true), ElementsAre(1, 2));
  EXPECT_THAT(ids("aaaab", true), ElementsAre(4, 1));
  EXPECT_THAT(ids("aaaab", false), ElementsAre(1));
}

TEST(TokenizerTest, AddsBosAndEosWhereTheVocabularyAsks) {
  TokenizerSpec spec = ByteSpec();
  spec.bos_id = Add(&spec, "<b>", TokenType::kControl);
  spec.eos_id = Add(&spec, "<e>", TokenType::kControl);
  spec.add_bos = true;
  EXPECT_THAT(Encode(Make(spec), "a", {.add_special = true}), ElementsAre(256, 'a'));
  spec.add_eos = true;
  EXPECT_THAT(Encode(Make(spec), "a", {.add_special = true}), ElementsAre(256, 'a', 257));
  EXPECT_THAT(Encode(Make(spec), "a"), ElementsAre('a'));
  EXPECT_TRUE(Make(spec).IsEndOfGeneration(257));
  EXPECT_FALSE(Make(spec).IsEndOfGeneration(256));
}

TEST(TokenizerTest, LlamaBpeTakesAWholeWordThatIsAToken) {
  TokenizerSpec spec = ByteSpec();
  const int32_t word = Add(&spec, "xyz");
  spec.pre_tokenizer = "llama-bpe";
  EXPECT_THAT(Encode(Make(spec), "xyz"), ElementsAre(word));
  spec.pre_tokenizer = "gpt-2";
  EXPECT_THAT(Encode(Make(spec), "xyz"), ElementsAre('x', 'y', 'z'));
}

TEST(TokenizerTest, PiecesFollowTheTokenType) {
  TokenizerSpec spec = ByteSpec();
  const int32_t unused = Add(&spec, "[PAD1]", TokenType::kUnused);
  const int32_t byte = Add(&spec, "<0x0A>", TokenType::kByte);
  const int32_t foreign = Add(&spec, "\xE4\xBD\xA0");
  const Tokenizer tokenizer = Make(std::move(spec));
  EXPECT_EQ(tokenizer.Piece(unused), "");
  EXPECT_EQ(tokenizer.Piece(byte), "\n");
  EXPECT_EQ(tokenizer.Piece(foreign), "\xE4\xBD\xA0");
  EXPECT_EQ(tokenizer.Piece(-1), "");
  EXPECT_EQ(tokenizer.Piece(100000), "");
  const absl::Status status = tokenizer.Decode(std::vector<int32_t>{1, 100000}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("100000"));
}

TEST(TokenizerTest, SaysWhichByteTheVocabularyLacks) {
  TokenizerSpec spec = ByteSpec();
  spec.tokens.erase(spec.tokens.begin() + 4);
  spec.token_types.pop_back();
  const Tokenizer tokenizer = Make(std::move(spec));
  EXPECT_TRUE(tokenizer.Encode("fine").ok());
  const absl::Status status = tokenizer.Encode("a\x04").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 0x04"));
}

TEST(TokenizerTest, RefusesAVocabularyThatDoesNotFitTogether) {
  const auto message = [](void (*change)(TokenizerSpec*)) {
    TokenizerSpec spec = ByteSpec();
    change(&spec);
    const absl::Status status = Tokenizer::Create(std::move(spec)).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(message([](TokenizerSpec* s) { s->model = "t5"; }), HasSubstr("kind 't5' is not supported"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->pre_tokenizer.push_back('x'); }), HasSubstr("pre-tokenizer 'gpt-2x'"));
  EXPECT_THAT(message([](TokenizerSpec* s) { *s = TokenizerSpec(); }), HasSubstr("no tokens"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->token_types.pop_back(); }), HasSubstr("256 tokens but 255"));
  EXPECT_THAT(message([](TokenizerSpec* s) { Add(s, "a"); }),
              HasSubstr("tokens 97 and 256 of the vocabulary are both"));
  EXPECT_THAT(message([](TokenizerSpec* s) { Add(s, ""); }), HasSubstr("token 256 of the vocabulary is empty"));
  EXPECT_THAT(message([](TokenizerSpec* s) { Add(s, "x1", static_cast<TokenType>(9)); }), HasSubstr("unknown type 9"));
  EXPECT_THAT(message([](TokenizerSpec* s) { Add(s, "<0xZZ>", TokenType::kByte); }), HasSubstr("<0xNN>"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->merges = {"a b"}; }), HasSubstr("needs the token 'ab'"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->merges = {"ab"}; }), HasSubstr("not two tokens"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->merges = {""}; }), HasSubstr("not two tokens"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->merges = {"a "}; }), HasSubstr("not two tokens"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->eos_id = 256; }), HasSubstr("EOS token id 256 is outside"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->bos_id = -1; }), HasSubstr("BOS token id -1 is outside"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->add_bos = true; }), HasSubstr("does not name one"));
  EXPECT_THAT(message([](TokenizerSpec* s) {
                s->tokens = {"xx"};
                s->token_types = {TokenType::kNormal};
              }),
              HasSubstr("no byte tokens"));
}

TEST(TokenizerTest, ManyThreadsEncodeAtOnce) {
  TokenizerSpec spec = ByteSpec();
  Add(&spec, "ab");
  spec.merges = {"a b"};
  const Tokenizer tokenizer = Make(std::move(spec));
  const std::vector<int32_t> expected = Encode(tokenizer, "abc 12 ab");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += *tokenizer.Encode("abc 12 ab") != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace octet
