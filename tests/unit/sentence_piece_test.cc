// Vocabularies of the kind "llama": scored merges, byte fallback, the space prefix, and files that do not fit together.
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/text/gguf_tokenizer.h"
#include "core/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/gguf_writer.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kSpace[] = "\xE2\x96\x81";
constexpr int32_t kBos = 1, kFirstByte = 3;

int32_t Add(TokenizerSpec* spec, const std::string& spelling, float score, TokenType type = TokenType::kNormal) {
  spec->tokens.push_back(spelling);
  spec->token_types.push_back(type);
  spec->scores.push_back(score);
  return static_cast<int32_t>(spec->tokens.size()) - 1;
}

// <unk>, <s>, </s>, then the 256 bytes and the space.
TokenizerSpec ByteSpec() {
  TokenizerSpec spec;
  spec.model = "llama";
  Add(&spec, "<unk>", 0, TokenType::kUnknown);
  spec.bos_id = Add(&spec, "<s>", 0, TokenType::kControl);
  spec.eos_id = Add(&spec, "</s>", 0, TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) Add(&spec, absl::StrFormat("<0x%02X>", byte), 0, TokenType::kByte);
  Add(&spec, kSpace, -100);
  return spec;
}

int32_t Byte(int value) { return kFirstByte + value; }

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

TEST(SentencePieceTest, JoinsByScoreThenLeftmost) {
  TokenizerSpec spec = ByteSpec();
  const int32_t a = Add(&spec, "a", -10), b = Add(&spec, "b", -11), c = Add(&spec, "c", -12);
  const int32_t ab = Add(&spec, "ab", -2), bc = Add(&spec, "bc", -1), aa = Add(&spec, "aa", -3);
  const int32_t space_a = Add(&spec, absl::StrCat(kSpace, "a"), -4);
  const Tokenizer tokenizer = Make(std::move(spec));
  EXPECT_THAT(Encode(tokenizer, "abc"), ElementsAre(a, bc));
  EXPECT_THAT(Encode(tokenizer, "ab"), ElementsAre(ab));
  EXPECT_THAT(Encode(tokenizer, "aaa"), ElementsAre(aa, a));
  EXPECT_THAT(Encode(tokenizer, "cb"), ElementsAre(c, b));
  EXPECT_THAT(Encode(tokenizer, "b a"), ElementsAre(b, space_a));
  EXPECT_EQ(tokenizer.Piece(space_a), " a");
  EXPECT_THAT(Encode(tokenizer, ""), ElementsAre());
}

// The heap against the definition, on random words, vocabularies and scores with many ties.
TEST(SentencePieceTest, AgreesWithJoiningOnePairAtATime) {
  std::mt19937 random(20250314);
  for (int round = 0; round < 300; ++round) {
    TokenizerSpec spec = ByteSpec();
    std::map<std::string, float> known;
    for (const char* letter : {"a", "b", "c"}) known[letter] = 0;
    for (int i = 0; i < 14; ++i) {
      std::string joined;
      for (int part = 0; part < 2; ++part) joined += std::next(known.begin(), random() % known.size())->first;
      known.emplace(joined, static_cast<float>(random() % 5));
    }
    for (const auto& [spelling, score] : known) Add(&spec, spelling, score);
    const Tokenizer tokenizer = Make(std::move(spec));
    std::string word;
    for (size_t i = random() % 40 + 1; i > 0; --i) word += static_cast<char>('a' + random() % 3);
    std::vector<std::string> parts;
    for (char letter : word) parts.emplace_back(1, letter);
    for (;;) {
      size_t best = parts.size();
      float score = -1;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto joined = known.find(parts[i] + parts[i + 1]);
        if (joined == known.end() || joined->second <= score) continue;
        score = joined->second;
        best = i;
      }
      if (best == parts.size()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::vector<int32_t> expected;
    for (const std::string& part : parts) expected.push_back(*tokenizer.FindToken(part));
    EXPECT_EQ(Encode(tokenizer, word), expected) << "round " << round << ", word " << word;
  }
}

TEST(SentencePieceTest, SpellsWhatIsNoTokenInBytes) {
  TokenizerSpec spec = ByteSpec();
  const int32_t e = Add(&spec, "\xC3\xA9", -1);
  const Tokenizer tokenizer = Make(std::move(spec));
  EXPECT_THAT(Encode(tokenizer, "\xC3\xA9\xC3\xA8"), ElementsAre(e, Byte(0xC3), Byte(0xA8)));
  EXPECT_THAT(Encode(tokenizer, "<0x0A>").size(), 6);
  // A broken character does not swallow the space behind it.
  EXPECT_EQ(*tokenizer.Decode(Encode(tokenizer, "\xE2\x82 x")), "\xE2\x82 x");
}

TEST(SentencePieceTest, AnyBytesRoundTrip) {
  std::mt19937 random(8);
  for (const bool prefix : {false, true}) {
    TokenizerSpec spec = ByteSpec();
    spec.add_space_prefix = prefix;
    for (const char* token : {"a", "ab", "\xF0\x9F\x99\x82"}) Add(&spec, token, -1);
    const Tokenizer tokenizer = Make(std::move(spec));
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (size_t i = random() % 24; i > 0; --i) {
        text += random() % 4 == 0 ? std::string("\xF0\x9F\x99\x82 ab") : std::string(1, static_cast<char>(random()));
      }
      EXPECT_EQ(*tokenizer.Decode(Encode(tokenizer, text)), text);
    }
  }
}

