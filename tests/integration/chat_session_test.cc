// A conversation: what is asked, what is kept, what the cache saves, and what is taken back.
#include "core/cli/chat_session.h"

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/text/gguf_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/tiny_chat_model.h"
#include "tests/integration/tiny_engine.h"

namespace octet {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class ChatSessionTest : public testing::Test {
 protected:
  static constexpr int64_t kRoom = 300;

  ChatSessionTest() : engine_(TinyChatModelFile()), tokenizer_(MakeTokenizer(TinyChatModelFile())) {
    RunnerOptions options = engine_.Options(DType::kI8);
    options.max_model_len = kRoom;
    options.max_num_seqs = 1;
    runner_ = engine_.MakeRunner(options);
    generate_.max_new_tokens = 8;
  }

  static Tokenizer MakeTokenizer(const std::string& bytes) {
    const TempFile temp(bytes);
    auto file = GgufFile::Open(temp.path());
    if (!file.ok()) throw std::runtime_error(file.status().ToString());
    auto spec = TokenizerSpecFromGguf(**file);
    if (!spec.ok()) throw std::runtime_error(spec.status().ToString());
    auto tokenizer = Tokenizer::Create(*std::move(spec));
    if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().ToString());
    return *std::move(tokenizer);
  }

  ChatFormat Format(const std::string& tools_path = "") {
    auto format = ChatFormat::Create(tokenizer_, tools_path);
    if (!format.ok()) throw std::runtime_error(format.status().ToString());
    return *std::move(format);
  }

  absl::Status ToolsError(const std::string& json) {
    const TempFile file(json);
    const auto format = ChatFormat::Create(tokenizer_, file.path());
    EXPECT_THAT(std::string(format.status().message()), HasSubstr(file.path()));
    return format.status();
  }

  TinyEngine engine_;
  Tokenizer tokenizer_;
  std::unique_ptr<Runner> runner_;
  GenerateOptions generate_;
};

TEST_F(ChatSessionTest, EveryTurnSeesTheWholeConversationAndComputesOnlyWhatIsNew) {
  const ChatFormat format = Format();
  ChatSession session(format, tokenizer_, *runner_, "Be brief.");
  const auto first = session.Ask("user", "Hello", generate_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->reused_tokens, 0);
  EXPECT_FALSE(first->text.empty());
  const int64_t tokens = session.tokens();
  const auto second = session.Ask("user", "And now?", generate_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_GE(second->reused_tokens, tokens - 2);  // all but the last token, which was not fed, and perhaps an end token
  EXPECT_EQ(session.messages(), Json({{{"role", "system"}, {"content", "Be brief."}},
                                      {{"role", "user"}, {"content", "Hello"}},
                                      {{"role", "assistant"}, {"content", first->text}},
                                      {{"role", "user"}, {"content", "And now?"}},
                                      {{"role", "assistant"}, {"content", second->text}}}));
  // The answer is that of a cache that has seen nothing.
  Json messages = session.messages();
  messages.erase(messages.size() - 1);
  const auto prompt = tokenizer_.Encode(*format.Render(messages), {.parse_special = true});
  ASSERT_TRUE(prompt.ok());
  session.Reset();
  EXPECT_EQ(session.messages().size(), 1u);
  {
    const auto runner = engine_.MakeRunner(DType::kI8);
    const auto fresh = Generate(*runner, tokenizer_, *prompt, generate_);
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    EXPECT_EQ(fresh->ids, second->ids);
  }
  // After a reset, the same conversation from the start.
  const auto again = session.Ask("user", "Hello", generate_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->text, first->text);
  EXPECT_GT(again->reused_tokens, 20);
}

TEST_F(ChatSessionTest, AnAnswerThatIsStoppedStaysAsFarAsItWasSaid) {
  const ChatFormat format = Format();
  ChatSession session(format, tokenizer_, *runner_, std::nullopt);
  std::atomic<bool> cancel = false;
  generate_.cancel = &cancel;
  generate_.ignore_eos = true;
  const auto stopped = session.Ask("user", "Tell me all", generate_, [&](std::string_view) { cancel = true; });
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->finish_reason, "cancelled");
  EXPECT_LT(stopped->ids.size(), 8u);
  ASSERT_EQ(session.messages().size(), 2u);
  EXPECT_EQ(session.messages()[1]["content"], stopped->text);

  cancel = false;
  const auto next = session.Ask("user", "Go on", generate_);
  ASSERT_TRUE(next.ok()) << next.status();
  const std::string rendered = *format.Render(session.messages());
  EXPECT_THAT(rendered, HasSubstr("<|im_start|>assistant\n" + stopped->text + "<|im_end|>\n<|im_start|>user\nGo on"));

  // Before the first piece of text there is no answer, so there was no question.
  cancel = true;
  const auto none = session.Ask("user", "Hm", generate_);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->finish_reason, "cancelled");
  EXPECT_EQ(session.messages().size(), 4u);
}

