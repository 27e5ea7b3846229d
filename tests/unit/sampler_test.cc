#include "core/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampler Make(const SamplingParams& params) {
  auto sampler = Sampler::Create(params);
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

int32_t Draw(Sampler* sampler, const std::vector<float>& logits, const std::vector<int32_t>& history = {}) {
  auto id = sampler->Sample(logits, history);
  EXPECT_TRUE(id.ok()) << id.status();
  return id.value_or(-1);
}

std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// Shares over many draws.
std::vector<double> Shares(const SamplingParams& params, const std::vector<float>& logits,
                           const std::vector<int32_t>& history = {}, int draws = 40000) {
  Sampler sampler = Make(params);
  std::vector<double> shares(logits.size(), 0);
  for (int i = 0; i < draws; ++i) shares[static_cast<size_t>(Draw(&sampler, logits, history))] += 1.0 / draws;
  return shares;
}

// Five standard deviations of a share over 40000 draws are at most 0.0125.
void ExpectShares(const std::vector<double>& shares, const std::vector<double>& expected) {
  ASSERT_EQ(shares.size(), expected.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    EXPECT_NEAR(shares[i], expected[i], 0.0125) << "token " << i;
    if (expected[i] == 0) {
      EXPECT_EQ(shares[i], 0) << "token " << i;
    }
  }
}

TEST(SamplerTest, TemperatureZeroTakesTheLargestAndTheLowestIdOfEqualOnes) {
  Sampler sampler = Make({});
  EXPECT_EQ(Draw(&sampler, {1, 3, 2}), 1);
  EXPECT_EQ(Draw(&sampler, {1, 3, 3, -kInf}), 1);
  EXPECT_EQ(Draw(&sampler, {2, 2, 2}), 0);
  EXPECT_EQ(Draw(&sampler, {-kInf, -kInf, -5}), 2);
  EXPECT_EQ(sampler.draws(), 0u);
}

TEST(SamplerTest, DrawsFollowTheProbabilities) {
  const std::vector<double> p = {0.5, 0.05, 0.25, 0.2};
  ExpectShares(Shares({.temperature = 1, .seed = 1}, LogitsOf(p)), p);
  ExpectShares(Shares({.temperature = 1, .seed = 2}, {0, 0, 0, 0, -kInf}), {0.25, 0.25, 0.25, 0.25, 0});
}

TEST(SamplerTest, TemperatureSharpensAndFlattens) {
  // Temperature 0.5 squares the probabilities, 2 takes their roots.
  ExpectShares(Shares({.temperature = 0.5, .seed = 3}, LogitsOf({0.6, 0.3, 0.1})), {36.0 / 46, 9.0 / 46, 1.0 / 46});
  const double sum = std::sqrt(0.64) + std::sqrt(0.36);
  ExpectShares(Shares({.temperature = 2, .seed = 4}, LogitsOf({0.64, 0.36})), {0.8 / sum, 0.6 / sum});
}

TEST(SamplerTest, ExtremeTemperaturesStayInRange) {
  ExpectShares(Shares({.temperature = 1e-300, .seed = 5}, {3e38f, -3e38f, 1}, {}, 100), {1, 0, 0});
  ExpectShares(Shares({.temperature = 1e300, .seed = 6}, {3e38f, -3e38f}), {0.5, 0.5});
}

TEST(SamplerTest, TopKKeepsTheMostLikelyAndTheLowerIdOfEqualOnes) {
  ExpectShares(Shares({.temperature = 1, .top_k = 2, .seed = 7}, LogitsOf({0.1, 0.4, 0.2, 0.3})),
               {0, 4.0 / 7, 0, 3.0 / 7});
  ExpectShares(Shares({.temperature = 1, .top_k = 2, .seed = 8}, {1, 1, 1, 1}), {0.5, 0.5, 0, 0});
  ExpectShares(Shares({.temperature = 5, .top_k = 1, .seed = 9}, {1, 2, 1.5f}, {}, 1000), {0, 1, 0});
}

