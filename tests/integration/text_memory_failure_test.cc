// Every allocation that a tokenizer and a chat template make, at load and for one prompt, fails once: the failure comes
// out as such, nothing stays allocated, and the next prompt gets the same tokens.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "core/gguf/gguf_file.h"
#include "core/text/chat_template.h"
#include "core/text/gguf_tokenizer.h"
#include "core/text/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/count_allocations.h"
#include "tests/integration/tiny_chat_model.h"

namespace octet {
namespace {

using Tokens = std::vector<int32_t>;

absl::StatusOr<Tokens> Prompt(std::span<const std::byte> model, const nlohmann::ordered_json& messages) {
  const auto file = GgufFile::FromBytes("tiny", model);
  if (!file.ok()) return file.status();
  auto spec = TokenizerSpecFromGguf(**file);
  if (!spec.ok()) return spec.status();
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return tokenizer.status();
  const auto chat = ChatTemplate::Parse(tokenizer->chat_template());
  if (!chat.ok()) return chat.status();
  const auto text = chat->Render({.messages = &messages});
  if (!text.ok()) return text.status();
  return tokenizer->Encode(*text, {.parse_special = true});
}

TEST(TextMemoryFailureTest, EveryAllocationOfTokenizerAndTemplateMayFail) {
  const std::string bytes = TinyChatModelFile();
  // As aligned as a mapping.
  std::vector<uint64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto model = std::as_bytes(std::span(aligned)).first(bytes.size());
  const auto messages = nlohmann::ordered_json::parse(R"([{"role": "user", "content": "where to?"}])");
  const auto expected = Prompt(model, messages);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_GT(expected->size(), 20u);

  const int64_t before = LiveAllocations();
  int64_t nth = 1;
  for (;; ++nth) {
    FailAllocation(nth);
    bool failed = false;
    try {
      failed = !Prompt(model, messages).ok();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const bool reached = AllocationHasFailed();
    FailAllocation(0);
    ASSERT_EQ(LiveAllocations(), before) << "allocation " << nth;
    if (!reached) break;
    EXPECT_TRUE(failed) << "allocation " << nth;
    if (nth % 16 == 1) {
      const auto again = Prompt(model, messages);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*again, *expected) << "after failure " << nth;
    }
  }
  EXPECT_GT(nth, 500);
}

}  // namespace
}  // namespace octet
