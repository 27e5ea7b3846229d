#include "core/text/chat_template.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

Json ReadData(const std::string& name) {
  std::ifstream file(std::string(OCTET_TEST_DATA) + "/" + name);
  return Json::parse(file);
}

absl::StatusOr<std::string> Render(const std::string& source, const Json& messages = Json::array(),
                                   const Json& extra = Json::object()) {
  absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render({.messages = &messages, .extra = &extra, .now = 1700000000});
}

std::string Message(const std::string& source) { return std::string(Render(source).status().message()); }

TEST(ChatTemplateTest, RendersAsPythonsJinjaDoes) {
  const Json golden = ReadData("chat/golden.json");
  ASSERT_GT(golden["cases"].size(), 30u);
  for (const Json& item : golden["cases"]) {
    absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(item["template"].get<std::string>());
    ASSERT_TRUE(parsed.ok()) << item["name"] << ": " << parsed.status();
    const std::string bos = item["bos_token"];
    const std::string eos = item["eos_token"];
    const absl::StatusOr<std::string> text =
        parsed->Render({.messages = &item["messages"],
                        .tools = item["tools"].is_null() ? nullptr : &item["tools"],
                        .add_generation_prompt = item["add_generation_prompt"],
                        .bos_token = bos,
                        .eos_token = eos});
    ASSERT_TRUE(text.ok()) << item["name"] << ": " << text.status();
    EXPECT_EQ(*text, item["expected"].get<std::string>()) << item["name"];
  }
}

TEST(ChatTemplateTest, FailsWherePythonsJinjaFailsAndNamesTheLine) {
  const Json golden = ReadData("chat/golden.json");
  ASSERT_GT(golden["failing"].size(), 10u);
  for (const Json& item : golden["failing"]) {
    const absl::StatusOr<std::string> text = Render(item["template"].get<std::string>());
    EXPECT_FALSE(text.ok()) << item["name"] << ": " << text.value_or("");
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("chat template, line 1: ")) << item["name"];
  }
}

TEST(ChatTemplateTest, ReproducesTheOraclesPrompts) {
  Json templates;
  const Json golden = ReadData("chat/golden.json");
  for (const Json& item : golden["cases"]) {
    if (item["name"] == "smollm2 hello True") templates["smollm2"] = item["template"];
    if (item["name"] == "qwen hello True") templates["qwen"] = item["template"];
  }
  for (const auto& [model, source] : templates.items()) {
    int chats = 0;
    const Json oracle = ReadData("oracles/" + model + "_greedy.json");
    for (const Json& item : oracle["items"]) {
      if (!item.contains("messages")) continue;
      ++chats;
      const absl::StatusOr<std::string> text = Render(source.get<std::string>(), item["messages"]);
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, item["prompt"].get<std::string>()) << model << " " << item["name"];
    }
    EXPECT_EQ(chats, 3) << model;
  }
  EXPECT_EQ(templates.size(), 2u);
}

TEST(ChatTemplateTest, FurtherVariablesReachTheTemplate) {
  EXPECT_EQ(*Render("{{ enable_thinking }} {{ bos_token }}|{{ tools is none }}", Json::array(),
                    {{"enable_thinking", false}, {"bos_token", "<b>"}}),
            "False <b>|True");
}

TEST(ChatTemplateTest, PrintsTheTimeItIsGiven) {
  EXPECT_EQ(*Render("{{ strftime_now('%Y') }}"), "2023");
  EXPECT_THAT(Message("{{ strftime_now('%Y' * 1000) }}"), HasSubstr("strftime_now"));
}

