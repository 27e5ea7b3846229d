// Real models on the CPU backend, f32 cache and exact compute, against logits and greedy ids recorded from other
// programs. What was recorded, and how near a run must come: tests/data/oracles/README.md.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/tiny_engine.h"
#include "tests/unit/model_files.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr double kFirstStepTolerance = 5e-3, kFloatTie = 0.01, kQuantizedTie = 0.5, kQuantizedShare = 0.95;
constexpr int32_t kStepTokens = 128;

struct Oracle {
  const char* name;
  const char* file;
  const char* answers;
};

class OracleTest : public ::testing::TestWithParam<Oracle> {
 protected:
  void SetUp() override {
    const std::string path = ModelFile(GetParam().file);
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here; scripts/fetch-model gets it";
    auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto model = Model::Prepare(CpuDevice(), *file_, {.exact = true, .max_step_tokens = kStepTokens});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    ASSERT_TRUE(model_->Upload().ok());
    RunnerOptions options;
    options.kv.dtype = DType::kF32;
    options.max_model_len = kStepTokens;
    options.max_logit_rows = kStepTokens;
    auto runner = Runner::Prepare(*model_, options);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    ASSERT_TRUE(runner_->Allocate().ok());
    std::ifstream answers(std::string(OCTET_TEST_DATA) + "/oracles/" + GetParam().answers);
    items_ = json::parse(answers).at("items");
    ASSERT_GE(items_.size(), 6u);
  }

  // Logits [ids][vocab]: row i is the prediction of ids[i] after the prompt and ids[0, i).
  std::vector<float> Forced(const json& item, const std::vector<int32_t>& ids) {
    std::vector<int32_t> tokens = item.at("prompt_ids");
    const size_t before = tokens.size() - 1;
    tokens.insert(tokens.end(), ids.begin(), ids.end() - 1);
    Sequence sequence(*runner_, tokens);
    if (before > 0) {
      const SequenceInput prompt = sequence.Next(before, false);
      auto step = runner_->Step({&prompt, 1});
      EXPECT_TRUE(step.ok()) << step.status();
    }
    return sequence.Feed(sequence.left());
  }
  std::span<const float> Row(const std::vector<float>& logits, size_t i) const {
    const size_t vocab = static_cast<size_t>(model_->config().vocab_size);
    return std::span<const float>(logits).subspan(i * vocab, vocab);
  }

  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Runner> runner_;
  json items_;
};

int32_t Top(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

double Gap(const json& top) { return top[0][1].get<double>() - top[1][1].get<double>(); }

// Models whose float32 answers are recorded.
class Float32OracleTest : public OracleTest {};

TEST_P(Float32OracleTest, EqualsFloat32ArithmeticUpToNearTies) {
  int compared = 0;
  double worst = 0;
  for (const json& item : items_) {
    if (!item.contains("float32")) continue;
    const json& answer = item.at("float32");
    const std::vector<int32_t> ids = answer.at("ids");
    const std::vector<float> logits = Forced(item, ids);
    ASSERT_EQ(answer.at("first_top10").size(), 10u);
    for (const json& entry : answer.at("first_top10")) {
      const double got = Row(logits, 0)[entry[0].get<size_t>()];
      worst = std::max(worst, std::abs(got - entry[1].get<double>()));
      EXPECT_NEAR(got, entry[1].get<double>(), kFirstStepTolerance) << item.at("name") << ", token " << entry[0];
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (Gap(answer.at("top5")[i]) < kFloatTie) break;
      EXPECT_EQ(Top(Row(logits, i)), ids[i]) << item.at("name") << ", step " << i;
      ++compared;
    }
  }
  EXPECT_GE(compared, 150);
  RecordProperty("worst_first_step_error", std::to_string(worst));
  RecordProperty("steps", compared);
}

TEST_P(OracleTest, ChoosesWhatLlamaCppChose) {
  int steps = 0, equal = 0;
  for (const json& item : items_) {
    const json& answer = item.at("llama_cpp");
    const std::vector<int32_t> ids = answer.at("ids");
    const std::vector<float> logits = Forced(item, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      const int32_t recorded = answer.at("top5")[i][0][0], top = Top(Row(logits, i));
      ++steps;
      equal += top == recorded ? 1 : 0;
      if (Gap(answer.at("top5")[i]) > kQuantizedTie) {
        EXPECT_EQ(top, recorded) << item.at("name") << ", step " << i;
      }
    }
  }
  EXPECT_GE(steps, 190);
  EXPECT_GE(equal, kQuantizedShare * steps);
  RecordProperty("equal", equal);
  RecordProperty("steps", steps);
}

constexpr Oracle kSmolLM2 = {"SmolLM2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2_greedy.json"},
                 kQwen = {"Qwen", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen_greedy.json"},
                 kGemma = {"Gemma", "gemma-3-270m-q4_k_m.gguf", "gemma_greedy.json"};

INSTANTIATE_TEST_SUITE_P(Models, Float32OracleTest, ::testing::Values(kSmolLM2, kQwen),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, OracleTest, ::testing::Values(kSmolLM2, kQwen, kGemma),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace octet
