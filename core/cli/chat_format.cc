#include "core/cli/chat_format.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/text_file.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> ReadTools(const std::string& path) {
  auto text = ReadTextFile(path);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat("--tools: ", text.status().message()));
  return ParseTools(path, *text);
}

std::string Spelling(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? std::string(tokenizer.Piece(*id)) : std::string();
}

}  // namespace

absl::StatusOr<Json> ParseTools(const std::string& path, std::string_view text) {
  const auto bad = [&path](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("--tools ", path, ": ", why));
  };
  Json tools;
  try {
    tools = Json::parse(text);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, ...": the number is the library's own.
    std::string what = error.what();
    if (const size_t end = what.find("] "); what.starts_with('[') && end != std::string::npos) what.erase(0, end + 2);
    return bad(absl::StrCat("this is not JSON: ", what));
  }
  if (!tools.is_array() || tools.empty()) {
    return bad(R"(a list of tools is needed, such as [{"type": "function", "function": {"name": "get_time"}}])");
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || tool.value("type", Json()) != "function" || function == tool.end() ||
        !function->is_object() || !function->contains("name") || !(*function)["name"].is_string()) {
      return bad(absl::StrCat("entry ", i, " is no tool; needed is an object with \"type\": \"function\" and a ",
                              "\"function\" that has a \"name\""));
    }
  }
  return tools;
}

ChatFormat::ChatFormat(ChatTemplate chat, const Tokenizer& tokenizer)
    : template_(std::move(chat)),
      bos_(Spelling(tokenizer, tokenizer.bos_id())),
      eos_(Spelling(tokenizer, tokenizer.eos_id())) {}
ChatFormat::ChatFormat(ChatFormat&&) noexcept = default;
ChatFormat::~ChatFormat() = default;

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer& tokenizer, const std::string& tools_path) {
  if (tokenizer.chat_template().empty()) {
    return absl::InvalidArgumentError(
        "this model has no chat template: it continues text; leave --chat and --apply-chat-template out and give it a "
        "text with -p");
  }
  auto parsed = ChatTemplate::Parse(tokenizer.chat_template());
  if (!parsed.ok()) return parsed.status();
  ChatFormat format(*std::move(parsed), tokenizer);
  if (tools_path.empty()) return format;

  auto tools = ReadTools(tools_path);
  if (!tools.ok()) return tools.status();
  const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
  const auto without = format.Render(messages);
  format.tools_ = std::make_unique<const Json>(*std::move(tools));
  const auto with = format.Render(messages);
  if (!with.ok()) return with.status();
  if (without.ok() && *with == *without) {
    return absl::UnimplementedError("this model's chat template has no place for tools; leave --tools out");
  }
  return format;
}

absl::StatusOr<std::string> ChatFormat::Render(const Json& messages) const {
  ChatInput input;
  input.messages = &messages;
  input.tools = tools_.get();
  input.bos_token = bos_;
  input.eos_token = eos_;
  return template_.Render(input);
}

}  // namespace octet
