#include "core/text/jinja_builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/text/jinja_strings.h"
#include "fmt/format.h"

namespace octet::jinja {
namespace {

// One call of a filter, test, method or function: where it stands, what it is called and what it was given.
struct Call {
  Context* context;
  int line;
  std::string callee;  // "the filter 'join'"
  Args* args;

  Value Fail(const std::string& message) const { return context->Fail(line, message); }
  bool Charge(uint64_t work) const { return context->Charge(line, work); }
  Value Text(std::string text) const { return context->MakeString(line, std::move(text)); }
  Value Make(List items) const { return context->MakeList(line, std::move(items)); }
  bool Items(const Value& value, List* items) const { return GetItems(context, line, value, items); }

  std::string AsText(const Value& value) const { return Charge(value.weight()) ? ToText(value) : std::string(); }
  Value Require(size_t index, const char* name) const { return args->Require(context, line, index, name, callee); }
  std::string RequireString(size_t index, const char* name) const {
    const Value value = Require(index, name);
    if (value.string() != nullptr) return *value.string();
    Fail(fmt::format("{} needs a string, not {}", callee, value.type_name()));
    return {};
  }
  int64_t Integer(size_t index, const char* name, int64_t absent) const {
    const std::optional<Value> value = args->Get(index, name);
    if (!value.has_value() || value->is_none()) return absent;
    if (const std::optional<int64_t> integer = value->integer()) return *integer;
    Fail(fmt::format("{} needs an int, not {}", callee, value->type_name()));
    return absent;
  }
  bool Flag(size_t index, const char* name, bool absent) const {
    const std::optional<Value> value = args->Get(index, name);
    return value.has_value() ? value->truthy() : absent;
  }
  // Whatever the value is; an absent or none argument gives nothing.
  std::optional<std::string> Optional(size_t index, const char* name) const {
    const std::optional<Value> value = args->Get(index, name);
    if (!value.has_value() || value->is_none()) return std::nullopt;
    return AsText(*value);
  }
  Value Replaced(const std::string& text, const std::string& from, const std::string& to, int64_t limit) const {
    if (from.empty()) return Fail(fmt::format("{} cannot replace an empty string", callee));
    uint64_t count = CountText(text, from);
    if (limit >= 0) count = std::min(count, static_cast<uint64_t>(limit));
    if (!Charge(text.size() + count * to.size())) return Value::Undefined();
    return Text(Replace(text, from, to, limit));
  }
  // Texts of which one is searched or stripped from the right, character by character.
  bool ChargePairs(std::string_view text, std::string_view part) const {
    return Charge(text.size() + part.size() / 16 * text.size());
  }
  bool EqualTo(const Value& a, const Value& b) const { return Charge(std::min(a.weight(), b.weight())) && Equal(a, b); }
};

// The item of a dotted path, as in selectattr('function.name').
Value ByPath(const Call& call, Value value, const std::string& path) {
  if (!call.Charge(path.size())) return Value::Undefined();
  for (const std::string& part : SplitBy(path, ".", -1, false)) {
    int64_t index = 0;
    const char* end = part.data() + part.size();
    const auto parsed = std::from_chars(part.data(), end, index);
    if (parsed.ec == std::errc() && parsed.ptr == end) {
      value = GetItem(call.context, call.line, value, Value::Of(index));
    } else {
      value = GetItem(call.context, call.line, value, Value::Of(part));
    }
  }
  return value;
}

Value ToJson(const Call& call, const Value& input) {
  JsonStyle style;
  style.ensure_ascii = call.Flag(0, "ensure_ascii", false);
  const int64_t indent = call.Integer(1, "indent", -1);
  if (indent > 64) return call.Fail("tojson takes an indent of at most 64");
  if (indent >= 0) {
    style.indent = static_cast<int>(indent);
    style.item_separator.pop_back();  // a newline follows instead of the space
  }
  if (const std::optional<Value> separators = call.args->Get(2, "separators"); separators && !separators->is_none()) {
    const List* pair = separators->list();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].string() || !(*pair)[1].string()) {
      return call.Fail("tojson needs two strings as separators");
    }
    style.item_separator = *(*pair)[0].string();
    style.key_separator = *(*pair)[1].string();
  }
  style.sort_keys = call.Flag(3, "sort_keys", false);
  const uint64_t per_item = 1 + style.item_separator.size() + style.key_separator.size() +
                            static_cast<uint64_t>(style.indent.value_or(0) * input.depth());
  if (input.weight() > kMaxWork || !call.Charge(input.weight() * per_item)) {
    call.Charge(kMaxWork);
    return Value::Undefined();
  }
  std::string text;
  if (!AppendJson(input, style, &text)) return call.Fail("tojson was given something undefined or a function");
  return call.Text(std::move(text));
}

