// Profiles and expectation files of the conformance kit.
#include "tests/conformance/case_lists.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace octet::conformance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(GlobMatchTest, KnowsStarsAndQuestionMarks) {
  struct {
    const char *glob, *text;
    bool matches;
  } const cases[] = {{"", "", true},
                     {"", "a", false},
                     {"*", "", true},
                     {"*", "Abi.X/y", true},
                     {"Abi.*", "Abi.X/y", true},
                     {"Abi.*", "xAbi.X", false},
                     {"*/f32_*_exact", "Dense.Linear/f32_t1_exact", true},
                     {"*/f32_*_exact", "Dense.Linear/f32_t1_exact_bias", false},
                     {"a?c", "abc", true},
                     {"a?c", "ac", false},
                     {"*a*b*", "xxaxxabxxb", true},
                     {"*ab", "aab", true},
                     {"a**b", "ab", true},
                     {"abc", "ab", false}};
  for (const auto& c : cases) EXPECT_EQ(GlobMatch(c.glob, c.text), c.matches) << c.glob << " on " << c.text;
}

ReadProfile From(const std::map<std::string, std::string>& files) {
  return [files](const std::string& name) -> absl::StatusOr<std::string> {
    const auto found = files.find(name);
    if (found == files.end()) return absl::NotFoundError("there is no profile '" + name + "'");
    return found->second;
  };
}

TEST(LoadProfileTest, ListsItsGlobsAndThoseItIncludes) {
  const auto profile =
      LoadProfile("all", From({{"all", "# everything\n\n  Abi.*  \r\ninclude part\nB.*"}, {"part", "P.*\n"}}));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->name, "all");
  EXPECT_THAT(profile->globs, ElementsAre("Abi.*", "P.*", "B.*"));
}

TEST(LoadProfileTest, ListsAProfileOnceThoughItIsTakenInTwice) {
  auto profile = LoadProfile("a", From({{"a", "include b\ninclude c"}, {"b", "include c"}, {"c", "C.*"}}));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_THAT(profile->globs, ElementsAre("C.*"));

  std::map<std::string, std::string> doubling = {{"p60", "P.*"}};
  for (int i = 0; i < 60; ++i) {
    const std::string next = absl::StrCat("include p", i + 1, "\n");
    doubling[absl::StrCat("p", i)] = next + next;
  }
  profile = LoadProfile("p0", From(doubling));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_THAT(profile->globs, ElementsAre("P.*"));
}

TEST(LoadProfileTest, RefusesWhatIsNoProfile) {
  const auto why = [](const std::map<std::string, std::string>& files) {
    return std::string(LoadProfile("a", From(files)).status().message());
  };
  EXPECT_THAT(why({}), HasSubstr("no profile 'a'"));
  EXPECT_THAT(why({{"a", "include b"}}), HasSubstr("no profile 'b'"));
  EXPECT_THAT(why({{"a", "# nothing\n"}}), HasSubstr("lists no case"));
  EXPECT_THAT(why({{"a", "include b"}, {"b", "include a"}}), HasSubstr("includes itself"));
  EXPECT_THAT(why({{"a", "two words"}}), HasSubstr("'two words' is neither"));
}

TEST(ParseExpectationsTest, ReadsBothSectionsWithTheirLines) {
  const auto parsed = ParseExpectations(
      "# for acme\n[never]\nA.*/latent_* : no MLA: the unit has no such path\n\n[not yet]\r\n  B.C/?1 :  slow  \r\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->size(), 2u);
  EXPECT_EQ((*parsed)[0].list, Expectation::List::kNever);
  EXPECT_EQ((*parsed)[0].glob, "A.*/latent_*");
  EXPECT_EQ((*parsed)[0].reason, "no MLA: the unit has no such path");
  EXPECT_EQ((*parsed)[0].line, 3);
  EXPECT_EQ((*parsed)[1].list, Expectation::List::kNotYet);
  EXPECT_EQ((*parsed)[1].glob, "B.C/?1");
  EXPECT_EQ((*parsed)[1].reason, "slow");
  EXPECT_EQ((*parsed)[1].line, 6);
}

TEST(ParseExpectationsTest, AnEmptyFileExpectsNothing) {
  const auto parsed = ParseExpectations("");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->empty());
}

TEST(ParseExpectationsTest, RefusesLinesWithoutSectionReasonOrGlob) {
  const auto why = [](const char* text) { return std::string(ParseExpectations(text).status().message()); };
  EXPECT_THAT(why("A.* : reason\n"), HasSubstr("line 1: a line before the first section"));
  EXPECT_THAT(why("[never]\nA.*\n"), HasSubstr("line 2: 'A.*' has no reason"));
  EXPECT_THAT(why("[never]\nA.* :  \n"), HasSubstr("line 2: 'A.* :' has no reason"));
  EXPECT_THAT(why("[never]\n: reason\n"), HasSubstr("has no glob"));
  EXPECT_THAT(why("[sometimes]\n"), HasSubstr("unknown section [sometimes]"));
}

TEST(CheckThatEachMatchesTest, NamesTheLineThatMatchesNothing) {
  const auto parsed = ParseExpectations("[never]\nA.* : one\n[not yet]\nGone.* : two\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(CheckThatEachMatches(*parsed, {"A.x", "Gone.y"}).ok());
  const absl::Status status = CheckThatEachMatches(*parsed, {"A.x", "B.y"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 4: 'Gone.*' matches no case"));
}

TEST(FindExpectationTest, TakesTheFirstThatMatches) {
  const auto parsed = ParseExpectations("[never]\nA.b : first\nA.* : second\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_NE(FindExpectation(*parsed, "A.b"), nullptr);
  EXPECT_EQ(FindExpectation(*parsed, "A.b")->reason, "first");
  EXPECT_EQ(FindExpectation(*parsed, "A.c")->reason, "second");
  EXPECT_EQ(FindExpectation(*parsed, "B.c"), nullptr);
}

TEST(HashOfCasesTest, DependsOnTheCasesAndNotOnTheirOrder) {
  EXPECT_EQ(HashOfCases({"a", "b"}), HashOfCases({"b", "a"}));
  EXPECT_NE(HashOfCases({"a", "b"}), HashOfCases({"ab"}));
  EXPECT_NE(HashOfCases({"a", "b"}), HashOfCases({"a"}));
  EXPECT_EQ(HashOfCases({}), "cbf29ce484222325");  // FNV-1a's own start
  EXPECT_EQ(HashOfCases({"a"}).size(), 16u);
}

}  // namespace
}  // namespace octet::conformance
