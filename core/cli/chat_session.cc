#include "core/cli/chat_session.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace octet {
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
  const auto answer = [&]() -> absl::StatusOr<Generation> {
    auto rendered = format_.Render(*messages_);
    if (!rendered.ok()) return rendered.status();
    auto prompt = tokenizer_.Encode(*rendered, {.parse_special = true});
    if (!prompt.ok()) return prompt.status();
    const int64_t size = static_cast<int64_t>(prompt->size());
    if (size >= room()) {
      return absl::InvalidArgumentError(
          absl::StrCat("with this message the conversation has ", size, " tokens and there is room for ", room(),
                       "; shorten it, start a new conversation with /reset, or start octet with a larger "
                       "--max-model-len"));
    }
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

void ChatSession::Reset() {
  while (messages_->size() > kept_messages_) messages_->erase(messages_->size() - 1);
  tokens_ = 0;
}

}  // namespace octet