Value Join(const Call& call, const Value& input) {
  const std::string separator = call.Optional(0, "d").value_or("");
  const std::optional<std::string> attribute = call.Optional(1, "attribute");
  List items;
  if (!call.Items(input, &items)) return Value::Undefined();
  std::string text;
  for (size_t i = 0; i < items.size() && !call.context->failed(); ++i) {
    if (i > 0 && call.Charge(separator.size())) text += separator;
    text += call.AsText(attribute.has_value() ? ByPath(call, items[i], *attribute) : items[i]);
  }
  return call.Text(std::move(text));
}

Value Indent(const Call& call, const Value& input) {
  const std::optional<Value> given = call.args->Get(0, "width");
  std::string margin;
  if (given.has_value() && given->string() != nullptr) {
    margin = *given->string();
  } else {
    const int64_t width = call.Integer(0, "width", 4);
    if (width < 0 || width > 1000) return call.Fail("indent takes a width from 0 to 1000");
    margin.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = call.Flag(1, "first", false);
  const bool blank = call.Flag(2, "blank", false);
  const std::string whole = fmt::format("{}\n", call.AsText(input));
  // A line may be empty.
  if (!call.Charge(whole.size() * kNodeWork)) return Value::Undefined();
  const std::vector<std::string> lines = SplitLines(whole);
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!call.Charge(margin.size() + lines[i].size())) return Value::Undefined();
    if (i > 0) text += "\n";
    if (i == 0 ? first : blank || !lines[i].empty()) text += margin;
    text += lines[i];
  }
  return call.Text(std::move(text));
}

Value ToInt(const Call& call, const Value& input) {
  const Value absent = call.args->Get(0, "default").value_or(Value::Of(int64_t{0}));
  if (const std::optional<bool> boolean = input.boolean()) return Value::Of(int64_t{*boolean});
  if (input.integer().has_value()) return input;
  double number = 0;
  if (input.is_float()) {
    number = *input.number();
  } else if (input.string() != nullptr) {
    const std::string text(Strip(*input.string(), std::nullopt, true, true));
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const char* end = text.data() + text.size();
    int64_t value = 0;
    const auto parsed = std::from_chars(begin, end, value);
    if (parsed.ec == std::errc() && parsed.ptr == end) return Value::Of(value);
    const auto as_float = std::from_chars(begin, end, number);
    if (as_float.ec != std::errc() || as_float.ptr != end) return absent;
  } else {
    return absent;
  }
  if (!(std::abs(number) < 9.2e18)) return absent;
  return Value::Of(static_cast<int64_t>(number));
}

Value ToFloat(const Call& call, const Value& input) {
  const Value absent = call.args->Get(0, "default").value_or(Value::Of(0.0));
  if (const std::optional<bool> boolean = input.boolean()) return Value::Of(*boolean ? 1.0 : 0.0);
  if (const std::optional<double> number = input.number()) return Value::Of(*number);
  if (input.string() == nullptr) return absent;
  const std::string text(Strip(*input.string(), std::nullopt, true, true));
  double value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end ? Value::Of(value) : absent;
}

