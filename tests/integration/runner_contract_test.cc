// What a runner promises besides numbers: memory as planned, batches refused without a trace, steps without a heap
// allocation, and an error instead of garbage when a weight is not a number.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/model/generator.h"
#include "core/model/runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/count_allocations.h"
#include "tests/integration/random_model.h"
#include "tests/integration/tiny_engine.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RandomModelSpec Spec() {
  RandomModelSpec s;
  s.architecture = "qwen2";
  s.k_bias = 20;
  return s;
}

uint64_t HeldBytes() {
  auto memory = CpuDevice().memory();
  if (!memory.ok()) throw std::runtime_error(memory.status().ToString());
  return memory->held_bytes;
}

TEST(RunnerMemoryTest, TheDeviceHoldsWhatThePlanSaid) {
  const std::string file = RandomModel(Spec()).File();
  for (const bool exact : {true, false}) {
    const uint64_t empty = HeldBytes();
    {
      const TinyEngine engine(file, {.exact = exact, .max_step_tokens = 96});
      ASSERT_TRUE(engine.status().ok()) << engine.status();
      EXPECT_EQ(HeldBytes() - empty, engine.model().weight_bytes() + engine.model().constant_bytes());
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
        for (const int32_t page_tokens : {1, 64}) {
          const uint64_t before = HeldBytes();
          auto runner = Runner::Prepare(engine.model(), engine.Options(dtype, page_tokens));
          ASSERT_TRUE(runner.ok()) << runner.status();
          const MemoryPlan plan = (*runner)->plan();
          EXPECT_EQ(HeldBytes(), before) << "a plan takes nothing";
          EXPECT_EQ(plan.kv.offset_bytes > 0, dtype == DType::kI8);
          EXPECT_EQ(plan.kv.pages.total(), plan.kv.layout.layer_bytes * 2);
          ASSERT_TRUE((*runner)->Allocate().ok());
          EXPECT_EQ((*runner)->cache().allocated_bytes(), plan.kv.total());
          EXPECT_EQ(HeldBytes() - before, plan.own_bytes()) << DTypeName(dtype) << ", pages of " << page_tokens;
          EXPECT_EQ(HeldBytes() - empty, plan.total());
        }
      }
    }
    EXPECT_EQ(HeldBytes(), empty) << "everything is given back";
  }
}

TEST(RunnerMemoryTest, TheWeightsTypeDoesNotChangeTheCache) {
  for (const DType weights : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    RandomModelSpec spec = Spec();
    for (const char* name :
         {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "token_embd"}) {
      spec.types[name] = weights;
    }
    const TinyEngine engine(RandomModel(spec).File());
    ASSERT_TRUE(engine.status().ok()) << engine.status();
    for (const DType dtype : {DType::kBF16, DType::kI8}) {
      const auto runner = Runner::Prepare(engine.model(), engine.Options(dtype));
      ASSERT_TRUE(runner.ok()) << runner.status();
      const KvPlan& kv = (*runner)->plan().kv;
      EXPECT_EQ(kv.layout.k.data_type, dtype) << DTypeName(weights);
      EXPECT_EQ(kv.layout.v.data_type, dtype) << DTypeName(weights);
      EXPECT_EQ(kv.offset_bytes > 0, dtype == DType::kI8) << DTypeName(weights);
    }
  }
}

