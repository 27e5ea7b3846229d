// The runner's logits on the CPU backend against a forward pass in double precision, and against themselves: however a
// prompt is cut, batched or paged, the numbers must be the same.
#include "core/model/runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/model/weight_rules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/random_model.h"
#include "tests/integration/tiny_engine.h"
#include "tests/reference/random.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Groups of three query heads, interleaved RoPE, tied head, blocks of 32.
RandomModelSpec LlamaSpec() {
  RandomModelSpec s;
  s.name = "llama";
  s.hidden = 192;
  s.head_dim = s.v_head_dim = 32;
  s.ffn = 160;
  s.layers = 3;
  s.types = {{"token_embd", DType::kQ8_0}, {"attn_q", DType::kQ4_1},     {"attn_k", DType::kQ4_1},
             {"attn_v", DType::kQ5_0},     {"attn_output", DType::kF16}, {"ffn_gate", DType::kQ4_0},
             {"ffn_up", DType::kQ5_1},     {"ffn_down", DType::kQ8_0}};
  return s;
}

// A K bias that turns the offset table on in layer 0, head of its own, super-blocks of 256.
RandomModelSpec QwenSpec() {
  RandomModelSpec s;
  s.name = "qwen2";
  s.architecture = "qwen2";
  s.hidden = 256;
  s.q_heads = 4;
  s.head_dim = s.v_head_dim = 64;
  s.ffn = 256;
  s.tied_head = false;
  s.k_bias = 20;
  s.types = {{"token_embd", DType::kQ6_K}, {"output", DType::kQ8_0}, {"attn_q", DType::kQ4_K},
             {"attn_k", DType::kQ5_K},     {"attn_v", DType::kBF16}, {"attn_output", DType::kQ4_K},
             {"ffn_gate", DType::kQ6_K},   {"ffn_up", DType::kQ4_K}, {"ffn_down", DType::kF32}};
  s.seed = 2;
  return s;
}

// Everything that metadata can ask of a llama model at once, f32 weights, odd sizes.
RandomModelSpec OddSpec() {
  RandomModelSpec s;
  s.name = "odd";
  s.hidden = 40;
  s.q_heads = 4;
  s.kv_heads = 4;
  s.ffn = 56;
  s.vocab = 33;
  s.window = 20;
  s.rotary_dims = 12;
  s.rope_factor = 2;
  s.attention_softcap = 3;
  s.logit_softcap = 5;
  s.embedding_scale = 1.7f;
  s.seed = 3;
  return s;
}

// K rows whose outlying pair is evened out at load: exact algebra, so the logits stay.
RandomModelSpec OutlierSpec() {
  RandomModelSpec s;
  s.name = "outlier";
  s.k_outlier = 40;
  s.types = {{"attn_v", DType::kF16}};
  s.seed = 4;
  return s;
}

// Two layers with a window and a base of their own, then one that sees everything; linear scaling on that one only.
RandomModelSpec GemmaSpec() {
  RandomModelSpec s;
  s.name = "gemma3";
  s.architecture = "gemma3";
  s.layers = 4;
  s.q_heads = 4;
  s.kv_heads = 1;
  s.head_dim = s.v_head_dim = 256;
  s.window = 24;
  s.window_period = 3;
  s.rope_base = 1e6f;
  s.rope_factor = 8;
  s.types = {{"token_embd", DType::kQ8_0}, {"attn_k", DType::kQ5_0}, {"ffn_up", DType::kQ5_0}};
  s.seed = 5;
  return s;
}

RandomModelSpec Qwen3Spec() {
  RandomModelSpec s;
  s.name = "qwen3";
  s.architecture = "qwen3";
  s.q_heads = 6;
  s.head_dim = s.v_head_dim = 32;  // three times hidden / heads
  s.tied_head = false;
  s.rope_base = 1e6f;
  s.seed = 6;
  return s;
}

// A gain of the K norm that stands out, and is evened out at load.
RandomModelSpec Qwen3OutlierSpec() {
  RandomModelSpec s = Qwen3Spec();
  s.name = "qwen3_outlier";
  s.k_outlier = 40;
  return s;
}

// A window on every layer, a scale of the file's own and factors of the frequencies.
RandomModelSpec MistralSpec() {
  RandomModelSpec s;
  s.name = "mistral";
  s.hidden = 128;
  s.q_heads = 8;
  s.window = 33;
  s.rope_base = 1e5f;
  s.rope_factors = true;
  s.attention_scale = 0.4f;
  s.seed = 7;
  return s;
}

// YaRN's mixed frequencies and its growth of the rotated channels, in the scores and in the K offsets.
RandomModelSpec YarnSpec() {
  RandomModelSpec s;
  s.name = "yarn";
  s.architecture = "qwen2";
  s.q_heads = 4;
  s.head_dim = s.v_head_dim = 64;
  s.rotary_dims = 48;
  s.k_bias = 20;
  s.rope_factor = 4;
  s.yarn_context = 64;
  s.seed = 8;
  return s;
}