// select, reject, selectattr and rejectattr.
Value Select(const Call& call, const Value& input, bool by_attribute, bool keep) {
  const std::string path = by_attribute ? call.RequireString(0, nullptr) : "";
  const size_t test_at = by_attribute ? 1 : 0;
  const std::optional<Value> test = call.args->Get(test_at, nullptr);
  if (test.has_value() && test->string() == nullptr)
    return call.Fail(fmt::format("{} needs a test's name", call.callee));
  Args rest = call.args->Rest(test_at + 1);
  const uint64_t work = kNodeWork + rest.size() * kElementWork;
  List items;
  if (!call.Items(input, &items)) return Value::Undefined();
  List kept;
  for (const Value& item : items) {
    if (!call.Charge(work)) return Value::Undefined();
    const Value subject = by_attribute ? ByPath(call, item, path) : item;
    Args arguments = rest;
    const bool passes =
        test.has_value() ? ApplyTest(call.context, call.line, *test->string(), subject, &arguments) : subject.truthy();
    if (call.context->failed()) return Value::Undefined();
    if (passes == keep) kept.push_back(item);
  }
  return call.Make(std::move(kept));
}

Value Map(const Call& call, const Value& input) {
  const std::optional<Value> attribute = call.args->Named("attribute");
  List items;
  if (!call.Items(input, &items)) return Value::Undefined();
  List mapped;
  if (attribute.has_value()) {
    const std::optional<Value> absent = call.args->Named("default");
    const std::string path = call.AsText(*attribute);
    for (const Value& item : items) {
      if (!call.Charge(kNodeWork)) return Value::Undefined();
      Value value = ByPath(call, item, path);
      mapped.push_back(value.is_undefined() && absent.has_value() ? *absent : std::move(value));
    }
    return call.Make(std::move(mapped));
  }
  const std::string filter = call.RequireString(0, nullptr);
  Args rest = call.args->Rest(1);
  const uint64_t work = kNodeWork + rest.size() * kElementWork;
  for (const Value& item : items) {
    if (!call.Charge(work)) return Value::Undefined();
    Args arguments = rest;
    mapped.push_back(ApplyFilter(call.context, call.line, filter, item, &arguments));
  }
  return call.Make(std::move(mapped));
}

Value Sorted(const Call& call, const Value& input) {
  const bool reverse = call.Flag(0, "reverse", false);
  const bool case_sensitive = call.Flag(1, "case_sensitive", false);
  const std::optional<std::string> attribute = call.Optional(2, "attribute");
  List items;
  if (!call.Items(input, &items)) return Value::Undefined();
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    Value key = attribute.has_value() ? ByPath(call, item, *attribute) : item;
    if (!case_sensitive && key.string() != nullptr) key = call.Text(Lower(*key.string()));
    if (!keyed.empty() && !Order(keyed[0].first, key).has_value()) {
      return call.Fail(fmt::format("sort cannot order {} and {}", keyed[0].first.type_name(), key.type_name()));
    }
    if (!call.Charge(key.weight() * 32)) return Value::Undefined();
    keyed.emplace_back(std::move(key), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [reverse](const auto& a, const auto& b) {
    const int order = Order(a.first, b.first).value_or(0);
    return reverse ? order > 0 : order < 0;
  });
  List sorted;
  for (auto& entry : keyed) sorted.push_back(std::move(entry.second));
  return call.Make(std::move(sorted));
}

