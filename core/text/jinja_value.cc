#include "core/text/jinja_value.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/base/utf8.h"
#include "fmt/format.h"

namespace octet::jinja {
namespace {

// Python's repr() of a float: the shortest digits that read back the same, an exponent below 1e-4 and from 1e16 on.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return text;
  char plain[64];
  const auto plain_end = std::to_chars(plain, plain + sizeof(plain), value, std::chars_format::fixed).ptr;
  std::string fixed(plain, plain_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

bool Printable(uint32_t code) {
  if (code == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void AppendRepr(const Value& value, std::string* out);

void AppendStringRepr(std::string_view text, std::string* out) {
  const bool double_quoted = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quoted ? '"' : '\'';
  out->push_back(quote);
  for (std::string_view character : Characters(text)) {
    const uint32_t code = CodePoint(character);
    if (code == static_cast<uint32_t>(quote) || code == '\\') {
      out->push_back('\\');
      *out += character;
    } else if (code == '\n') {
      *out += "\\n";
    } else if (code == '\r') {
      *out += "\\r";
    } else if (code == '\t') {
      *out += "\\t";
    } else if (Printable(code)) {
      *out += character;
    } else if (code < 0x100) {
      *out += fmt::format("\\x{:02x}", code);
    } else if (code < 0x10000) {
      *out += fmt::format("\\u{:04x}", code);
    } else {
      *out += fmt::format("\\U{:08x}", code);
    }
  }
  out->push_back(quote);
}

void AppendText(const Value& value, std::string* out) {
  if (value.is_undefined()) return;
  if (const std::string* text = value.string()) {
    *out += *text;
  } else {
    AppendRepr(value, out);
  }
}

void AppendEntriesRepr(const Entries& entries, std::string* out) {
  out->push_back('{');
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) *out += ", ";
    AppendStringRepr(entries[i].first, out);
    *out += ": ";
    AppendRepr(entries[i].second, out);
  }
  out->push_back('}');
}

void AppendRepr(const Value& value, std::string* out) {
  if (value.is_none()) {
    *out += "None";
  } else if (value.is_undefined()) {
    *out += "Undefined";
  } else if (const std::optional<bool> boolean = value.boolean()) {
    *out += *boolean ? "True" : "False";
  } else if (const std::optional<int64_t> integer = value.integer()) {
    *out += std::to_string(*integer);
  } else if (value.is_float()) {
    *out += FloatText(*value.number());
  } else if (const std::string* text = value.string()) {
    AppendStringRepr(*text, out);
  } else if (const List* list = value.list()) {
    out->push_back('[');
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) *out += ", ";
      AppendRepr((*list)[i], out);
    }
    out->push_back(']');
  } else if (const Entries* entries = value.dict()) {
    AppendEntriesRepr(*entries, out);
  } else {
    *out += fmt::format("<{}>", value.type_name());
  }
}

void AppendJsonString(std::string_view text, bool ensure_ascii, std::string* out) {
  out->push_back('"');
  for (std::string_view character : Characters(text)) {
    const uint32_t code = CodePoint(character);
    switch (code) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      default:
        if (code < 0x20 || (ensure_ascii && code >= 0x7F && code < 0x10000 && code != 0x7F)) {
          *out += fmt::format("\\u{:04x}", code);
        } else if (ensure_ascii && code >= 0x10000) {
          *out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF));
        } else {
          *out += character;
        }
    }
  }
  out->push_back('"');
}

void AppendNewline(const JsonStyle& style, int level, std::string* out) {
  if (!style.indent.has_value()) return;
  out->push_back('\n');
  out->append(static_cast<size_t>(*style.indent) * static_cast<size_t>(level), ' ');
}

bool AppendJsonAt(const Value& value, const JsonStyle& style, int level, std::string* out) {
  if (value.is_none()) {
    *out += "null";
  } else if (const std::optional<bool> boolean = value.boolean()) {
    *out += *boolean ? "true" : "false";
  } else if (const std::optional<int64_t> integer = value.integer()) {
    *out += std::to_string(*integer);
  } else if (const std::optional<double> number = value.number()) {
    *out += std::isnan(*number)   ? "NaN"
            : std::isinf(*number) ? (*number < 0 ? "-Infinity" : "Infinity")
                                  : FloatText(*number);
  } else if (const std::string* text = value.string()) {
    AppendJsonString(*text, style.ensure_ascii, out);
  } else if (const List* list = value.list()) {
    out->push_back('[');
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) *out += style.item_separator;
      AppendNewline(style, level + 1, out);
      if (!AppendJsonAt((*list)[i], style, level + 1, out)) return false;
    }
    if (!list->empty()) AppendNewline(style, level, out);
    out->push_back(']');
  } else if (const Entries* entries = value.dict()) {
    std::vector<const std::pair<std::string, Value>*> order;
    for (const auto& entry : *entries) order.push_back(&entry);
    if (style.sort_keys) {
      std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out->push_back('{');
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) *out += style.item_separator;
      AppendNewline(style, level + 1, out);
      AppendJsonString(order[i]->first, style.ensure_ascii, out);
      *out += style.key_separator;
      if (!AppendJsonAt(order[i]->second, style, level + 1, out)) return false;
    }
    if (!order.empty()) AppendNewline(style, level, out);
    out->push_back('}');
  } else {
    return false;
  }
  return true;
}

uint64_t AddSaturated(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max() : a + b;
}

