// Renders a conversation into a prompt with the template that a model file carries: the part of Jinja that such
// templates use. What it leaves out is refused by name when the template is parsed, or when a run reaches it.
// Reference: https://huggingface.co/docs/transformers/chat_templating ; the whitespace and JSON settings are those of
// transformers' apply_chat_template.
#ifndef OCTET_CORE_TEXT_CHAT_TEMPLATE_H_
#define OCTET_CORE_TEXT_CHAT_TEMPLATE_H_

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace octet {

// Pointers are borrowed for the call.
struct ChatInput {
  const nlohmann::ordered_json* messages = nullptr;  // an array of objects; order of keys is kept
  const nlohmann::ordered_json* tools = nullptr;     // an array, or null for none
  bool add_generation_prompt = true;
  std::string_view bos_token = {};  // spelling; empty when the model has none
  std::string_view eos_token = {};
  const nlohmann::ordered_json* extra = nullptr;  // an object of further variables, which win over the ones above
  std::optional<std::time_t> now = {};            // what strftime_now prints; the clock when not given
};

// Immutable; any number of threads may render at once.
class ChatTemplate {
 public:
  // InvalidArgument for a syntax error, Unimplemented for a statement or expression that is not supported; the message
  // names the construct and the line.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // InvalidArgument when the template refuses the messages, or does what is not possible or supported;
  // ResourceExhausted when it takes too many steps or too much memory or output.
  absl::StatusOr<std::string> Render(const ChatInput& input) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_CHAT_TEMPLATE_H_
