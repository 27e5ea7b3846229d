// Methods and functions, and what an expression reads out of a value: attributes, items, "in".
#include <algorithm>
#include <ctime>
#include <utility>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_call.h"
#include "core/text/jinja_strings.h"
#include "fmt/format.h"

namespace octet::jinja {
namespace {

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