TEST(SamplerTest, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = LogitsOf({0.1, 0.4, 0.2, 0.3});
  ExpectShares(Shares({.temperature = 1, .top_p = 0.65, .seed = 10}, logits), {0, 4.0 / 7, 0, 3.0 / 7});
  ExpectShares(Shares({.temperature = 1, .top_p = 0.75, .seed = 11}, logits), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  ExpectShares(Shares({.temperature = 1, .top_p = 1e-9, .seed = 12}, logits, {}, 1000), {0, 1, 0, 0});
  ExpectShares(Shares({.temperature = 1, .top_p = 1e-9, .seed = 12}, {1, 1, 1}, {}, 1000), {1, 0, 0});
}

TEST(SamplerTest, TopPSortsAsFarAsItMustInALargeVocabulary) {
  // 2000 equal tokens: half the probability is the first thousand ids, beyond the first sorted blocks.
  const std::vector<float> logits(2000, 0.5f);
  Sampler sampler = Make({.temperature = 1, .top_p = 0.4999, .seed = 13});
  std::set<int32_t> seen;
  for (int i = 0; i < 20000; ++i) seen.insert(Draw(&sampler, logits));
  EXPECT_LT(*seen.rbegin(), 1000);
  EXPECT_GT(seen.size(), 990u);
}

TEST(SamplerTest, MinPKeepsWhatIsLikelyEnoughBesideTheBest) {
  const std::vector<float> logits = LogitsOf({0.5, 0.3, 0.15, 0.05});
  ExpectShares(Shares({.temperature = 1, .min_p = 0.2, .seed = 14}, logits), {0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0});
  ExpectShares(Shares({.temperature = 1, .min_p = 1, .seed = 15}, logits, {}, 1000), {1, 0, 0, 0});
  // After the temperature: at 0.5 the third token has 9 % of the first one's probability.
  ExpectShares(Shares({.temperature = 0.5, .min_p = 0.2, .seed = 16}, logits), {25.0 / 34, 9.0 / 34, 0, 0});
}

TEST(SamplerTest, FiltersWorkOnWhatTheOneBeforeHasLeft) {
  const std::vector<float> logits = LogitsOf({0.4, 0.3, 0.2, 0.1});
  // top-k leaves 4:3:2, of which 0.7 needs the first two (7/9); of all, 0.75 would need three.
  ExpectShares(Shares({.temperature = 1, .top_k = 3, .top_p = 0.75, .seed = 17}, logits), {4.0 / 7, 3.0 / 7, 0, 0});
  ExpectShares(Shares({.temperature = 1, .top_k = 3, .top_p = 0.95, .min_p = 0.6, .seed = 18}, logits),
               {4.0 / 7, 3.0 / 7, 0, 0});
  // The penalty comes first: token 0 falls behind, so top-k keeps the others.
  ExpectShares(Shares({.temperature = 1, .top_k = 2, .repetition_penalty = 10, .seed = 19}, logits, {0}),
               {0, 3.0 / 5, 2.0 / 5, 0});
}

TEST(SamplerTest, RepetitionPenaltyCountsEachTokenOnceAndPushesBothSignsDown) {
  Sampler sampler = Make({.repetition_penalty = 2});
  EXPECT_EQ(Draw(&sampler, {4, 3, 1}, {0}), 1);           // 4 becomes 2
  EXPECT_EQ(Draw(&sampler, {4, 1.5f, 1}, {0, 0, 0}), 0);  // once only: 2, not 0.5
  EXPECT_EQ(Draw(&sampler, {-1, -1.5f}, {0}), 1);         // -1 becomes -2
  EXPECT_EQ(Draw(&sampler, {-kInf, -1}, {0, 1}), 1);
  Sampler reward = Make({.repetition_penalty = 1e-30});
  EXPECT_EQ(Draw(&reward, {3e38f, 2}, {1}), 0);  // 2e30 is still less than 3e38
  EXPECT_EQ(Draw(&reward, {1, 3e38f}, {1}), 1);  // overflow is clamped, not infinite
}

int32_t Draw(Sampler* sampler, const std::vector<float>& logits, const std::vector<int32_t>& history,
             const std::vector<int32_t>& sampled) {
  auto id = sampler->Sample(logits, history, sampled);
  EXPECT_TRUE(id.ok()) << id.status();
  return id.value_or(-1);
}

// The logits behind bias and penalties, computed from the formulas as they are written.
std::vector<double> Penalized(const SamplingParams& params, const std::vector<float>& logits,
                              const std::vector<int32_t>& history, const std::vector<int32_t>& sampled) {
  std::vector<double> changed(logits.begin(), logits.end());
  for (size_t id = 0; id < logits.size(); ++id) {
    const auto count = [id](const std::vector<int32_t>& ids) {
      return static_cast<double>(std::count(ids.begin(), ids.end(), static_cast<int32_t>(id)));
    };
    for (const LogitBias& entry : params.logit_bias) {
      if (entry.id == static_cast<int32_t>(id)) changed[id] += entry.bias;
    }
    if (count(history) > 0) {
      changed[id] = changed[id] > 0 ? changed[id] / params.repetition_penalty : changed[id] * params.repetition_penalty;
    }
    changed[id] -= params.frequency_penalty * count(sampled);
    if (count(sampled) > 0) changed[id] -= params.presence_penalty;
  }
  return changed;
}

TEST(SamplerTest, BiasAndPenaltiesEqualTheirFormulasInThisOrder) {
  std::mt19937 random(5);
  const auto pick = [&random](int n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
  const auto between = [&random](double low, double high) {
    return low + (high - low) * (static_cast<double>(random()) / 4294967295.0);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(12);
    for (float& logit : logits) logit = static_cast<float>(between(-4, 4));
    std::vector<int32_t> history;
    for (int i = pick(20); i > 0; --i) history.push_back(pick(12));
    const std::vector<int32_t> sampled(history.begin() + pick(static_cast<int>(history.size()) + 1), history.end());
    SamplingParams params{.repetition_penalty = round % 3 == 0 ? 1 : between(0.5, 2),
                          .presence_penalty = round % 4 == 0 ? 0 : between(-2, 2),
                          .frequency_penalty = round % 5 == 0 ? 0 : between(-2, 2),
                          .logit_bias = {{pick(6), between(-5, 5)}, {6 + pick(6), between(-5, 5)}}};
    const std::vector<double> expected = Penalized(params, logits, history, sampled);
    Sampler greedy = Make(params);
    EXPECT_EQ(Draw(&greedy, logits, history, sampled),
              std::max_element(expected.begin(), expected.end()) - expected.begin())
        << "round " << round;
    if (round > 2) continue;
    params.temperature = 1;
    Sampler sampler = Make(params);
    std::vector<double> shares(logits.size(), 0), softmax;
    for (int i = 0; i < 40000; ++i)
      shares[static_cast<size_t>(Draw(&sampler, logits, history, sampled))] += 1.0 / 40000;
    double sum = 0;
    for (double x : expected) sum += std::exp(x);
    for (double x : expected) softmax.push_back(std::exp(x) / sum);
    ExpectShares(shares, softmax);
  }
}

TEST(SamplerTest, FrequencyCountsEveryTimePresenceOnceAndNeitherThePrompt) {
  Sampler frequency = Make({.frequency_penalty = 1});
  EXPECT_EQ(Draw(&frequency, {4, 2.5f}, {0, 0, 0}, {}), 0);
  EXPECT_EQ(Draw(&frequency, {4, 2.5f}, {0}, {0}), 0);        // 3
  EXPECT_EQ(Draw(&frequency, {4, 2.5f}, {0, 0}, {0, 0}), 1);  // 2
  Sampler presence = Make({.presence_penalty = 1});
  EXPECT_EQ(Draw(&presence, {4, 2.5f}, {0, 0}, {0, 0}), 0);  // 3, however often
  Sampler reward = Make({.presence_penalty = -2});
  EXPECT_EQ(Draw(&reward, {1, 2.5f}, {0}, {0}), 0);
}

TEST(SamplerTest, ALargeBiasForcesOrBansAToken) {
  const std::vector<float> logits = {3, 1, 2};
  ExpectShares(Shares({.temperature = 1, .logit_bias = {{1, 100}}, .seed = 30}, logits, {}, 1000), {0, 1, 0});
  ExpectShares(Shares({.temperature = 1, .logit_bias = {{0, -100}, {2, -100}}, .seed = 31}, logits, {}, 1000),
               {0, 1, 0});
  Sampler excluded = Make({.logit_bias = {{0, 100}}});
  EXPECT_EQ(Draw(&excluded, {-kInf, 1}), 1);
  Sampler huge = Make({.logit_bias = {{0, 100}}});
  EXPECT_EQ(Draw(&huge, {std::numeric_limits<float>::max(), 1}), 0);
}

TEST(SamplerTest, BiasesAndSampledIdsOutsideTheVocabularyEndInASentence) {
  Sampler sampler = Make({.logit_bias = {{2, 1}}});
  EXPECT_THAT(std::string(sampler.Sample(std::vector<float>{1, 2}, {}).status().message()),
              HasSubstr("token id 2 is outside the vocabulary of 2 tokens"));
  Sampler plain = Make({});
  EXPECT_THAT(std::string(plain.Sample(std::vector<float>{1, 2}, {}, std::vector<int32_t>{7}).status().message()),
              HasSubstr("token id 7"));
}

TEST(SamplerTest, TheSameSeedGivesTheSameDrawsWhereverItRuns) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7) * 0.25f;
  const auto draw = [&logits](uint64_t seed) {
    Sampler sampler = Make({.temperature = 1, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 8; ++i) ids.push_back(Draw(&sampler, logits));
    return ids;
  };
  EXPECT_EQ(draw(42), draw(42));
  EXPECT_NE(draw(42), draw(43));
  EXPECT_NE(draw(0), draw(1));
  // Computed once by a separate implementation of the generator.
  EXPECT_THAT(draw(42), ElementsAre(34, 95, 48, 6, 68, 6, 20, 74));
}

TEST(SamplerTest, AFilterThatRemovesNothingDoesNotChangeTheDraw) {
  const std::vector<float> logits = {0.5f, 2, 1, 0, 1.5f};
  Sampler plain = Make({.temperature = 1, .seed = 20});
  Sampler filtered = Make({.temperature = 1, .top_k = 5, .top_p = 0.9999999, .min_p = 1e-9, .seed = 20});
  for (int i = 0; i < 200; ++i) EXPECT_EQ(Draw(&plain, logits), Draw(&filtered, logits));
}

TEST(SamplerTest, ContinuesFromAStoredNumberOfDraws) {
  const std::vector<float> logits(50, 0.0f);
  Sampler whole = Make({.temperature = 1, .seed = 21});
  std::vector<int32_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(Draw(&whole, logits));
  Sampler later = Make({.temperature = 1, .seed = 21});
  later.set_draws(6);
  for (size_t i = 6; i < 10; ++i) EXPECT_EQ(Draw(&later, logits), ids[i]);
  EXPECT_EQ(later.draws(), 10u);
}

TEST(SamplerTest, LogitsThatAllowNoChoiceEndInASentence) {
  Sampler sampler = Make({.temperature = 1, .top_k = 1});
  const auto message = [&sampler](const std::vector<float>& logits, const std::vector<int32_t>& history = {}) {
    const auto id = sampler.Sample(logits, history);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(id.status().message());
  };
  EXPECT_THAT(message({1, kNan, 2}), HasSubstr("nan for token 1"));
  EXPECT_THAT(message({kNan}), HasSubstr("nan for token 0"));
  EXPECT_THAT(message({-kInf, 5, kInf}), HasSubstr("inf for token 2"));
  EXPECT_THAT(message({-kInf, -kInf}), HasSubstr("every token is excluded"));
  EXPECT_THAT(message({}), HasSubstr("no logits"));
  EXPECT_THAT(message({1, 2}, {2}), HasSubstr("token id 2 is outside the vocabulary of 2 tokens"));
  EXPECT_THAT(message({1, 2}, {-1}), HasSubstr("token id -1"));
  EXPECT_EQ(sampler.draws(), 0u);
}

TEST(SamplingParamsTest, NamesTheBadValue) {
  const double nan = std::nan("");
  const double inf = std::numeric_limits<double>::infinity();
  const auto message = [](const SamplingParams& params) {
    EXPECT_FALSE(Sampler::Create(params).ok());
    return std::string(params.Validate().message());
  };
  for (double bad : {nan, -0.1, inf}) EXPECT_THAT(message({.temperature = bad}), HasSubstr("temperature is "));
  EXPECT_THAT(message({.top_k = -1}), HasSubstr("top_k is -1"));
  for (double bad : {nan, 0.0, -1.0, 1.5}) EXPECT_THAT(message({.top_p = bad}), HasSubstr("top_p is "));
  for (double bad : {nan, -0.1, 1.1}) EXPECT_THAT(message({.min_p = bad}), HasSubstr("min_p is "));
  for (double bad : {nan, 0.0, -1.0, inf}) {
    EXPECT_THAT(message({.repetition_penalty = bad}), HasSubstr("repetition_penalty is "));
  }
  for (double bad : {nan, -2.1, 2.1, inf}) {
    EXPECT_THAT(message({.presence_penalty = bad}), HasSubstr("presence_penalty is "));
    EXPECT_THAT(message({.frequency_penalty = bad}), HasSubstr("frequency_penalty is "));
  }
  for (double bad : {nan, -100.5, 101.0}) {
    EXPECT_THAT(message({.logit_bias = {{3, bad}}}), HasSubstr("logit_bias of token 3 is "));
  }
  EXPECT_THAT(message({.logit_bias = {{-1, 0}}}), HasSubstr("token -1"));
  EXPECT_THAT(message({.logit_bias = {{5, 0}, {4, 1}, {5, 0}}}), HasSubstr("token 5 twice"));
  EXPECT_TRUE(SamplingParams({.presence_penalty = -2, .frequency_penalty = 2, .logit_bias = {{0, -100}, {1, 100}}})
                  .Validate()
                  .ok());
  EXPECT_TRUE(SamplingParams().Validate().ok());
}

TEST(LogprobsTest, AreTheLogSoftmaxOfTheRawLogitsBestFirst) {
  const std::vector<float> logits = LogitsOf({0.1, 0.4, 0.2, 0.3});
  std::vector<TokenLogprob> top;
  ASSERT_TRUE(TopLogprobs(logits, 3, &top).ok());
  ASSERT_EQ(top.size(), 3u);
  const std::vector<std::pair<int32_t, double>> expected = {{1, 0.4}, {3, 0.3}, {2, 0.2}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(top[i].id, expected[i].first);
    EXPECT_NEAR(top[i].logprob, std::log(expected[i].second), 1e-6);
  }
  EXPECT_NEAR(*Logprob(logits, 0), std::log(0.1), 1e-6);
  EXPECT_FALSE(Logprob(logits, 4).ok());
  EXPECT_FALSE(Logprob(logits, -1).ok());
}

TEST(LogprobsTest, HandleLargeLogitsTiesAndExcludedTokens) {
  std::vector<TokenLogprob> top;
  ASSERT_TRUE(TopLogprobs(std::vector<float>{3e38f, 3e38f, -kInf}, 5, &top).ok());
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].id, 0);
  EXPECT_EQ(top[1].id, 1);
  EXPECT_NEAR(top[0].logprob, std::log(0.5), 1e-12);
  EXPECT_EQ(top[2].logprob, -kInf);
  ASSERT_TRUE(TopLogprobs(std::vector<float>{1, 2}, 0, &top).ok());
  EXPECT_TRUE(top.empty());
  EXPECT_FALSE(TopLogprobs(std::vector<float>{1, kNan}, 1, &top).ok());
}

}  // namespace
}  // namespace octet