std::vector<int32_t> RandomTokens(const RandomModelSpec& spec, int n, uint64_t seed) {
  reference::Random random(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(random.Int(0, spec.vocab - 1));
  return tokens;
}

// ||a - b|| / ||b||
template <typename A, typename B>
double RelativeError(const std::vector<A>& a, const std::vector<B>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / size);
}

std::vector<float> RowsOf(const std::vector<float>& logits, int vocab, size_t first, size_t count) {
  const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(first * static_cast<size_t>(vocab));
  return {begin, begin + static_cast<std::ptrdiff_t>(count * static_cast<size_t>(vocab))};
}

class RunnerTest : public ::testing::TestWithParam<RandomModelSpec> {
 protected:
  RunnerTest() : random_(GetParam()), engine_(random_.File()) {}
  void SetUp() override { ASSERT_TRUE(engine_.status().ok()) << engine_.status(); }
  int vocab() const { return GetParam().vocab; }

  const RandomModel random_;
  const TinyEngine engine_;
};

constexpr int kPrompt = 100;

TEST_P(RunnerTest, LogitsEqualADoublePrecisionForwardPass) {
  const std::vector<int32_t> tokens = RandomTokens(GetParam(), kPrompt, 11);
  const std::vector<double> expected = random_.Forward(tokens);
  const auto runner = engine_.MakeRunner(DType::kF32);
  const std::vector<float> logits = Sequence(*runner, tokens).Feed(tokens.size());
  EXPECT_LT(RelativeError(logits, expected), 1e-5);
  double largest = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(expected[i] - static_cast<double>(logits[i])));
  }
  EXPECT_LT(error, 1e-4 * largest);
}

// What rounding the cache costs is known from the reference; the runner may not cost more.
TEST_P(RunnerTest, RoundedCachesCostWhatTheirRoundingCosts) {
  const std::vector<int32_t> tokens = RandomTokens(GetParam(), kPrompt, 12);
  const std::vector<double> exact = random_.Forward(tokens);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kI8}) {
    const auto runner = engine_.MakeRunner(dtype);
    const KvLayout& layout = runner->cache().layout();
    const std::vector<double> rounded =
        random_.Forward(tokens, dtype == DType::kI8 ? random_.RoundToInt8(layout.k, layout.v) : random_.RoundTo(dtype));
    const std::vector<float> logits = Sequence(*runner, tokens).Feed(tokens.size());
    const double cost = RelativeError(rounded, exact);
    EXPECT_GT(cost, 1e-5) << DTypeName(dtype);
    EXPECT_LT(cost, 0.1) << DTypeName(dtype);
    if (GetParam().k_outlier != 1 && !GetParam().has_qk_norm()) {
      // The outlying pair is evened out at load, which the reference knows nothing of and which only helps.
      EXPECT_LT(RelativeError(logits, exact), (dtype == DType::kI8 ? 0.7 : 1.5) * cost) << DTypeName(dtype);
      continue;
    }
    EXPECT_LT(RelativeError(logits, exact), 1.1 * cost) << DTypeName(dtype);
    // The same roundings, but where f32 and double fall on two sides of a tie.
    EXPECT_LT(RelativeError(logits, rounded), 0.3 * cost) << DTypeName(dtype);
  }
}

TEST_P(RunnerTest, APromptInPiecesGivesTheLogitsOfTheWhole) {
  const std::vector<int32_t> tokens = RandomTokens(GetParam(), 72, 13);
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    const auto runner = engine_.MakeRunner(dtype);
    const std::vector<float> whole = Sequence(*runner, tokens).Feed(tokens.size());
    for (const size_t piece : {1u, 7u, 64u}) {
      EXPECT_EQ(Sequence(*runner, tokens).Feed(piece), whole) << DTypeName(dtype) << ", pieces of " << piece;
    }
  }
}

TEST_P(RunnerTest, PageSizeDoesNotChangeLogits) {
  const std::vector<int32_t> tokens = RandomTokens(GetParam(), kPrompt, 14);
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    const auto runner = engine_.MakeRunner(dtype, 64);
    const std::vector<float> expected = Sequence(*runner, tokens).Feed(48);
    for (const int32_t page_tokens : {1, 16}) {
      const auto other = engine_.MakeRunner(dtype, page_tokens);
      EXPECT_EQ(Sequence(*other, tokens).Feed(48), expected) << DTypeName(dtype) << ", pages of " << page_tokens;
    }
  }
}