TEST(ChatTemplateTest, NamesTheConstructAndTheLineOfWhatItDoesNotKnow) {
  EXPECT_THAT(Message("a\n{% include 'x' %}"), HasSubstr("line 2: the statement 'include' is not supported"));
  for (const char* unknown : {"{% call f() %}{% endcall %}", "{{ 1 | wordwrap }}", "{{ 1 is sameas 1 }}",
                              "{{ 'a'.encode() }}", "{{ {1: 2} }}", "{% set d = {} %}{{ d.items }}"}) {
    EXPECT_EQ(Render(unknown).status().code(), absl::StatusCode::kUnimplemented) << unknown;
  }
  EXPECT_THAT(Message("{{\n 1 | wordwrap }}"), HasSubstr("line 2: the filter 'wordwrap' is not supported"));
  EXPECT_THAT(Message("{{ 1 is sameas 1 }}"), HasSubstr("the test 'sameas' is not supported"));
  EXPECT_THAT(Message("{{ 'a'.encode() }}"), HasSubstr("the method 'encode' of string is not supported"));
  EXPECT_THAT(Message("{{ [1].append(2) }}"), HasSubstr("the method 'append' of list is not supported"));
  EXPECT_THAT(Message("{{ messages.x.y }}"), HasSubstr("'x of list' is undefined"));
  EXPECT_THAT(Message("{{ f(*messages) }}"), HasSubstr("unpacking of arguments is not supported"));
  EXPECT_THAT(Message("{{ '%s' % 1 }}"), HasSubstr("'%' does not work on string and int"));
  EXPECT_THAT(Message("{{ {1: 2} }}"), HasSubstr("a dict key of type int, which is no string, is not supported"));
  EXPECT_THAT(Message("{% for x in messages recursive %}{% endfor %}"), HasSubstr("a recursive loop is not supported"));
  EXPECT_THAT(Message("{{ raise_exception('Roles must alternate') }}"), HasSubstr("refuses: Roles must alternate"));
  EXPECT_THAT(Message("{{ 'a' | trim(1, 2) }}"), HasSubstr("the filter 'trim' takes at most 1 arguments"));
  EXPECT_THAT(Message("{{ 'a' | trim(nope=2) }}"), HasSubstr("does not take the argument 'nope'"));
  EXPECT_THAT(Message("{{ 'a' | replace('b') }}"), HasSubstr("needs 1 more argument"));
}

TEST(ChatTemplateTest, BrokenSyntaxEndsInASentence) {
  for (const char* source : {"{{",
                             "{%",
                             "{#",
                             "{{ 'a",
                             "{{ 1 + }}",
                             "{{ (1 }}",
                             "{{ [1, }}",
                             "{{ a b }}",
                             "{% if %}{% endif %}",
                             "{% endif %}",
                             "{% else %}",
                             "{% for %}",
                             "{% for x in %}",
                             "{% for x in y %}",
                             "{% set %}",
                             "{% set x %}",
                             "{% set x = %}",
                             "{% macro %}",
                             "{% macro m( %}",
                             "{{ ] }}",
                             "{{ a. }}",
                             "{{ a[ }}",
                             "{{ a| }}",
                             "{{ a is }}",
                             "{{ ? }}",
                             "{{ 1a }}",
                             "{{ '\\xZZ' }}",
                             "{{ 99999999999999999999 }}",
                             "{% break %}",
                             "{% raw %}",
                             "{{ {'a' 1} }}",
                             "{{ f(a=1, 2) }}",
                             "{% %}",
                             "{{ }}",
                             "{{ not }}",
                             "{{ 'a' 'b",
                             "{% set a.b.c = 1 %}",
                             "{{ \xFF",
                             "{% generation %}"}) {
    const absl::Status status = ChatTemplate::Parse(source).status();
    EXPECT_FALSE(status.ok()) << source;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chat template, line 1: ")) << source;
  }
}

TEST(ChatTemplateTest, EveryCutOfARealTemplateParsesOrIsRefused) {
  const Json golden = ReadData("chat/golden.json");
  for (const Json& item : golden["cases"]) {
    const std::string source = item["template"];
    for (size_t size = 0; size < source.size(); size += 7) {
      const Json messages = Json::array();
      absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source.substr(0, size));
      if (parsed.ok()) parsed->Render({.messages = &messages}).IgnoreError();
    }
  }
}

