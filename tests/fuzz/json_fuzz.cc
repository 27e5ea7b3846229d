// The JSON that octet reads: a list of tools (--tools), and what reaches a chat template, a conversation's messages,
// tools and further variables. An input is taken for a list of tools, and for one document,
// {"messages": [...], "tools": [...], "extra": {...}}, each part of any type, rendered by templates that look at all
// of it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/cli/chat_format.h"
#include "core/text/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/live_bytes.h"

namespace {

constexpr const char* kTemplates[] = {
    R"({%- for message in messages %}
{{- '<|' + message['role'] + '|>' }}{{ message.content | trim }}
{%- for call in message.tool_calls %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %})",
    R"({{ bos_token }}{{ tools | tojson(indent=2) }}{{ messages | tojson }}{{ messages }}
{%- for tool in tools %}{{ tool.function | items | list }}{{ tool | string | upper }}{% endfor %})",
    R"({%- for message in messages if message is mapping and message.content is iterable %}
{%- for part in message.content %}{{ loop.index }}{{ part == message.content[0] }}{{ part.text | default('-') }}
{%- endfor %}{% endfor %}{{ enable_thinking is defined }}{{ date | default(strftime_now('%Y')) }})"};

const std::vector<octet::ChatTemplate>& Templates() {
  static const auto* const templates = [] {
    auto* parsed = new std::vector<octet::ChatTemplate>;
    for (const char* source : kTemplates) {
      auto one = octet::ChatTemplate::Parse(source);
      octet::fuzz::Require(one.ok(), std::string(one.status().message()));
      parsed->push_back(*std::move(one));
    }
    return parsed;
  }();
  return *templates;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  const auto& templates = Templates();
  const octet::fuzz::LiveBytes memory;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  octet::fuzz::RequireSentence(octet::ParseTools("tools.json", text).status());
  const Json document = Json::parse(data, data + size, nullptr, false);
  if (!document.is_object()) return 0;
  const auto part = [&document](const char* name) -> const Json* {
    const auto found = document.find(name);
    return found == document.end() ? nullptr : &*found;
  };
  octet::ChatInput input;
  input.messages = part("messages");
  input.tools = part("tools");
  input.extra = part("extra");
  input.bos_token = "<s>";
  input.now = std::time_t{1'700'000'000};
  for (const octet::ChatTemplate& one : templates) octet::fuzz::RequireSentence(one.Render(input).status());
  memory.RequireAtMost(1 << 20, 4096, size, "rendering");
  return 0;
}