TEST(RunnerOptionsTest, OptionsThatDoNotFitTheModelAreRefused) {
  const TinyEngine engine(RandomModel(Spec()).File());
  ASSERT_TRUE(engine.status().ok()) << engine.status();
  const auto refused = [&](auto change) {
    RunnerOptions options = engine.Options(DType::kI8);
    change(options);
    return Runner::Prepare(engine.model(), options).status();
  };
  EXPECT_EQ(refused([](RunnerOptions&) {}), absl::OkStatus());
  EXPECT_EQ(refused([](RunnerOptions& o) { o.max_model_len = 257; }).message(),
            "the model's context is 256 tokens, and 257 were asked for");
  for (const absl::Status& status :
       {refused([](RunnerOptions& o) { o.max_model_len = 0; }), refused([](RunnerOptions& o) { o.max_num_seqs = 0; }),
        refused([](RunnerOptions& o) { o.kv.page_tokens = 0; }),
        refused([](RunnerOptions& o) { o.max_logit_rows = 4; }),
        refused([](RunnerOptions& o) { o.max_logit_rows = 161; }),
        refused([](RunnerOptions& o) { o.max_num_seqs = 1 << 30; })}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(RunnerStepTest, ABadBatchIsRefusedAndChangesNothing) {
  const TinyEngine engine(RandomModel(Spec()).File());
  ASSERT_TRUE(engine.status().ok()) << engine.status();
  RunnerOptions options = engine.Options(DType::kI8);
  options.max_model_len = 128;
  options.max_logit_rows = 40;
  const auto runner = engine.MakeRunner(options);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 64; ++i) tokens.push_back(i * 7 % 67);
  const std::vector<float> expected = Sequence(*runner, tokens).Feed(32);

  Sequence sequence(*runner, tokens);
  const SequenceInput first = sequence.Next(32, true);
  auto logits = runner->Step({&first, 1});
  ASSERT_TRUE(logits.ok());
  std::vector<float> got(logits->begin(), logits->end());
  const SequenceInput good = sequence.Next(32, true);

  const auto refused = [&](const std::vector<SequenceInput>& batch) {
    const auto step = runner->Step(batch);
    EXPECT_EQ(step.status().code(), absl::StatusCode::kInvalidArgument) << step.status();
    return std::string(step.status().message());
  };
  SequenceInput bad = good;
  refused({});
  bad.tokens = {};
  refused({bad});
  const std::vector<int32_t> outside = {3, 67}, negative = {-1}, many(97, 1), few(1, 1);
  bad = good;
  bad.tokens = outside;
  EXPECT_EQ(refused({good, bad}), "token id 67 is outside the model's vocabulary of 67");
  bad.tokens = negative;
  EXPECT_THAT(refused({bad}), HasSubstr("token id -1"));
  bad.tokens = many;
  EXPECT_THAT(refused({bad}), AllOf(HasSubstr("129 tokens"), HasSubstr("128")));
  bad = good;
  bad.cached = -1;
  refused({bad});
  bad.cached = std::numeric_limits<int64_t>::max();
  refused({bad});
  bad.cached = 33;  // its pages end at 64
  EXPECT_THAT(refused({bad}), HasSubstr("pages do not cover"));
  bad = good;
  bad.pages = nullptr;
  refused({bad});
  bad = good;
  bad.tokens = few;
  bad.all_logits = false;
  EXPECT_THAT(refused({bad, bad, bad, bad, bad, bad}), HasSubstr("6 sequences"));
  EXPECT_THAT(refused({good, good}), HasSubstr("64 rows of logits"));
  bad = good;
  bad.all_logits = false;
  bad.cached = 0;
  PageTable wide(&runner->cache().pool());
  ASSERT_TRUE(wide.Reserve(96).ok());
  const std::vector<int32_t> long_tokens(96, 1);
  bad.pages = &wide;
  bad.tokens = long_tokens;
  EXPECT_THAT(refused({bad, bad}), HasSubstr("192 tokens"));

  logits = runner->Step({&good, 1});
  ASSERT_TRUE(logits.ok()) << logits.status();
  got.insert(got.end(), logits->begin(), logits->end());
  EXPECT_EQ(got, expected);
}

// oneDNN, where prompts go through it, keeps its books on the heap in every call. Before the first test opens the
// device, which all of them share.
const bool g_own_prompts = setenv("OCTET_CPU_PROMPTS", "own", 1) == 0;

TEST(RunnerStepTest, AStepAllocatesNothing) {
  if (!CountsAllocations()) GTEST_SKIP() << "clang's thread sanitizer keeps its own operator new";
  ASSERT_TRUE(g_own_prompts);
  const std::string file = RandomModel(Spec()).File();
  for (const bool exact : {true, false}) {
    const TinyEngine engine(file, {.exact = exact, .max_step_tokens = 96});
    ASSERT_TRUE(engine.status().ok()) << engine.status();
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      const auto runner = engine.MakeRunner(dtype);
      std::vector<int32_t> tokens(200, 5);
      Sequence a(*runner, tokens), b(*runner, tokens), warm_up(*runner, tokens);
      const auto step = [&](const std::vector<SequenceInput>& batch) {
        const int64_t before = AllocationsOfThisThread();
        const bool ok = runner->Step(batch).ok();
        const int64_t made = AllocationsOfThisThread() - before;
        EXPECT_TRUE(ok);
        return made;
      };
      step({warm_up.Next(5, false)});
      // Larger steps than the one before, too: room for the largest is made ahead.
      EXPECT_EQ(step({a.Next(1, false)}), 0) << DTypeName(dtype) << ", exact " << exact;
      EXPECT_EQ(step({a.Next(90, true)}), 0) << DTypeName(dtype) << ", exact " << exact;
      EXPECT_EQ(step({a.Next(1, false), b.Next(40, false), warm_up.Next(55, true)}), 0)
          << DTypeName(dtype) << ", exact " << exact;
    }
  }
}

