// Values of the template language, with Python's meaning of truth, equality, printing and JSON.
// Containers are immutable, so values can share them; a namespace is the one thing that a template can change.
// Reference: the Python language reference, "Data model"; Python's json module.
#ifndef OCTET_CORE_TEXT_JINJA_VALUE_H_
#define OCTET_CORE_TEXT_JINJA_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace octet::jinja {

class Value;
struct Stmt;

using List = std::vector<Value>;
using Entries = std::vector<std::pair<std::string, Value>>;  // of a dict, in order of insertion

enum class Function { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

struct LoopState;  // of a running for loop; see jinja_builtins.h
struct NamespaceState;

// Cheap to copy. Not shared between threads while a template runs.
class Value {
 public:
  // `name`: what was looked up and not found.
  static Value Undefined(std::string name = {}) { return Value(UndefinedState{std::move(name)}); }
  static Value None() { return Value(NoneState{}); }
  static Value Of(bool value) { return Value(value); }
  static Value Of(int64_t value) { return Value(value); }
  static Value Of(double value) { return Value(value); }
  static Value Of(std::string value) { return Value(std::make_shared<const std::string>(std::move(value))); }
  static Value Of(List items);
  static Value Of(Entries entries);
  static Value Of(std::shared_ptr<NamespaceState> value) { return Value(std::move(value)); }
  static Value Of(std::shared_ptr<const LoopState> value) { return Value(std::move(value)); }
  static Value Of(const Stmt* macro) { return Value(macro); }
  static Value Of(Function value) { return Value(value); }

  Value() : Value(UndefinedState{}) {}

  bool is_undefined() const { return std::holds_alternative<UndefinedState>(data_); }
  bool is_none() const { return std::holds_alternative<NoneState>(data_); }
  // The content, or nothing when the value is of another type. Views and pointers live as long as the value.
  std::optional<bool> boolean() const { return Copy<bool>(); }
  std::optional<int64_t> integer() const { return Copy<int64_t>(); }
  std::optional<double> number() const;  // of an int or a float
  bool is_float() const { return std::holds_alternative<double>(data_); }
  const std::string* string() const;
  const List* list() const;
  const Entries* dict() const;
  NamespaceState* space() const;
  const LoopState* loop() const;
  const Stmt* macro() const;
  std::optional<Function> function() const { return Copy<Function>(); }
  const std::string& undefined_name() const { return std::get<UndefinedState>(data_).name; }
  bool is_callable() const { return macro() != nullptr || function().has_value(); }

  const char* type_name() const;
  bool truthy() const;
  // Containers inside one another; 0 for everything else.
  int depth() const;
  // Bytes and elements of everything inside, counting what is shared as often as it is reached.
  uint64_t weight() const;

 private:
  struct UndefinedState {
    std::string name;
  };
  struct NoneState {};
  struct ListState {
    List items;
    int depth;
    uint64_t weight;
  };
  struct DictState {
    Entries entries;
    int depth;
    uint64_t weight;
  };
  using Data = std::variant<UndefinedState, NoneState, bool, int64_t, double, std::shared_ptr<const std::string>,
                            std::shared_ptr<const ListState>, std::shared_ptr<const DictState>,
                            std::shared_ptr<NamespaceState>, std::shared_ptr<const LoopState>, const Stmt*, Function>;

  template <typename T>
  explicit Value(T data) : data_(std::move(data)) {}
  template <typename T>
  std::optional<T> Copy() const {
    const T* value = std::get_if<T>(&data_);
    return value == nullptr ? std::nullopt : std::optional<T>(*value);
  }

  Data data_;
};

struct NamespaceState {
  Entries entries;
};

// nullptr when there is no such key.
const Value* FindEntry(const Entries& entries, std::string_view key);

bool Equal(const Value& a, const Value& b);
// Negative, 0, positive; nothing when the two have no order.
std::optional<int> Order(const Value& a, const Value& b);

std::string ToText(const Value& value);  // Python's str()

struct JsonStyle {
  std::optional<int> indent;
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Python's json.dumps(). False when something inside has no JSON form.
bool AppendJson(const Value& value, const JsonStyle& style, std::string* out);

// Characters of a text as views; a byte that is not UTF-8 counts as one.
std::vector<std::string_view> Characters(std::string_view text);
uint32_t CodePoint(std::string_view character);
bool IsSpace(uint32_t code);  // Python's str.isspace()

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_VALUE_H_
