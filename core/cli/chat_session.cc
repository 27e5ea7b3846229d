#include "core/cli/chat_session.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/message_text.h"

namespace octet {

int64_t FewestTokens(const Tokenizer& tokenizer, std::string_view text) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) longest = std::max(longest, tokenizer.Piece(id).size());
  return static_cast<int64_t>((text.size() + longest - 1) / longest);
}

ChatSession::ChatSession(const ChatFormat& format, const Tokenizer& tokenizer, Runner& runner,
                         const std::optional<std::string>& system)
    : format_(format),
      tokenizer_(tokenizer),
      sequence_(runner),
      messages_(std::make_unique<nlohmann::ordered_json>(nlohmann::ordered_json::array())) {
  if (system) messages_->push_back({{"role", "system"}, {"content", *system}});
  kept_messages_ = messages_->size();
}
ChatSession::~ChatSession() = default;

absl::StatusOr<Generation> ChatSession::Ask(std::string_view role, const std::string& text,
                                            const GenerateOptions& options,
                                            const std::function<void(std::string_view)>& on_text,
                                            const std::function<void(double)>& on_prompt) {
  const auto no_room = [this](const std::string& tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(format_.has_tools() ? "with this message and the tools of --tools" : "with this message",
                     " the conversation has ", tokens, " and there is room for ", room(), "; shorten ",
                     format_.has_tools() ? "it or the list of tools" : "it",
                     ", start a new conversation with /reset, or start octet with a larger --max-model-len"));
  };
  // Megabytes that cannot fit are refused before a template works on them.
  if (const int64_t fewest = FewestTokens(tokenizer_, text); fewest >= room()) {
    return no_room("at least " + CountOf(fewest, "token"));
  }
  const auto answer = [&]() -> absl::StatusOr<Generation> {
    auto rendered = format_.Render(*messages_);
    if (!rendered.ok()) return rendered.status();
    auto prompt = tokenizer_.Encode(*rendered, {.parse_special = true});
    if (!prompt.ok()) return prompt.status();
    const int64_t size = static_cast<int64_t>(prompt->size());
    if (size >= room()) return no_room(CountOf(size, "token"));
    auto generation = Generate(sequence_, tokenizer_, *prompt, options, on_text, on_prompt);
    if (generation.ok()) tokens_ = size + static_cast<int64_t>(generation->ids.size());
    return generation;
  };
  messages_->push_back({{"role", role}, {"content", text}});
  auto generation = answer();
  if (!generation.ok() || (generation->finish_reason == "cancelled" && generation->text.empty())) {
    messages_->erase(messages_->size() - 1);
  } else {
    messages_->push_back({{"role", "assistant"}, {"content", generation->text}});
  }
  return generation;
}

bool ChatSession::answered() const { return messages_->size() > kept_messages_; }

void ChatSession::Reset() {
  while (messages_->size() > kept_messages_) messages_->erase(messages_->size() - 1);
  tokens_ = 0;
}

}  // namespace octet
