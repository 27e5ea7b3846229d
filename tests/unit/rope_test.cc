// Stretched RoPE against tests/data/rope.json, which make_rope.py computes from transformers' formulas.
#include "core/model/rope.h"

#include <cmath>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace octet {
namespace {

TEST(RopeTest, StretchesAsTransformersDoes) {
  std::ifstream file(std::string(OCTET_TEST_DATA) + "/rope.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 7u);
  for (const nlohmann::json& c : cases) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    RopeConfig::Base base{.theta = c.at("base"), .scaling = {}};
    base.scaling.kind = c.at("kind") == "yarn" ? RopeScalingKind::kYarn : RopeScalingKind::kLlama3;
    base.scaling.factor = c.at("factor");
    base.scaling.original_context_length = c.at("original");
    base.scaling.beta_fast = c.value("beta_fast", 32.0);
    base.scaling.beta_slow = c.value("beta_slow", 1.0);
    base.scaling.low_freq_factor = c.value("low_freq_factor", 1.0);
    base.scaling.high_freq_factor = c.value("high_freq_factor", 4.0);
    const RopeAngles angles = MakeRopeAngles(base, c.at("dim"), {});
    EXPECT_NEAR(angles.magnitude, c.at("magnitude").get<double>(), 1e-12);
    ASSERT_EQ(angles.frequency.size(), c.at("frequency").size());
    for (size_t p = 0; p < angles.frequency.size(); ++p) {
      const double expected = c.at("frequency")[p];
      EXPECT_NEAR(angles.frequency[p], expected, 1e-11 * expected) << "pair " << p;
    }
  }
}

// Llama 3's GGUF files hold the same stretch as factors of the frequencies.
TEST(RopeTest, FactorsDivideFrequencies) {
  RopeConfig::Base base{.theta = 5e5, .scaling = {}};
  const RopeAngles plain = MakeRopeAngles(base, 64, {});
  base.scaling = {.kind = RopeScalingKind::kLlama3, .factor = 32, .original_context_length = 8192};
  const RopeAngles expected = MakeRopeAngles(base, 64, {});
  std::vector<float> factors;
  for (size_t p = 0; p < 32; ++p) factors.push_back(static_cast<float>(plain.frequency[p] / expected.frequency[p]));
  EXPECT_EQ(factors.front(), 1.0f);
  EXPECT_NEAR(factors.back(), 32.0f, 1e-5);
  base.scaling = {};
  const RopeAngles got = MakeRopeAngles(base, 64, factors);
  for (size_t p = 0; p < 32; ++p) EXPECT_NEAR(got.frequency[p] / expected.frequency[p], 1, 1e-6) << p;
}

TEST(RopeTest, ExtFactorAndAttnFactorMixAsGgmlDoes) {
  RopeConfig::Base base{.theta = 1e4, .scaling = {.kind = RopeScalingKind::kYarn, .factor = 4}};
  base.scaling.original_context_length = 2048;
  base.scaling.ext_factor = 0;
  base.scaling.attn_factor = 1.5;
  const RopeAngles interpolated = MakeRopeAngles(base, 64, {});
  EXPECT_EQ(interpolated.magnitude, 1.5);
  for (size_t p = 0; p < 32; ++p)
    EXPECT_NEAR(interpolated.frequency[p] * 4, std::pow(1e4, -static_cast<double>(p) / 32), 1e-12);
  base.scaling.ext_factor = 0.5;
  const RopeAngles half = MakeRopeAngles(base, 64, {});
  EXPECT_NEAR(half.magnitude, 1.5 * (1 + 0.1 * std::log(4.0)), 1e-12);
  EXPECT_NEAR(half.frequency[0], 0.5 * 1 + 0.5 * 0.25, 1e-12);  // the fastest pair, half of it its own
  EXPECT_NEAR(half.frequency[31] * 4, std::pow(1e4, -31 / 32.0), 1e-12);
}

TEST(RopeTest, LinearScalingDividesEveryFrequency) {
  const RopeConfig::Base base{.theta = 1e4, .scaling = {.kind = RopeScalingKind::kLinear, .factor = 8}};
  const RopeAngles angles = MakeRopeAngles(base, 4, {});
  EXPECT_EQ(angles.magnitude, 1);
  EXPECT_NEAR(angles.frequency[0], 0.125, 1e-12);
  EXPECT_NEAR(angles.frequency[1], 0.00125, 1e-12);
}

}  // namespace
}  // namespace octet