std::string Times(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(ChatTemplateTest, HostileTemplatesEndInASentence) {
  std::string names;
  for (int i = 0; i < 5000; ++i) names += fmt::format("{{% set n{} = 1 %}}", i);
  const std::string texts = "{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 ~ 'b' %}";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Times("{% if true %}", 100000), "nested more than"},
      {"{{ " + Times("(", 100000) + "1" + Times(")", 100000) + " }}", "nested more than"},
      {"{{ " + Times("[", 100000) + Times("]", 100000) + " }}", "nested more than"},
      {"{{ " + Times("not ", 100000) + "1 }}", "nested more than"},
      {"{{ " + Times("-", 100000) + "1 }}", "nested more than"},
      {"{{ 1" + Times(" + 1", 100000) + " }}", "nested more than"},
      {"{{ a" + Times(".a", 100000) + " }}", "nested more than"},
      {"{{ a" + Times(" | trim", 100000) + " }}", "nested more than"},
      {"{{ 1" + Times(" if 1 else 1", 100000) + " }}", "nested more than"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls are nested too deep"},
      {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "too many steps"},
      {"{{ range(10000000000) }}", "too many steps"},
      {"{{ 'a' * 99999999999 }}", "too many steps"},
      {"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
       "too many"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "too many"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
       "too many"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | "
       "tojson }}",
       "too many"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == "
       "ns.x }}",
       "too many"},
      {"{% set ns = namespace(x=1) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}",
       "nested more than 100"},
      {"{% set ns = namespace() %}{% set ns.me = ns %}", "cannot be put into"},
      {"{% set ns = namespace() %}{% set ns.me = [ns] %}", "cannot be put into"},
      {"{% set a = 'a' * 1000000 %}{{ a | replace('a', a) }}", "too many steps"},
      {"{% set a = 'a' * 1000000 %}{{ (a | list) | join(a) }}", "too many steps"},
      {"{% set a = 'a' * 10000000 %}{{ a }}{{ a }}{{ a }}{{ a }}", "more than 32 MiB"},
      {names + "{% for i in range(1000000) %}{% if n %}{% endif %}{% endfor %}", "too many steps"},
      {texts + "{% for i in range(100000) %}{% if 1[a] %}{% endif %}{% endfor %}", "too many steps"},
      {texts + "{{ range(100000) | map(attribute=a) | list }}", "too many steps"},
      {texts + "{{ a.rfind(b) }}", "too many steps"},
      {texts + "{{ a | trim(b) }}", "too many steps"},
      {texts + "{{ (a ~ a ~ a).split('a') }}", "too many steps"},
      {texts + "{% for i in range(100000) %}{% if a is ge a %}{% endif %}{% endfor %}", "too many steps"},
      {texts + "{{ a.startswith(range(100000) | map('string') | list) }}{{ b in a }}{{ a.find(b) }}{{ a.count(b) }}"
               "{{ a.replace(b, '') | length }}{{ raise_exception('done') }}",
       "done"},
      {"{{ 9223372036854775807 + 1 }}", "too large"},
      {"{{ -9223372036854775807 - 2 }}", "too large"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "too large"},
      {"{{ 10 ** 99 }}", "too large"},
  };
  for (const auto& [source, expected] : cases) {
    EXPECT_THAT(Message(source), HasSubstr(expected)) << source.substr(0, 100);
  }
}

TEST(ChatTemplateTest, RefusesInputOfTheWrongShape) {
  const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse("x");
  ASSERT_TRUE(parsed.ok());
  const Json object = Json::object();
  const Json array = Json::array();
  Json deep = Json::array();
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_THAT(std::string(parsed->Render({}).status().message()), HasSubstr("messages must be"));
  EXPECT_THAT(std::string(parsed->Render({.messages = &object}).status().message()), HasSubstr("messages must be"));
  EXPECT_THAT(std::string(parsed->Render({.messages = &array, .tools = &object}).status().message()),
              HasSubstr("tools must"));
  EXPECT_THAT(std::string(parsed->Render({.messages = &deep}).status().message()),
              HasSubstr("nested more than 100 deep"));
  const Json large = Json::array({18446744073709551615u});
  EXPECT_THAT(std::string(parsed->Render({.messages = &large}).status().message()), HasSubstr("is too large"));
}

}  // namespace
}  // namespace octet
