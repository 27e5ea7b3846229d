// One call of a filter, test, method or function of the template language, and what all of them do alike: take
// arguments, charge for work, make values, fail.
#ifndef OCTET_CORE_TEXT_JINJA_CALL_H_
#define OCTET_CORE_TEXT_JINJA_CALL_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_context.h"
#include "core/text/jinja_strings.h"
#include "core/text/jinja_value.h"
#include "fmt/format.h"

namespace octet::jinja {

// Where it stands, what it is called and what it was given. Borrows; lives as long as the call.
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

inline Value DictItems(const Call& call, const Entries& entries) {
  List items;
  if (!call.Charge(entries.size() * 3 * kElementWork)) return Value::Undefined();
  for (const auto& [key, value] : entries) items.push_back(Value::Of(List{Value::Of(key), value}));
  return call.Make(std::move(items));
}

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_CALL_H_
