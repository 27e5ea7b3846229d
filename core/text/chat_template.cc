#include "core/text/chat_template.h"

#include <limits>
#include <utility>

#include "core/text/jinja_context.h"
#include "core/text/jinja_eval.h"
#include "core/text/jinja_parser.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<jinja::Value> FromJson(const Json& json, int depth, std::string_view what) {
  if (depth > jinja::kMaxValueDepth) {
    return absl::InvalidArgumentError(fmt::format("{}: nested more than {} deep", what, jinja::kMaxValueDepth));
  }
  switch (json.type()) {
    case Json::value_t::null:
      return jinja::Value::None();
    case Json::value_t::boolean:
      return jinja::Value::Of(json.get<bool>());
    case Json::value_t::number_integer:
      return jinja::Value::Of(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return absl::InvalidArgumentError(fmt::format("{}: the number {} is too large", what, json.get<uint64_t>()));
      }
      return jinja::Value::Of(json.get<int64_t>());
    case Json::value_t::number_float:
      return jinja::Value::Of(json.get<double>());
    case Json::value_t::string:
      return jinja::Value::Of(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      jinja::List items;
      for (const Json& item : json) {
        absl::StatusOr<jinja::Value> value = FromJson(item, depth + 1, what);
        if (!value.ok()) return value.status();
        items.push_back(*std::move(value));
      }
      return jinja::Value::Of(std::move(items));
    }
    case Json::value_t::object: {
      jinja::Entries entries;
      for (const auto& [key, item] : json.items()) {
        absl::StatusOr<jinja::Value> value = FromJson(item, depth + 1, what);
        if (!value.ok()) return value.status();
        entries.emplace_back(key, *std::move(value));
      }
      return jinja::Value::Of(std::move(entries));
    }
    default:
      return absl::InvalidArgumentError(fmt::format("{}: binary data is not supported", what));
  }
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  absl::StatusOr<jinja::Body> body = jinja::Parse(source);
  if (!body.ok()) return body.status();
  auto impl = std::make_unique<Impl>();
  impl->body = *std::move(body);
  return ChatTemplate(std::move(impl));
}

absl::StatusOr<std::string> ChatTemplate::Render(const ChatInput& input) const {
  if (input.messages == nullptr || !input.messages->is_array()) {
    return absl::InvalidArgumentError("messages must be a JSON array");
  }
  if (input.tools != nullptr && !input.tools->is_array()) {
    return absl::InvalidArgumentError("tools must be a JSON array");
  }
  if (input.extra != nullptr && !input.extra->is_object()) {
    return absl::InvalidArgumentError("the template's further variables must be a JSON object");
  }
  jinja::Entries globals;
  // Looked up in this order, so that the first one wins.
  if (input.extra != nullptr) {
    for (const auto& [key, item] : input.extra->items()) {
      absl::StatusOr<jinja::Value> value = FromJson(item, 1, key);
      if (!value.ok()) return value.status();
      globals.emplace_back(key, *std::move(value));
    }
  }
  absl::StatusOr<jinja::Value> messages = FromJson(*input.messages, 1, "messages");
  if (!messages.ok()) return messages.status();
  absl::StatusOr<jinja::Value> tools =
      input.tools == nullptr ? jinja::Value::None() : FromJson(*input.tools, 1, "tools");
  if (!tools.ok()) return tools.status();
  globals.emplace_back("messages", *std::move(messages));
  globals.emplace_back("tools", *std::move(tools));
  globals.emplace_back("documents", jinja::Value::None());
  globals.emplace_back("add_generation_prompt", jinja::Value::Of(input.add_generation_prompt));
  globals.emplace_back("bos_token", jinja::Value::Of(std::string(input.bos_token)));
  globals.emplace_back("eos_token", jinja::Value::Of(std::string(input.eos_token)));
  return jinja::Run(impl_->body, globals, input.now);
}

}  // namespace octet
