// The real vocabularies against llama.cpp's answers; see tests/data/oracles/README.md.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/text/gguf_tokenizer.h"
#include "core/text/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/model_files.h"

namespace octet {
namespace {

struct Oracle {
  const char* model;
  const char* stem;  // of the files under tests/data/oracles
};

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (unsigned char byte : bytes) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

nlohmann::json ReadOracle(const std::string& name) {
  std::ifstream file(std::string(OCTET_TEST_DATA) + "/oracles/" + name);
  return nlohmann::json::parse(file);
}

class TokenizerOracleTest : public ::testing::TestWithParam<Oracle> {
 protected:
  void SetUp() override {
    const std::string path = ModelFile(GetParam().model);
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no model file at " << path;
    auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    auto spec = TokenizerSpecFromGguf(**file);
    ASSERT_TRUE(spec.ok()) << spec.status();
    auto created = Tokenizer::Create(*std::move(spec));
    ASSERT_TRUE(created.ok()) << created.status();
    tokenizer_.emplace(*std::move(created));
  }

  std::vector<int32_t> Encode(const std::string& text, bool parse_special, bool add_special) const {
    auto ids = tokenizer_->Encode(text, {.parse_special = parse_special, .add_special = add_special});
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.value_or(std::vector<int32_t>{-1});
  }

  std::optional<Tokenizer> tokenizer_;
};

TEST_P(TokenizerOracleTest, EncodesAndDecodesEveryStringAsLlamaCppDoes) {
  const nlohmann::json oracle = ReadOracle(std::string(GetParam().stem) + "_tok.json");
  ASSERT_GT(oracle["items"].size(), 100);
  for (const nlohmann::json& item : oracle["items"]) {
    const std::string text = item["text"];
    const std::vector<int32_t> ids = item["ids"];
    EXPECT_EQ(Encode(text, true, false), ids) << item["text"];
    EXPECT_EQ(Encode(text, false, false), item["ids_noparse"].get<std::vector<int32_t>>()) << item["text"];
    EXPECT_EQ(Encode(text, true, true), item["ids_addspecial"].get<std::vector<int32_t>>()) << item["text"];
    auto bytes = tokenizer_->Decode(ids);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(Hex(*bytes), item["detok_hex"].get<std::string>()) << item["text"];
  }
  const nlohmann::json& meta = oracle["meta"];
  EXPECT_EQ(tokenizer_->vocab_size(), meta["n_vocab"].get<int32_t>());
  EXPECT_EQ(tokenizer_->bos_id(), meta["bos"].get<int32_t>());
  EXPECT_EQ(tokenizer_->eos_id(), meta["eos"].get<int32_t>());
  EXPECT_EQ(tokenizer_->add_bos(), meta["add_bos"].get<bool>());
  EXPECT_EQ(tokenizer_->add_eos(), meta["add_eos"].get<bool>());
  const auto ends = tokenizer_->end_of_generation_ids();
  EXPECT_EQ(std::vector<int32_t>(ends.begin(), ends.end()), meta["eog"].get<std::vector<int32_t>>());
}

TEST_P(TokenizerOracleTest, EncodesTheGreedyPrompts) {
  const nlohmann::json oracle = ReadOracle(std::string(GetParam().stem) + "_greedy.json");
  ASSERT_GT(oracle["items"].size(), 5);
  for (const nlohmann::json& item : oracle["items"]) {
    EXPECT_EQ(Encode(item["prompt"], true, true), item["prompt_ids"].get<std::vector<int32_t>>()) << item["name"];
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerOracleTest,
                         ::testing::Values(Oracle{"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"},
                                           Oracle{"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen"},
                                           Oracle{"gemma-3-270m-q4_k_m.gguf", "gemma"}),
                         [](const auto& test) { return test.param.stem; });

}  // namespace
}  // namespace octet
