#include "core/text/stream_decoder.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StreamDecoder Make(const std::vector<std::string>& stops = {}) {
  auto decoder = StreamDecoder::Create(stops);
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  return *std::move(decoder);
}

// What each push returns, then what Finish returns.
std::vector<std::string> Stream(const std::vector<std::string>& stops, const std::vector<std::string>& tokens) {
  StreamDecoder decoder = Make(stops);
  std::vector<std::string> shown;
  for (const std::string& token : tokens) shown.push_back(decoder.Push(token));
  shown.push_back(decoder.Finish());
  return shown;
}

TEST(StreamDecoderTest, HoldsACharacterUntilItsLastByte) {
  EXPECT_THAT(Stream({}, {"a\xF0", "\x9F\x99", "\x82z"}), ElementsAre("a", "", "\xF0\x9F\x99\x82z", ""));
  EXPECT_THAT(Stream({}, {"\xC3", "\xA9\xC3", "\xA9"}), ElementsAre("", "\xC3\xA9", "\xC3\xA9", ""));
}

TEST(StreamDecoderTest, AnUnfinishedTailBecomesOneReplacementCharacter) {
  EXPECT_THAT(Stream({}, {"a\xF0\x9F"}), ElementsAre("a", "\xEF\xBF\xBD"));
  EXPECT_THAT(Stream({}, {"a"}), ElementsAre("a", ""));
}

TEST(StreamDecoderTest, BytesThatCanNeverBeACharacterAreReplacedAtOnce) {
  EXPECT_THAT(Stream({}, {"a\xFF"
                          "b"}),
              ElementsAre("a\xEF\xBF\xBD"
                          "b",
                          ""));
  EXPECT_THAT(Stream({}, {"\xF0\x9F", "x"}), ElementsAre("", "\xEF\xBF\xBDx", ""));
  EXPECT_THAT(Stream({}, {"\xED\xA0\x80"}), ElementsAre("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", ""));
  EXPECT_THAT(Stream({}, {"\xC0\x80"}), ElementsAre("\xEF\xBF\xBD\xEF\xBF\xBD", ""));
}

TEST(StreamDecoderTest, AStopStringOverSeveralTokensIsNeverShown) {
  StreamDecoder decoder = Make({"STOP"});
  EXPECT_EQ(decoder.Push("one S"), "one ");
  EXPECT_EQ(decoder.Push("TO"), "");
  EXPECT_FALSE(decoder.stopped());
  EXPECT_EQ(decoder.Push("P two"), "");
  EXPECT_TRUE(decoder.stopped());
  EXPECT_EQ(decoder.stop_string(), "STOP");
  EXPECT_EQ(decoder.Push("three"), "");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoderTest, TextThatOnlyBeganLikeAStopStringIsShown) {
  EXPECT_THAT(Stream({"STOP"}, {"S", "TO", "x", "ST"}), ElementsAre("", "", "STOx", "", "ST"));
  EXPECT_THAT(Stream({"aab"}, {"aa", "a", "b"}), ElementsAre("", "a", "", ""));
}

TEST(StreamDecoderTest, AStopStringMayEndInsideATokenAndCutACharacterSequence) {
  EXPECT_THAT(Stream({"\xC3\xA9!"}, {"x\xC3", "\xA9", "!y"}), ElementsAre("x", "", "", ""));
  EXPECT_THAT(Stream({"\xEF\xBF\xBD"}, {"x\xF0"}), ElementsAre("x", ""));
}

TEST(StreamDecoderTest, NeverEndsInsideACharacterThatAStopStringBegins) {
  // Both characters begin with E4 BD, so a byte-wise match reaches into the second one.
  EXPECT_THAT(Stream({"\xE4\xBD\xA0"}, {"a\xE4\xBD", "\xA1"}), ElementsAre("a", "\xE4\xBD\xA1", ""));
}

TEST(StreamDecoderTest, OfSeveralStopStringsTheFirstToBeCompleteCounts) {
  StreamDecoder first = Make({"abcd", "bc"});
  EXPECT_EQ(first.Push("xabcd"), "xa");
  EXPECT_EQ(first.stop_string(), "bc");
  StreamDecoder longest = Make({"c", "abc"});
  EXPECT_EQ(longest.Push("xabc"), "x");
  EXPECT_EQ(longest.stop_string(), "abc");
}

TEST(StreamDecoderTest, RefusesStopStringsThatCannotMatch) {
  EXPECT_THAT(std::string(StreamDecoder::Create({""}).status().message()), HasSubstr("empty"));
  EXPECT_THAT(std::string(StreamDecoder::Create({"\xFF"}).status().message()), HasSubstr("not UTF-8"));
}

// Against the whole text: sanitised, then cut before the stop string that is complete first.
TEST(StreamDecoderTest, TheResultDoesNotDependOnWhereTokensAreCut) {
  std::mt19937 random(11);
  const std::vector<std::string> atoms = {"a",        "b",    "ab",      "\xC3\xA9", "\xF0\x9F\x99\x82",
                                          "\xF0\x9F", "\xFF", "\xE2\x82"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (size_t i = random() % 12; i > 0; --i) bytes += atoms[random() % atoms.size()];
    std::vector<std::string> stops;
    for (size_t i = random() % 3; i > 0; --i) {
      std::string stop;
      for (size_t k = random() % 3 + 1; k > 0; --k) stop += atoms[random() % 5];
      stops.push_back(stop);
    }
    std::string expected;
    for (std::string_view rest = bytes; !rest.empty();) {
      const Utf8Char first = FirstUtf8Char(rest);
      expected += first.kind == Utf8Char::Kind::kValid ? rest.substr(0, first.size) : kReplacementChar;
      rest.remove_prefix(first.size);
    }
    size_t end = std::string::npos;
    size_t begin = expected.size();
    for (const std::string& stop : stops) {
      const size_t at = expected.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
        begin = at;
        end = at + stop.size();
      }
    }
    StreamDecoder decoder = Make(stops);
    std::string shown;
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t size = std::min<size_t>(rest.size(), random() % 4);
      const std::string part = decoder.Push(rest.substr(0, size));
      for (std::string_view check = part; !check.empty();) {
        const Utf8Char first = FirstUtf8Char(check);
        ASSERT_EQ(first.kind, Utf8Char::Kind::kValid) << "round " << round;
        check.remove_prefix(first.size);
      }
      shown += part;
      rest.remove_prefix(size);
    }
    shown += decoder.Finish();
    EXPECT_EQ(shown, expected.substr(0, begin)) << "round " << round;
    EXPECT_EQ(decoder.stopped(), end != std::string::npos) << "round " << round;
  }
}

}  // namespace
}  // namespace octet