TEST_P(RunnerTest, ARaggedBatchGivesEachSequenceItsOwnLogits) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    const auto runner = engine_.MakeRunner(dtype);
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<float>> alone;
    for (const int n : {90, 33, 64, 17, 1}) {
      tokens.push_back(RandomTokens(GetParam(), n, 20 + static_cast<uint64_t>(n)));
      alone.push_back(Sequence(*runner, tokens.back()).Feed(static_cast<size_t>(n)));
    }
    // Pages of the sequences interleave: each takes its own as it grows, in steps of other sizes.
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (const auto& t : tokens) sequences.push_back(std::make_unique<Sequence>(*runner, t));
    const std::vector<std::vector<size_t>> steps = {
        {40, 1, 63, 0, 0}, {1, 31, 1, 16, 0}, {48, 0, 0, 1, 1}, {1, 1, 0, 0, 0}};
    for (size_t s = 0; s < steps.size(); ++s) {
      std::vector<SequenceInput> batch;
      struct Row {
        size_t sequence, first, count;
      };
      std::vector<Row> rows;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const size_t n = steps[s][i];
        if (n == 0) continue;
        const bool all = (s + i) % 2 == 0;
        const size_t before = sequences[i]->done();
        batch.push_back(sequences[i]->Next(n, all));
        rows.push_back(all ? Row{i, before, n} : Row{i, before + n - 1, 1});
      }
      auto logits = runner->Step(batch);
      ASSERT_TRUE(logits.ok()) << logits.status();
      const float* at = logits->data();
      for (const Row& row : rows) {
        const std::vector<float> expected = RowsOf(alone[row.sequence], vocab(), row.first, row.count);
        const std::vector<float> got(at, at + expected.size());
        at += expected.size();
        EXPECT_EQ(got, expected) << DTypeName(dtype) << ", step " << s << ", sequence " << row.sequence;
      }
      EXPECT_EQ(at, logits->data() + logits->size());
    }
    for (const auto& sequence : sequences) EXPECT_EQ(sequence->left(), 0u);
  }
}

TEST_P(RunnerTest, AllLogitsAreTheLastRowsOfEveryPrefix) {
  const std::vector<int32_t> tokens = RandomTokens(GetParam(), 24, 15);
  const auto runner = engine_.MakeRunner(DType::kI8);
  const std::vector<float> all = Sequence(*runner, tokens).Feed(tokens.size());
  for (size_t n = 1; n <= tokens.size(); ++n) {
    Sequence prefix(*runner, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)});
    const SequenceInput input = prefix.Next(n, false);
    auto logits = runner->Step({&input, 1});
    ASSERT_TRUE(logits.ok()) << logits.status();
    EXPECT_EQ(std::vector<float>(logits->begin(), logits->end()), RowsOf(all, vocab(), n - 1, 1)) << n;
  }
}

// Fast mode may round activations to 8 bits: a relative error of 1/254 per rounding, four roundings per layer.
TEST_P(RunnerTest, FastComputeStaysNear) {
  const std::vector<int32_t> tokens = RandomTokens(GetParam(), kPrompt, 16);
  const TinyEngine fast(random_.File(), {.exact = false, .max_step_tokens = 160});
  ASSERT_TRUE(fast.status().ok()) << fast.status();
  const auto runner = fast.MakeRunner(DType::kF32);
  const std::vector<float> logits = Sequence(*runner, tokens).Feed(tokens.size());
  EXPECT_LT(RelativeError(logits, random_.Forward(tokens)), 0.05);
}

// The CPU device with another table of fused operations.
std::unique_ptr<Device> CpuDeviceWith(const octet_fused_ops* fused) {
  static auto* const tables = new std::deque<octet_backend_v1>;  // until the process ends, as the contract asks
  octet_backend_v1& table = tables->emplace_back(*CpuDevice().table());
  table.fused = fused;
  auto device = Device::Open(&table, 0, "cpu:0", "");
  if (!device.ok()) throw std::runtime_error(device.status().ToString());
  return *std::move(device);
}

int fused_calls = 0;

octet_code CountedQkvAppend(octet_stream* stream, const octet_kv_layout* layout, const octet_kv_layer* layer,
                            const octet_qkv_append_args* args, octet_error* error) {
  ++fused_calls;
  return CpuDevice().table()->fused->qkv_append(stream, layout, layer, args, error);
}
octet_code RefusingSupports(octet_device*, int32_t, const octet_attention_desc*, octet_support* out, octet_error*) {
  std::strcpy(out->reason, "not today");
  return OCTET_OK;
}