// A bool counts as the number 0 or 1 in comparisons.
std::optional<double> Numeric(const Value& value) {
  if (const std::optional<bool> boolean = value.boolean()) return *boolean ? 1 : 0;
  return value.number();
}

}  // namespace

Value Value::Of(List items) {
  int depth = 0;
  uint64_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    weight = AddSaturated(weight, item.weight());
  }
  return Value(std::make_shared<const ListState>(ListState{std::move(items), depth + 1, weight}));
}

Value Value::Of(Entries entries) {
  int depth = 0;
  uint64_t weight = 1;
  for (const auto& [key, value] : entries) {
    depth = std::max(depth, value.depth());
    weight = AddSaturated(weight, AddSaturated(key.size(), value.weight()));
  }
  return Value(std::make_shared<const DictState>(DictState{std::move(entries), depth + 1, weight}));
}

std::optional<double> Value::number() const {
  if (const std::optional<int64_t> integer = Copy<int64_t>()) return static_cast<double>(*integer);
  return Copy<double>();
}

const std::string* Value::string() const {
  const auto* value = std::get_if<std::shared_ptr<const std::string>>(&data_);
  return value == nullptr ? nullptr : value->get();
}

const List* Value::list() const {
  const auto* value = std::get_if<std::shared_ptr<const ListState>>(&data_);
  return value == nullptr ? nullptr : &(*value)->items;
}

const Entries* Value::dict() const {
  const auto* value = std::get_if<std::shared_ptr<const DictState>>(&data_);
  return value == nullptr ? nullptr : &(*value)->entries;
}

NamespaceState* Value::space() const {
  const auto* value = std::get_if<std::shared_ptr<NamespaceState>>(&data_);
  return value == nullptr ? nullptr : value->get();
}

const LoopState* Value::loop() const {
  const auto* value = std::get_if<std::shared_ptr<const LoopState>>(&data_);
  return value == nullptr ? nullptr : value->get();
}

const Stmt* Value::macro() const {
  const auto* value = std::get_if<const Stmt*>(&data_);
  return value == nullptr ? nullptr : *value;
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"undefined", "none", "bool",      "int",  "float", "string",
                                           "list",      "dict", "namespace", "loop", "macro", "function"};
  return kNames[data_.index()];
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (const std::optional<bool> value = boolean()) return *value;
  if (const std::optional<double> value = number()) return *value != 0;
  if (const std::string* value = string()) return !value->empty();
  if (const List* value = list()) return !value->empty();
  if (const Entries* value = dict()) return !value->empty();
  return true;
}

int Value::depth() const {
  if (const auto* value = std::get_if<std::shared_ptr<const ListState>>(&data_)) return (*value)->depth;
  if (const auto* value = std::get_if<std::shared_ptr<const DictState>>(&data_)) return (*value)->depth;
  return 0;
}

uint64_t Value::weight() const {
  if (const std::string* value = string()) return value->size() + 1;
  if (const auto* value = std::get_if<std::shared_ptr<const ListState>>(&data_)) return (*value)->weight;
  if (const auto* value = std::get_if<std::shared_ptr<const DictState>>(&data_)) return (*value)->weight;
  return 1;
}

const Value* FindEntry(const Entries& entries, std::string_view key) {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool Equal(const Value& a, const Value& b) {
  const std::optional<double> left = Numeric(a);
  const std::optional<double> right = Numeric(b);
  if (left.has_value() && right.has_value()) {
    if (a.integer().has_value() && b.integer().has_value()) return *a.integer() == *b.integer();
    return *left == *right;
  }
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() == *b.string();
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), Equal);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->size() != b.dict()->size()) return false;
    return std::all_of(a.dict()->begin(), a.dict()->end(), [&b](const auto& entry) {
      const Value* other = FindEntry(*b.dict(), entry.first);
      return other != nullptr && Equal(entry.second, *other);
    });
  }
  if (a.is_none() || a.is_undefined()) return a.is_none() == b.is_none() && a.is_undefined() == b.is_undefined();
  if (a.space() != nullptr) return a.space() == b.space();
  if (a.loop() != nullptr) return a.loop() == b.loop();
  if (a.macro() != nullptr) return a.macro() == b.macro();
  return a.function().has_value() && a.function() == b.function();
}

std::optional<int> Order(const Value& a, const Value& b) {
  const std::optional<double> left = Numeric(a);
  const std::optional<double> right = Numeric(b);
  if (left.has_value() && right.has_value()) {
    if (a.integer().has_value() && b.integer().has_value()) {
      return *a.integer() < *b.integer() ? -1 : *a.integer() > *b.integer() ? 1 : 0;
    }
    if (std::isnan(*left) || std::isnan(*right)) return std::nullopt;
    return *left < *right ? -1 : *left > *right ? 1 : 0;
  }
  // UTF-8 sorts as its code points do.
  if (a.string() != nullptr && b.string() != nullptr) return a.string()->compare(*b.string());
  return std::nullopt;
}

std::string ToText(const Value& value) {
  std::string text;
  AppendText(value, &text);
  return text;
}

bool AppendJson(const Value& value, const JsonStyle& style, std::string* out) {
  return AppendJsonAt(value, style, 0, out);
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    const size_t size = FirstUtf8Char(text).size;
    characters.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return characters;
}

uint32_t CodePoint(std::string_view character) {
  if (FirstUtf8Char(character).kind != Utf8Char::Kind::kValid) return 0xFFFD;
  const auto byte = [character](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(character[i])); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

bool IsSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

}  // namespace octet::jinja