Tokenizer TinyTokenizer(int vocab) {
  TokenizerSpec spec;
  for (int i = 0; i < vocab; ++i) spec.tokens.push_back(std::string(1, static_cast<char>('!' + i)));
  auto tokenizer = Tokenizer::Create(std::move(spec));
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().ToString());
  return *std::move(tokenizer);
}

// Overwrites one value of an f32 tensor.
auto Planted(const std::string& tensor, size_t index, float value) {
  return [=](const std::string& name, std::string& bytes) {
    if (name == tensor) bytes.replace(index * sizeof(float), sizeof(float), reinterpret_cast<const char*>(&value), 4);
  };
}

TEST(BadWeightsTest, VectorsAndKRowsThatAreNotNumbersAreRefusedAtLoad) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const std::string tensor :
       {"output_norm.weight", "blk.1.ffn_norm.weight", "blk.0.attn_k.bias", "blk.1.attn_k.weight"}) {
    for (const float value : {nan, infinity}) {
      const TinyEngine engine(RandomModel(Spec()).File(Planted(tensor, 3, value)));
      EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(engine.status().message()),
                  AllOf(HasSubstr("'" + tensor + "'"), HasSubstr("not finite")));
    }
  }
}

TEST(BadWeightsTest, AMatrixThatIsNotNumbersEndsTheRequestInASentence) {
  const RandomModel random(Spec());
  const Tokenizer tokenizer = TinyTokenizer(random.spec().vocab);
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
  for (const std::string tensor : {"blk.0.attn_v.weight", "blk.1.attn_q.weight", "blk.0.ffn_down.weight"}) {
    const std::string file = random.File(Planted(tensor, 130, std::numeric_limits<float>::quiet_NaN()));
    for (const bool exact : {true, false}) {
      for (const DType dtype : {DType::kF32, DType::kI8}) {
        const TinyEngine engine(file, {.exact = exact, .max_step_tokens = 96});
        ASSERT_TRUE(engine.status().ok()) << engine.status();
        const auto runner = engine.MakeRunner(dtype);
        for (const double temperature : {0.0, 0.8}) {
          GenerateOptions options;
          options.sampling.temperature = temperature;
          std::string text;
          const auto result = Generate(*runner, tokenizer, prompt, options, [&](std::string_view t) { text += t; });
          EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss)
              << tensor << " " << DTypeName(dtype) << ", exact " << exact;
          EXPECT_THAT(std::string(result.status().message()), HasSubstr("no longer numbers"));
          EXPECT_EQ(text, "");
        }
      }
    }
  }
}

TEST(GenerateTest, StopsAtItsLimitsAndGivesItsPagesBack) {
  const RandomModel random(Spec());
  const Tokenizer tokenizer = TinyTokenizer(random.spec().vocab);
  const TinyEngine engine(random.File());
  const auto runner = engine.MakeRunner(DType::kI8);
  const int32_t free_pages = runner->cache().pool().free_pages();
  const std::vector<int32_t> prompt = {1, 2, 3};
  GenerateOptions options;
  options.max_new_tokens = 6;
  std::string streamed;
  auto result = Generate(*runner, tokenizer, prompt, options, [&](std::string_view t) { streamed += t; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->ids.size(), 6u);
  EXPECT_EQ(result->finish_reason, "length");
  EXPECT_EQ(result->text, streamed);
  EXPECT_EQ(runner->cache().pool().free_pages(), free_pages);

  // The same ids as greedy choices from the logits of the whole.
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), result->ids.begin(), result->ids.end() - 1);
  const std::vector<float> logits = Sequence(*runner, tokens).Feed(tokens.size());
  for (size_t i = 0; i < result->ids.size(); ++i) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>((prompt.size() - 1 + i) * 67);
    EXPECT_EQ(std::max_element(row, row + 67) - row, result->ids[i]);
  }

  // As many as there is room for, whatever number was asked for.
  options.max_new_tokens = std::numeric_limits<int64_t>::max();
  result = Generate(*runner, tokenizer, prompt, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->ids.size() + prompt.size(), 256u);

  options.stop_token_ids = {result->ids[4]};
  size_t first = 0;
  while (result->ids[first] != result->ids[4]) ++first;
  const auto stopped = Generate(*runner, tokenizer, prompt, options);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->ids.size(), first + 1);
  EXPECT_EQ(stopped->finish_reason, "stop");

  EXPECT_EQ(Generate(*runner, tokenizer, {}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<int32_t> too_long(257, 1);
  EXPECT_EQ(Generate(*runner, tokenizer, too_long, {}).status().message(),
            "the prompt has 257 tokens and there is room for 256");
}

TEST(GenerateTest, AConversationComputesOnlyWhatTheCacheLacksAndAnswersTheSame) {
  const RandomModel random(Spec());
  const Tokenizer tokenizer = TinyTokenizer(random.spec().vocab);
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    const TinyEngine engine(random.File());
    const auto runner = engine.MakeRunner(dtype);
    const int32_t free_pages = runner->cache().pool().free_pages();
    {
      CachedSequence sequence(*runner);
      GenerateOptions options;
      options.max_new_tokens = 20;
      const auto ask = [&](const std::vector<int32_t>& prompt, int64_t reused) {
        const auto answer = Generate(sequence, tokenizer, prompt, options);
        const auto fresh = Generate(*runner, tokenizer, prompt, options);
        EXPECT_TRUE(answer.ok() && fresh.ok()) << answer.status() << fresh.status();
        if (!answer.ok() || !fresh.ok()) return std::vector<int32_t>();
        EXPECT_EQ(answer->ids, fresh->ids) << DTypeName(dtype);
        EXPECT_EQ(answer->reused_tokens, reused);
        EXPECT_EQ(fresh->reused_tokens, 0);
        EXPECT_EQ(sequence.tokens().size(), prompt.size() + answer->ids.size() - 1);
        return answer->ids;
      };
      std::vector<int32_t> prompt(40);
      for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7 % 67);
      const std::vector<int32_t> answer = ask(prompt, 0);
      std::vector<int32_t> next = prompt;
      next.insert(next.end(), answer.begin(), answer.end());
      next.insert(next.end(), {5, 6, 7});
      ask(next, 59);  // all of the first turn but the answer's last token, which was never fed
      ask(next, static_cast<int64_t>(next.size()) - 1);
      next[45] = (next[45] + 1) % 67;  // the middle of a page
      ask(next, 45);
      ask({next.begin(), next.begin() + 32}, 31);
      ask({66, 1, 2}, 0);
      EXPECT_EQ(sequence.pages().pages().size(), 2u);  // 23 tokens in pages of 16
    }
    EXPECT_EQ(runner->cache().pool().free_pages(), free_pages);
  }
}