Value Unique(const Call& call, const Value& input) {
  const bool case_sensitive = call.Flag(0, "case_sensitive", false);
  List items;
  if (!call.Items(input, &items)) return Value::Undefined();
  List keys;
  List kept;
  for (const Value& item : items) {
    const Value key = !case_sensitive && item.string() != nullptr ? call.Text(Lower(*item.string())) : item;
    bool seen = false;
    for (size_t i = 0; i < keys.size() && !seen; ++i) seen = call.EqualTo(keys[i], key);
    if (call.context->failed()) return Value::Undefined();
    if (seen) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return call.Make(std::move(kept));
}

Value DictItems(const Call& call, const Entries& entries) {
  List items;
  if (!call.Charge(entries.size() * 3 * kElementWork)) return Value::Undefined();
  for (const auto& [key, value] : entries) items.push_back(Value::Of(List{Value::Of(key), value}));
  return call.Make(std::move(items));
}

Value Length(const Call& call, const Value& input) {
  if (input.is_undefined()) return Value::Of(int64_t{0});
  size_t size = 0;
  if (const std::string* text = input.string()) {
    if (call.Charge(text->size())) size = Characters(*text).size();
  } else if (const List* list = input.list()) {
    size = list->size();
  } else if (const Entries* entries = input.dict()) {
    size = entries->size();
  } else {
    return call.Fail(fmt::format("{} has no length", input.type_name()));
  }
  return Value::Of(static_cast<int64_t>(size));
}

Value Filter(const Call& call, const std::string& name, const Value& input) {
  if (name == "tojson") return ToJson(call, input);
  if (name == "default" || name == "d") {
    const Value fallback = call.args->Get(0, "default_value").value_or(Value::Of(std::string()));
    const bool falsy_too = call.Flag(1, "boolean", false);
    return input.is_undefined() || (falsy_too && !input.truthy()) ? fallback : input;
  }
  if (name == "trim") {
    const std::optional<std::string> characters = call.Optional(0, "chars");
    const std::string text = call.AsText(input);
    if (characters.has_value() && !call.ChargePairs(text, *characters)) return Value::Undefined();
    return call.Text(std::string(Strip(text, characters, true, true)));
  }
  if (name == "length" || name == "count") return Length(call, input);
  if (name == "upper") return call.Text(Upper(call.AsText(input)));
  if (name == "lower") return call.Text(Lower(call.AsText(input)));
  if (name == "title") return call.Text(TitleFilter(call.AsText(input)));
  if (name == "capitalize") return call.Text(Capitalize(call.AsText(input)));
  if (name == "string" || name == "safe") return call.Text(call.AsText(input));
  if (name == "replace") {
    const std::string from = call.AsText(call.Require(0, "old"));
    const std::string to = call.AsText(call.Require(1, "new"));
    return call.Replaced(call.AsText(input), from, to, call.Integer(2, "count", -1));
  }
  if (name == "join") return Join(call, input);
  if (name == "indent") return Indent(call, input);
  if (name == "int") return ToInt(call, input);
  if (name == "float") return ToFloat(call, input);
  if (name == "abs") {
    if (const std::optional<int64_t> integer = input.integer(); integer && *integer != INT64_MIN) {
      return Value::Of(std::abs(*integer));
    }
    if (input.is_float()) return Value::Of(std::abs(*input.number()));
    return call.Fail(fmt::format("abs needs a number, not {}", input.type_name()));
  }
  if (name == "select") return Select(call, input, false, true);
  if (name == "reject") return Select(call, input, false, false);
  if (name == "selectattr") return Select(call, input, true, true);
  if (name == "rejectattr") return Select(call, input, true, false);
  if (name == "map") return Map(call, input);
  if (name == "sort") return Sorted(call, input);
  if (name == "unique") return Unique(call, input);
  if (name == "items") {
    if (input.is_undefined()) return Value::Of(List{});
    if (input.dict() == nullptr) return call.Fail(fmt::format("items needs a dict, not {}", input.type_name()));
    return DictItems(call, *input.dict());
  }
  if (name == "first" || name == "last" || name == "list" || name == "reverse") {
    List items;
    if (!call.Items(input, &items)) return Value::Undefined();
    if (name == "list") return call.Make(std::move(items));
    if (name == "reverse") {
      std::reverse(items.begin(), items.end());
      if (input.string() == nullptr) return call.Make(std::move(items));
      std::string text;
      for (const Value& item : items) text += *item.string();
      return call.Text(std::move(text));
    }
    if (items.empty()) return Value::Undefined(name);
    return name == "first" ? items.front() : items.back();
  }
  return call.context->Unsupported(call.line, fmt::format("the filter '{}'", name));
}

bool Test(const Call& call, const std::string& name, const Value& value) {
  const auto argument = [&call] { return call.Require(0, "other"); };
  const auto ordered = [&](auto holds) {
    const Value other = argument();
    if (!call.Charge(std::min(value.weight(), other.weight()))) return false;
    const std::optional<int> order = Order(value, other);
    if (!order.has_value()) {
      call.Fail(fmt::format("{} and {} have no order", value.type_name(), other.type_name()));
      return false;
    }
    return static_cast<bool>(holds(*order));
  };
  const auto modulo = [&](int64_t divisor) -> int64_t {
    if (!value.integer().has_value()) {
      call.Fail(fmt::format("{} needs an int, not {}", call.callee, value.type_name()));
      return 0;
    }
    if (divisor == 0) {
      call.Fail("division by zero");
      return 0;
    }
    return divisor == -1 ? 0 : *value.integer() % divisor;
  };
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.string() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "sequence" || name == "iterable") {
    // An undefined value has a length and can be visited, in Python's implementation too.
    return value.is_undefined() || value.string() != nullptr || value.list() != nullptr || value.dict() != nullptr;
  }
  if (name == "boolean") return value.boolean().has_value();
  if (name == "true") return value.boolean() == std::optional(true);
  if (name == "false") return value.boolean() == std::optional(false);
  if (name == "integer") return value.integer().has_value();
  if (name == "float") return value.is_float();
  if (name == "number") return value.number().has_value() || value.boolean().has_value();
  if (name == "callable") return value.is_callable();
  if (name == "odd") return modulo(2) != 0;
  if (name == "even") return modulo(2) == 0;
  if (name == "divisibleby") return modulo(call.Integer(0, "num", 0)) == 0;
  if (name == "in") return Contains(call.context, call.line, call.Require(0, "seq"), value);
  if (name == "eq" || name == "equalto" || name == "==") return call.EqualTo(value, argument());
  if (name == "ne" || name == "!=") return !call.EqualTo(value, argument());
  if (name == "lt" || name == "lessthan" || name == "<") return ordered([](int order) { return order < 0; });
  if (name == "le" || name == "<=") return ordered([](int order) { return order <= 0; });
  if (name == "gt" || name == "greaterthan" || name == ">") return ordered([](int order) { return order > 0; });
  if (name == "ge" || name == ">=") return ordered([](int order) { return order >= 0; });
  if (name == "upper" || name == "lower") {
    const std::string text = call.AsText(value);
    const std::string other = name == "upper" ? Lower(text) : Upper(text);
    return text == (name == "upper" ? Upper(text) : Lower(text)) && text != other;
  }
  call.context->Unsupported(call.line, fmt::format("the test '{}'", name));
  return false;
}