TEST_F(ChatSessionTest, AMessageThatCannotBeAskedIsTakenBack) {
  const ChatFormat format = Format();
  ChatSession session(format, tokenizer_, *runner_, std::nullopt);
  ASSERT_TRUE(session.Ask("user", "Hello", generate_).ok());
  const Json before = session.messages();
  const auto long_one = session.Ask("user", std::string(400, 'x'), generate_);
  EXPECT_EQ(long_one.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(long_one.status().message()), HasSubstr("room for 300"));
  EXPECT_THAT(std::string(long_one.status().message()), HasSubstr("/reset"));
  const auto refused = session.Ask("user", "refuse", generate_);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("not like this"));
  EXPECT_EQ(session.messages(), before);
  EXPECT_TRUE(session.Ask("user", "Still there?", generate_).ok());
}

TEST_F(ChatSessionTest, AnswersEndWhereTheRoomEnds) {
  const ChatFormat format = Format();
  ChatSession session(format, tokenizer_, *runner_, std::nullopt);
  generate_.max_new_tokens = 100000;
  generate_.ignore_eos = true;
  const auto answer = session.Ask("user", "Hello", generate_);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->finish_reason, "length");
  EXPECT_EQ(session.tokens(), kRoom);
  EXPECT_EQ(session.Ask("user", "More", generate_).status().code(), absl::StatusCode::kInvalidArgument);
  session.Reset();
  EXPECT_TRUE(session.Ask("user", "Hello", generate_).ok());
}

TEST_F(ChatSessionTest, ToolsReachTheTemplateAndTheirResultsTheConversation) {
  const TempFile file(R"([{"type": "function", "function": {"name": "get_time", "parameters": {}}}])");
  const ChatFormat format = Format(file.path());
  EXPECT_TRUE(format.has_tools());
  ChatSession session(format, tokenizer_, *runner_, std::nullopt);
  ASSERT_TRUE(session.Ask("user", "Time?", generate_).ok());
  ASSERT_TRUE(session.Ask("tool", "noon", generate_).ok());
  const std::string rendered = *format.Render(session.messages());
  EXPECT_THAT(rendered, HasSubstr(R"(<|im_start|>tools
[{"type": "function", "function": {"name": "get_time", "parameters": {}}}]<|im_end|>)"));
  EXPECT_THAT(rendered, HasSubstr("<|im_start|>tool\nnoon<|im_end|>"));
}

TEST_F(ChatSessionTest, ToolsThatAreNoneEndInASentenceThatNamesTheFile) {
  for (const char* json : {"", "{", "[", "null", "[]", "{}", "3", "[3]", "[{}]", R"([{"type": "function"}])",
                           R"([{"type": "function", "function": {}}])", R"([{"type": 5, "function": {"name": "x"}}])",
                           R"([{"type": "function", "function": {"name": 5}}])", "\xff\xfe", "[\"\\ud800\"]"}) {
    EXPECT_EQ(ToolsError(json).code(), absl::StatusCode::kInvalidArgument) << json;
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_EQ(ToolsError(deep).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ChatFormat::Create(tokenizer_, "/nowhere/tools.json").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ChatSessionTest, ModelsWithoutAPlaceForToolsOrWithoutATemplateSaySo) {
  const TempFile file(R"([{"type": "function", "function": {"name": "x"}}])");
  const Tokenizer no_place = MakeTokenizer(TinyChatModelFile("{{ messages[0].content }}"));
  const auto tools = ChatFormat::Create(no_place, file.path());
  EXPECT_EQ(tools.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(tools.status().message()), HasSubstr("--tools"));
  const Tokenizer none = MakeTokenizer(TinyChatModelFile(""));
  EXPECT_THAT(std::string(ChatFormat::Create(none, "").status().message()), HasSubstr("-p"));
}

}  // namespace
}  // namespace octet
