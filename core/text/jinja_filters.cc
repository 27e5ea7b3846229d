// Filters and tests: "value | name(arguments)" and "value is name(arguments)".
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_call.h"
#include "core/text/jinja_strings.h"
#include "fmt/format.h"

namespace octet::jinja {
namespace {

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

}  // namespace octet::jinja