// True for the text itself or, Python allows both, any of a list of texts.
template <typename Matches>
bool AnyAffix(const Call& call, Matches matches) {
  const Value affix = call.Require(0, nullptr);
  if (affix.string() != nullptr) return matches(*affix.string());
  if (affix.list() != nullptr) {
    return std::any_of(affix.list()->begin(), affix.list()->end(), [&](const Value& item) {
      return call.Charge(item.weight()) && item.string() != nullptr && matches(*item.string());
    });
  }
  call.Fail(fmt::format("{} needs a string, not {}", call.callee, affix.type_name()));
  return false;
}

Value StringMethod(const Call& call, const std::string& text, const std::string& name) {
  if (!call.Charge(text.size())) return Value::Undefined();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const std::optional<std::string> characters = call.Optional(0, nullptr);
    if (characters.has_value() && !call.ChargePairs(text, *characters)) return Value::Undefined();
    return call.Text(std::string(Strip(text, characters, name != "rstrip", name != "lstrip")));
  }
  if (name == "split" || name == "rsplit") {
    const std::optional<std::string> separator = call.Optional(0, "sep");
    const int64_t limit = call.Integer(1, "maxsplit", -1);
    if (separator.has_value() && separator->empty()) return call.Fail("split needs a separator that is not empty");
    if (separator.has_value()) {
      if (!call.ChargePairs(text, *separator)) return Value::Undefined();
      if (!call.Charge(CountText(text, *separator) * kElementWork)) return Value::Undefined();
    } else if (!call.Charge(text.size() * kNodeWork)) {  // its characters are listed
      return Value::Undefined();
    }
    const std::vector<std::string> parts = separator.has_value() ? SplitBy(text, *separator, limit, name == "rsplit")
                                                                 : SplitAtSpace(text, limit, name == "rsplit");
    List items;
    for (const std::string& part : parts) items.push_back(Value::Of(part));
    return call.Make(std::move(items));
  }
  if (name == "splitlines") {
    if (!call.Charge(text.size() * kNodeWork)) return Value::Undefined();
    List items;
    for (std::string& line : SplitLines(text)) items.push_back(Value::Of(std::move(line)));
    return call.Make(std::move(items));
  }
  if (name == "startswith") {
    return Value::Of(AnyAffix(call, [&text](const std::string& affix) { return text.starts_with(affix); }));
  }
  if (name == "endswith") {
    return Value::Of(AnyAffix(call, [&text](const std::string& affix) { return text.ends_with(affix); }));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string affix = call.RequireString(0, nullptr);
    if (name == "removeprefix" && text.starts_with(affix)) return call.Text(text.substr(affix.size()));
    if (name == "removesuffix" && text.ends_with(affix)) return call.Text(text.substr(0, text.size() - affix.size()));
    return call.Text(text);
  }
  if (name == "upper") return call.Text(Upper(text));
  if (name == "lower") return call.Text(Lower(text));
  if (name == "title") return call.Text(TitleMethod(text));
  if (name == "capitalize") return call.Text(Capitalize(text));
  if (name == "replace") {
    const std::string from = call.RequireString(0, "old");
    const std::string to = call.RequireString(1, "new");
    return call.Replaced(text, from, to, call.Integer(2, "count", -1));
  }
  if (name == "find" || name == "rfind") {
    const std::string part = call.RequireString(0, nullptr);
    if (name == "rfind" && !call.ChargePairs(text, part)) return Value::Undefined();
    const size_t at = name == "find" ? FindText(text, part) : text.rfind(part);
    if (at == text.npos) return Value::Of(int64_t{-1});
    return Value::Of(static_cast<int64_t>(Characters(std::string_view(text).substr(0, at)).size()));
  }
  if (name == "count") {
    const std::string part = call.RequireString(0, nullptr);
    if (part.empty()) return Value::Of(static_cast<int64_t>(Characters(text).size() + 1));
    return Value::Of(static_cast<int64_t>(CountText(text, part)));
  }
  if (name == "join") {
    List items;
    if (!call.Items(call.Require(0, nullptr), &items)) return Value::Undefined();
    std::string joined;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].string() == nullptr) return call.Fail(fmt::format("join cannot join {}", items[i].type_name()));
      if (!call.Charge(text.size() + items[i].weight())) return Value::Undefined();
      if (i > 0) joined += text;
      joined += *items[i].string();
    }
    return call.Text(std::move(joined));
  }
  // isdigit
  const bool digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return Value::Of(digits && !text.empty());
}