TEST(GenerateTest, ACancelledAnswerKeepsWhatWasComputed) {
  const RandomModel random(Spec());
  const Tokenizer tokenizer = TinyTokenizer(random.spec().vocab);
  const TinyEngine engine(random.File());
  const auto runner = engine.MakeRunner(DType::kI8);
  CachedSequence sequence(*runner);
  std::atomic<bool> cancel = false;
  GenerateOptions options;
  options.cancel = &cancel;
  const std::vector<int32_t> prompt(200, 3);  // two steps
  const auto whole = Generate(sequence, tokenizer, prompt, options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->finish_reason, "length");
  ASSERT_GT(whole->ids.size(), 5u);

  sequence.Truncate(0);
  int pieces = 0;
  const auto some = Generate(sequence, tokenizer, prompt, options, [&](std::string_view) { cancel = ++pieces == 4; });
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->finish_reason, "cancelled");
  EXPECT_EQ(some->ids.size(), 4u);
  EXPECT_EQ(sequence.tokens().size(), 203u);
  EXPECT_EQ(some->text, whole->text.substr(0, some->text.size()));

  // Inside the prompt: nothing is said, and its first step is kept.
  sequence.Truncate(0);
  cancel = false;
  const auto none = Generate(sequence, tokenizer, prompt, options, {}, [&](double) { cancel = true; });
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->finish_reason, "cancelled");
  EXPECT_TRUE(none->ids.empty());
  EXPECT_EQ(sequence.tokens().size(), 160u);
  cancel = false;
  const auto again = Generate(sequence, tokenizer, prompt, options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->reused_tokens, 160);
  EXPECT_EQ(again->ids, whole->ids);
}

TEST(SamplerMemoryTest, ADrawAllocatesNothingAfterTheFirst) {
  auto sampler = Sampler::Create({.temperature = 0.8,
                                  .top_k = 40,
                                  .top_p = 0.9,
                                  .min_p = 0.01,
                                  .repetition_penalty = 1.1,
                                  .presence_penalty = 0.5,
                                  .frequency_penalty = 0.5,
                                  .logit_bias = {{3, -100}, {7, 2}}});
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 101) * 0.1f;
  std::vector<int32_t> history(300);
  for (size_t i = 0; i < history.size(); ++i) history[i] = static_cast<int32_t>(i * 31 % 5000);
  EXPECT_TRUE(sampler->Sample(logits, history, history).ok());
  if (!CountsAllocations()) GTEST_SKIP() << "clang's thread sanitizer keeps its own operator new";
  const int64_t before = AllocationsOfThisThread();
  bool ok = true;
  for (int i = 0; i < 20; ++i) ok = ok && sampler->Sample(logits, history, history).ok();
  EXPECT_EQ(AllocationsOfThisThread() - before, 0);
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace octet