TEST(SentencePieceTest, PutsASpaceAtTheStartAndBehindSpecialTokens) {
  TokenizerSpec spec = ByteSpec();
  spec.add_bos = true;
  spec.add_space_prefix = true;
  const int32_t a = Add(&spec, "a", -1), space_a = Add(&spec, absl::StrCat(kSpace, "a"), -2);
  const int32_t user = Add(&spec, "<t>", 0, TokenType::kUserDefined);
  const Tokenizer tokenizer = Make(spec);
  EXPECT_THAT(Encode(tokenizer, "a<t>a", {.add_special = true}), ElementsAre(kBos, space_a, user, space_a));
  EXPECT_EQ(*tokenizer.Decode(std::vector<int32_t>{space_a, space_a}), "a a");
  EXPECT_EQ(*tokenizer.Decode(std::vector<int32_t>{kBos, space_a}), "<s> a");
  EXPECT_EQ(tokenizer.Piece(space_a), " a");
  spec.add_space_prefix = false;
  EXPECT_THAT(Encode(Make(spec), "a<t>a", {.add_special = true}), ElementsAre(kBos, a, user, a));
  EXPECT_EQ(*Make(spec).Decode(std::vector<int32_t>{space_a, space_a}), " a a");
}

TEST(SentencePieceTest, AMegabyteTakesSeconds) {
  TokenizerSpec spec = ByteSpec();
  Add(&spec, "a", -9);
  Add(&spec, "aa", -8);
  const int32_t four = Add(&spec, "aaaa", -7);
  Add(&spec, std::string(1 << 16, 'b'), -1);
  const Tokenizer tokenizer = Make(std::move(spec));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Encode(tokenizer, std::string(1 << 20, 'a')), std::vector<int32_t>(1 << 18, four));
  for (const char* unit : {" ", "b", "\xE2\x96\x81", "\xFF", "a "}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    EXPECT_GE(Encode(tokenizer, text).size(), text.size() / 3) << unit;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(SentencePieceTest, RefusesAVocabularyThatDoesNotFitTogether) {
  const auto message = [](void (*change)(TokenizerSpec*)) {
    TokenizerSpec spec = ByteSpec();
    change(&spec);
    const absl::Status status = Tokenizer::Create(std::move(spec)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message([](TokenizerSpec* s) { s->scores.pop_back(); }), HasSubstr("260 tokens but 259 scores"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->scores.clear(); }), HasSubstr("260 tokens but 0 scores"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->scores[7] = NAN; }), HasSubstr("the score of token 7 is nan"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->scores[7] = -std::numeric_limits<float>::infinity(); }),
              HasSubstr("the score of token 7 is -inf"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->token_types.pop_back(); }),
              HasSubstr("260 tokens but 259 token types"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->tokens[4] = "<0xZZ>"; }), HasSubstr("not of the form <0xNN>"));
  EXPECT_THAT(message([](TokenizerSpec* s) { s->tokens[4] = "<0x00>"; }), HasSubstr("are both '<0x00>'"));
  EXPECT_THAT(message([](TokenizerSpec* s) {
                s->tokens = {"ab"};
                s->token_types = {TokenType::kNormal};
                s->scores = {0};
                s->bos_id = s->eos_id = {};
              }),
              HasSubstr("no byte tokens such as <0x0A>"));
}

TEST(SentencePieceTest, SaysWhichByteTheVocabularyLacks) {
  TokenizerSpec spec = ByteSpec();
  spec.tokens[static_cast<size_t>(Byte(0x04))] = "x";
  spec.token_types[static_cast<size_t>(Byte(0x04))] = TokenType::kNormal;
  const Tokenizer tokenizer = Make(std::move(spec));
  EXPECT_TRUE(tokenizer.Encode("fine").ok());
  const absl::Status status = tokenizer.Encode("a\x04").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 0x04"));
}

absl::StatusOr<TokenizerSpec> SpecFromFile(const GgufWriter& writer) {
  const TempFile temporary(writer.Finish());
  auto file = GgufFile::Open(temporary.path());
  if (!file.ok()) return file.status();
  return TokenizerSpecFromGguf(**file);
}

TEST(GgufTokenizerTest, ScoredVocabulariesHaveSentencePiecesDefaults) {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "llama").Strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0x0A>"});
  EXPECT_THAT(std::string(SpecFromFile(writer).status().message()),
              HasSubstr("no metadata key 'tokenizer.ggml.scores'"));
  writer.F32s("tokenizer.ggml.scores", {0, 0, 0, 0});
  auto spec = SpecFromFile(writer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->bos_id, 1);
  EXPECT_EQ(spec->eos_id, 2);
  EXPECT_TRUE(spec->add_bos);
  EXPECT_FALSE(spec->add_eos);
  EXPECT_TRUE(spec->add_space_prefix);
  writer.U32("tokenizer.ggml.bos_token_id", 2).Bool("tokenizer.ggml.add_bos_token", false);
  writer.Bool("tokenizer.ggml.add_space_prefix", false);
  spec = SpecFromFile(writer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->bos_id, 2);
  EXPECT_FALSE(spec->add_bos);
  EXPECT_FALSE(spec->add_space_prefix);
}

TEST(GgufTokenizerTest, OtherKindsAreRefusedByName) {
  for (const char* kind : {"t5", "bert", "rwkv", "plamo2"}) {
    const absl::Status status = SpecFromFile(GgufWriter().String("tokenizer.ggml.model", kind)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("kind '", kind, "', which is not supported")));
  }
}

}  // namespace
}  // namespace octet