// Fused or not is a matter of speed, and of the device.
TEST_P(RunnerTest, TheFusedAppendGivesTheBytesOfItsParts) {
  static octet_fused_ops counted = *CpuDevice().table()->fused, refusing = counted;
  counted.qkv_append = CountedQkvAppend;
  refusing.qkv_append = CountedQkvAppend;
  refusing.supports = RefusingSupports;
  const auto fused = CpuDeviceWith(&counted), declined = CpuDeviceWith(&refusing), absent = CpuDeviceWith(nullptr);
  const std::vector<int32_t> tokens = RandomTokens(GetParam(), 50, 18);
  for (const bool exact : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      std::vector<std::vector<float>> logits;
      for (Device* device : {absent.get(), declined.get(), fused.get()}) {
        fused_calls = 0;
        const TinyEngine engine(random_.File(), {.exact = exact, .max_step_tokens = 160}, *device);
        ASSERT_TRUE(engine.status().ok()) << engine.status();
        const auto runner = engine.MakeRunner(dtype);
        logits.push_back(Sequence(*runner, tokens).Feed(48));  // and one of two tokens
        EXPECT_EQ(fused_calls, device == fused.get() ? 2 * GetParam().layers : 0);
      }
      EXPECT_TRUE(logits[0] == logits[1]) << DTypeName(dtype);
      EXPECT_TRUE(logits[0] == logits[2]) << DTypeName(dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RunnerTest,
                         ::testing::Values(LlamaSpec(), QwenSpec(), OddSpec(), OutlierSpec(), GemmaSpec(), Qwen3Spec(),
                                           Qwen3OutlierSpec(), MistralSpec(), YarnSpec()),
                         [](const auto& test) { return test.param.name; });

TEST(WeightRulesTest, OffsetsAndBalancingAreOnWhereTheWeightsAskForThem) {
  const TinyEngine llama(RandomModel(LlamaSpec()).File());
  EXPECT_THAT(llama.model().k_offset_layers(), IsEmpty());
  EXPECT_THAT(llama.model().balanced_layers(), IsEmpty());
  const TinyEngine qwen(RandomModel(QwenSpec()).File());
  EXPECT_THAT(qwen.model().k_offset_layers(), ElementsAre(0));
  const TinyEngine outlier(RandomModel(OutlierSpec()).File());
  EXPECT_THAT(outlier.model().balanced_layers(), ElementsAre(0));
  const TinyEngine qwen3(RandomModel(Qwen3Spec()).File());
  EXPECT_THAT(qwen3.model().balanced_layers(), ElementsAre(0, 1));
  const TinyEngine yarn(RandomModel(YarnSpec()).File());
  EXPECT_THAT(yarn.model().k_offset_layers(), ElementsAre(0));
}

TEST(WeightRulesTest, GainsAreBalancedPerRopePair) {
  const RopePairs rope{.head_dim = 8, .pairs = 3, .interleaved = false};
  // Pairs (0, 3), (1, 4), (2, 5), and channels 6 and 7 on their own.
  const std::vector<float> k = {3, 0, 1, 4, 0, 0, -2, 18};
  const std::vector<float> q = {0, 1, 1, 5, 1, 0, 2, 2};
  // Roots of K over Q: 1, 0, 1, 1, 3; their median is 1.
  const std::vector<float> f = BalanceGains(k, q, rope);
  EXPECT_THAT(f, ElementsAre(1, 0.125f, 1, 1, 0.125f, 1, 1, 3));
  // Where Q never looks, K may be as small as the range allows.
  const std::vector<float> unseen =
      BalanceGains(std::vector<float>(8, 1), std::vector<float>{1, 1, 0, 1, 1, 0, 1, 1}, rope);
  EXPECT_THAT(unseen, ElementsAre(1, 1, 8, 1, 1, 8, 1, 1));
  EXPECT_THAT(BalanceGains(std::vector<float>(8, 0), std::vector<float>(8, 0), rope), ::testing::Each(1.0f));
  EXPECT_THAT(BalanceGains(std::vector<float>(8, 1), std::vector<float>(8, 0), rope), ::testing::Each(1.0f));
}

// On a large K bias the default must be far better than INT8 without offsets, or the table is not used.
TEST(Int8RecipeTest, KOffsetsRemoveMostOfTheErrorOfALargeBias) {
  RandomModelSpec spec = QwenSpec();
  spec.k_bias = 400;
  const RandomModel random(spec);
  const TinyEngine engine(random.File());
  const std::vector<int32_t> tokens = RandomTokens(spec, 150, 17);
  const std::vector<double> exact = random.Forward(tokens);
  std::vector<double> error;
  for (const Int8Recipe recipe : {Int8Recipe::kDefault, Int8Recipe::kRotation, Int8Recipe::kPlain}) {
    RunnerOptions options = engine.Options(DType::kI8);
    options.kv.recipe = recipe;
    const auto runner = engine.MakeRunner(options);
    error.push_back(RelativeError(Sequence(*runner, tokens).Feed(tokens.size()), exact));
  }
  EXPECT_LT(error[0], 0.15 * error[1]);
  EXPECT_LT(error[0], 0.05 * error[2]);
}

}  // namespace
}  // namespace octet