Value DictMethod(const Call& call, const Entries& entries, const std::string& name) {
  if (!call.Charge(entries.size())) return Value::Undefined();
  if (name == "get") {
    const std::string key = call.RequireString(0, nullptr);
    const Value* value = FindEntry(entries, key);
    const Value fallback = call.args->Get(1, nullptr).value_or(Value::None());
    return value == nullptr ? fallback : *value;
  }
  if (name == "items") return DictItems(call, entries);
  List items;
  for (const auto& [key, value] : entries) items.push_back(name == "keys" ? Value::Of(key) : value);
  return call.Make(std::move(items));
}

constexpr std::string_view kStringMethods[] = {"strip",      "lstrip",     "rstrip",   "split",        "rsplit",
                                               "splitlines", "startswith", "endswith", "upper",        "lower",
                                               "title",      "capitalize", "replace",  "find",         "rfind",
                                               "count",      "join",       "isdigit",  "removeprefix", "removesuffix"};
constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values"};

Value LoopAttribute(const LoopState& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value::Of(index + 1);
  if (name == "index0") return Value::Of(index);
  if (name == "revindex") return Value::Of(length - index);
  if (name == "revindex0") return Value::Of(length - index - 1);
  if (name == "first") return Value::Of(index == 0);
  if (name == "last") return Value::Of(index + 1 == length);
  if (name == "length") return Value::Of(length);
  if (name == "depth") return Value::Of(int64_t{loop.depth});
  if (name == "depth0") return Value::Of(int64_t{loop.depth - 1});
  if (name == "previtem" && index > 0) return loop.items[loop.index - 1];
  if (name == "nextitem" && index + 1 < length) return loop.items[loop.index + 1];
  return Value::Undefined(fmt::format("loop.{}", name));
}

}  // namespace

Value ApplyFilter(Context* context, int line, const std::string& name, const Value& input, Args* args) {
  const Call call{context, line, fmt::format("the filter '{}'", name), args};
  Value result = Filter(call, name, input);
  args->CheckAllUsed(context, line, call.callee);
  return result;
}

