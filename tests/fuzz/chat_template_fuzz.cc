// A chat template of any bytes over a fixed conversation. The interpreter runs with a small budget, so that what it
// does not charge for shows as an input that takes long.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/text/jinja_eval.h"
#include "core/text/jinja_parser.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/live_bytes.h"

namespace octet {
namespace {

using jinja::Entries;
using jinja::List;
using jinja::Value;

constexpr uint64_t kWork = uint64_t{1} << 19;

Value Text(const char* text) { return Value::Of(std::string(text)); }

Value Message(const char* role, Value content) {
  return Value::Of(Entries{{"role", Text(role)}, {"content", std::move(content)}});
}

Value Tool() {
  const Value parameters =
      Value::Of(Entries{{"type", Text("object")},
                        {"properties", Value::Of(Entries{{"city", Value::Of(Entries{{"type", Text("string")}})}})},
                        {"required", Value::Of(List{Text("city")})}});
  return Value::Of(Entries{{"type", Text("function")},
                           {"function", Value::Of(Entries{{"name", Text("weather")}, {"parameters", parameters}})}});
}

const Entries& Globals() {
  static const auto* const globals = new Entries{
      {"messages",
       Value::Of(
           List{Message("system", Text("Be brief.")), Message("user", Text(" How is caf\xC3\xA9 spelled?\n")),
                Message("user", Value::Of(List{Value::Of(Entries{{"type", Text("text")}, {"text", Text("x")}})})),
                Value::Of(Entries{
                    {"role", Text("assistant")}, {"content", Value::None()}, {"tool_calls", Value::Of(List{Tool()})}}),
                Message("tool", Text("<b>{\"a\": 1.5}</b>"))})},
      {"tools", Value::Of(List{Tool()})},
      {"documents", Value::None()},
      {"add_generation_prompt", Value::Of(true)},
      {"bos_token", Text("<s>")},
      {"eos_token", Text("</s>")},
      {"number", Value::Of(int64_t{-7})},
      {"ratio", Value::Of(0.25)}};
  return *globals;
}

}  // namespace
}  // namespace octet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto& globals = octet::Globals();
  const octet::fuzz::LiveBytes parsing;
  const auto body = octet::jinja::Parse({reinterpret_cast<const char*>(data), size});
  // A token is 48 bytes, in a vector that doubles; a node of the tree 200 and more.
  parsing.RequireAtMost(64 << 10, 1024, size, "parsing");
  octet::fuzz::RequireSentence(body.status());
  if (!body.ok()) return 0;
  const octet::fuzz::LiveBytes running;
  const auto text = octet::jinja::Run(*body, globals, std::time_t{1'700'000'000}, octet::kWork);
  running.RequireAtMost(32 * static_cast<int64_t>(octet::kWork), 64, size, "running");
  octet::fuzz::RequireSentence(text.status());
  return 0;
}