bool ApplyTest(Context* context, int line, const std::string& name, const Value& value, Args* args) {
  const Call call{context, line, fmt::format("the test '{}'", name), args};
  const bool result = Test(call, name, value);
  args->CheckAllUsed(context, line, call.callee);
  return result;
}

bool IsMethod(const Value& object, std::string_view name) {
  const auto has = [name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (object.string() != nullptr && has(kStringMethods)) || (object.dict() != nullptr && has(kDictMethods)) ||
         (object.loop() != nullptr && name == "cycle");
}

Value CallMethod(Context* context, int line, const Value& object, const std::string& name, Args* args) {
  const Call call{context, line, fmt::format("the method '{}'", name), args};
  Value result;
  if (object.string() != nullptr) {
    result = StringMethod(call, *object.string(), name);
  } else if (object.dict() != nullptr) {
    result = DictMethod(call, *object.dict(), name);
  } else {  // loop.cycle
    Args choices = args->Rest(0);
    const size_t count = choices.positional().size();
    if (count == 0) return call.Fail("loop.cycle needs something to choose from");
    result = choices.positional()[object.loop()->index % count];
  }
  args->CheckAllUsed(context, line, call.callee);
  return result;
}

Value CallFunction(Context* context, int line, Function function, Args* args) {
  static constexpr const char* kNames[] = {"range", "namespace", "dict", "raise_exception", "strftime_now"};
  const Call call{context, line, fmt::format("the function '{}'", kNames[static_cast<size_t>(function)]), args};
  Value result;
  switch (function) {
    case Function::kRange: {
      const int64_t first = call.Integer(0, nullptr, 0);
      const std::optional<Value> second = call.args->Get(1, nullptr);
      const int64_t begin = second.has_value() ? first : 0;
      const int64_t end = second.has_value() ? call.Integer(1, nullptr, 0) : first;
      const int64_t step = call.Integer(2, nullptr, 1);
      if (step == 0) return call.Fail("range needs a step that is not 0");
      call.Require(0, nullptr);
      List items;
      for (int64_t i = begin; step > 0 ? i < end : i > end;) {
        if (!call.Charge(kElementWork)) return Value::Undefined();
        items.push_back(Value::Of(i));
        if (__builtin_add_overflow(i, step, &i)) break;
      }
      result = call.Make(std::move(items));
      break;
    }
    case Function::kNamespace:
    case Function::kDict: {
      Args given = args->Rest(1);
      const std::optional<Value> base = args->Get(0, nullptr);
      Entries entries;
      if (base.has_value()) {
        if (base->dict() == nullptr)
          return call.Fail(fmt::format("{} needs a dict, not {}", call.callee, base->type_name()));
        entries = *base->dict();
      }
      if (!call.Charge(given.named().size() * (entries.size() + given.named().size()))) return Value::Undefined();
      for (auto& [name, value] : given.named()) {
        const auto same =
            std::find_if(entries.begin(), entries.end(), [&key = name](const auto& e) { return e.first == key; });
        if (same == entries.end()) {
          entries.emplace_back(name, value);
        } else {
          same->second = value;
        }
      }
      const Value dict = context->MakeDict(line, std::move(entries));
      if (function == Function::kDict || dict.dict() == nullptr) {
        result = dict;
      } else {
        result = Value::Of(std::make_shared<NamespaceState>(NamespaceState{*dict.dict()}));
      }
      break;
    }
    case Function::kRaiseException:
      return call.Fail(fmt::format("the template refuses: {}", call.AsText(call.Require(0, "message"))));
    case Function::kStrftimeNow: {
      const std::string format = call.RequireString(0, "format");
      const std::time_t now = context->now().value_or(std::time(nullptr));
      std::tm parts{};
      localtime_r(&now, &parts);
      char text[256];
      const size_t size = std::strftime(text, sizeof(text), format.c_str(), &parts);
      if (size == 0 && !format.empty()) return call.Fail("strftime_now was given a format that it cannot print");
      result = call.Text(std::string(text, size));
      break;
    }
  }
  args->CheckAllUsed(context, line, call.callee);
  return result;
}

Value GetAttribute(Context* context, int line, const Value& object, const std::string& name) {
  if (object.is_undefined()) return context->Fail(line, fmt::format("'{}' is undefined", object.undefined_name()));
  const Entries* entries = object.dict();
  if (object.space() != nullptr) entries = &object.space()->entries;
  if (entries != nullptr) {
    if (!context->Charge(line, entries->size())) return Value::Undefined();
    if (object.dict() != nullptr && IsMethod(object, name)) {
      return context->Unsupported(line,
                                  fmt::format("the method '{0}' without a call (write ['{0}'] for the entry)", name));
    }
    const Value* value = FindEntry(*entries, name);
    return value == nullptr ? Value::Undefined(name) : *value;
  }
  if (object.loop() != nullptr) return LoopAttribute(*object.loop(), name);
  return Value::Undefined(fmt::format("{} of {}", name, object.type_name()));
}

Value GetItem(Context* context, int line, const Value& object, const Value& index) {
  if (object.is_undefined()) return context->Fail(line, fmt::format("'{}' is undefined", object.undefined_name()));
  if (const std::string* key = index.string()) {
    if (!context->Charge(line, key->size())) return Value::Undefined();
    if (object.dict() == nullptr) return GetAttribute(context, line, object, *key);
    if (!context->Charge(line, object.dict()->size())) return Value::Undefined();
    const Value* value = FindEntry(*object.dict(), *key);
    return value == nullptr ? Value::Undefined(*key) : *value;
  }
  if (!index.integer().has_value()) return Value::Undefined(fmt::format("item of type {}", index.type_name()));
  const auto place = [&index](size_t size) {
    const int64_t at = *index.integer() < 0 ? *index.integer() + static_cast<int64_t>(size) : *index.integer();
    return at >= 0 && at < static_cast<int64_t>(size) ? std::optional(static_cast<size_t>(at)) : std::nullopt;
  };
  if (const List* list = object.list()) {
    if (const std::optional<size_t> at = place(list->size())) return (*list)[*at];
  } else if (const std::string* text = object.string()) {
    if (!context->Charge(line, text->size())) return Value::Undefined();
    const std::vector<std::string_view> characters = Characters(*text);
    if (const std::optional<size_t> at = place(characters.size())) return Value::Of(std::string(characters[*at]));
  }
  return Value::Undefined(fmt::format("item {}", *index.integer()));
}

bool GetItems(Context* context, int line, const Value& value, List* items) {
  if (const List* list = value.list()) {
    if (context->Charge(line, list->size() * kElementWork)) *items = *list;
  } else if (const Entries* entries = value.dict()) {
    if (!context->Charge(line, entries->size() * kElementWork)) return false;
    for (const auto& entry : *entries) items->push_back(Value::Of(entry.first));
  } else if (const std::string* text = value.string()) {
    if (!context->Charge(line, text->size() * kElementWork)) return false;
    for (std::string_view character : Characters(*text)) items->push_back(Value::Of(std::string(character)));
  } else if (!value.is_undefined()) {
    context->Fail(line, fmt::format("a value of type {} cannot be iterated over", value.type_name()));
  }
  return !context->failed();
}

bool Contains(Context* context, int line, const Value& haystack, const Value& needle) {
  if (const std::string* text = haystack.string()) {
    if (needle.string() == nullptr) {
      context->Fail(line, fmt::format("'in' a string needs a string, not {}", needle.type_name()));
      return false;
    }
    return context->Charge(line, text->size()) && FindText(*text, *needle.string()) != text->npos;
  }
  if (const List* list = haystack.list()) {
    for (const Value& item : *list) {
      if (!context->Charge(line, 1 + std::min(item.weight(), needle.weight()))) return false;
      if (Equal(item, needle)) return true;
    }
    return false;
  }
  if (const Entries* entries = haystack.dict()) {
    if (!context->Charge(line, entries->size())) return false;
    return needle.string() != nullptr && FindEntry(*entries, *needle.string()) != nullptr;
  }
  if (!haystack.is_undefined()) context->Fail(line, fmt::format("'in' does not work on {}", haystack.type_name()));
  return false;
}

}  // namespace octet::jinja
