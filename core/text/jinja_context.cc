#include "core/text/jinja_context.h"

#include <algorithm>

#include "fmt/format.h"

namespace octet::jinja {

Value Context::Fail(int line, const std::string& message) {
  if (!failed()) status_ = absl::InvalidArgumentError(fmt::format("chat template, line {}: {}", line, message));
  return Value::Undefined();
}

Value Context::Unsupported(int line, const std::string& what) {
  if (!failed()) {
    status_ = absl::UnimplementedError(fmt::format("chat template, line {}: {} is not supported", line, what));
  }
  return Value::Undefined();
}

bool Context::Charge(int line, uint64_t work) {
  if (work <= max_work_ - work_) {
    work_ += work;
    return !failed();
  }
  if (!failed()) {
    status_ = absl::ResourceExhaustedError(
        fmt::format("chat template, line {}: the template takes too many steps or too much memory", line));
  }
  return false;
}

bool Context::CheckContent(int line, const Value& value) {
  // Containers are immutable and a namespace is never inside anything, so there are no cycles.
  if (value.space() == nullptr) return true;
  Fail(line, "a namespace cannot be put into a list, a dict or a namespace");
  return false;
}

Value Context::MakeString(int line, std::string text) {
  return Charge(line, text.size()) ? Value::Of(std::move(text)) : Value::Undefined();
}

Value Context::MakeList(int line, List items) {
  if (!Charge(line, items.size() * kElementWork)) return Value::Undefined();
  for (const Value& item : items) {
    if (!CheckContent(line, item)) return Value::Undefined();
  }
  Value list = Value::Of(std::move(items));
  return list.depth() <= kMaxValueDepth ? list
                                        : Fail(line, fmt::format("lists nested more than {} deep", kMaxValueDepth));
}

Value Context::MakeDict(int line, Entries entries) {
  if (!Charge(line, entries.size() * kElementWork)) return Value::Undefined();
  for (const auto& entry : entries) {
    if (!CheckContent(line, entry.second)) return Value::Undefined();
  }
  Value dict = Value::Of(std::move(entries));
  return dict.depth() <= kMaxValueDepth ? dict
                                        : Fail(line, fmt::format("dicts nested more than {} deep", kMaxValueDepth));
}

std::optional<Value> Args::Get(size_t index, const char* name) {
  used_positional_ = std::max(used_positional_, index + 1);
  if (index < positional_.size()) return positional_[index];
  return name == nullptr ? std::nullopt : Named(name);
}

std::optional<Value> Args::Named(const char* name) {
  used_named_.emplace_back(name);
  const Value* value = FindEntry(named_, name);
  return value == nullptr ? std::nullopt : std::optional<Value>(*value);
}

Value Args::Require(Context* context, int line, size_t index, const char* name, const std::string& callee) {
  std::optional<Value> value = Get(index, name);
  if (value.has_value()) return *std::move(value);
  return context->Fail(line, fmt::format("{} needs {} more argument{}", callee, index + 1 - positional_.size(),
                                         index == positional_.size() ? "" : "s"));
}

Args Args::Rest(size_t index) {
  Args rest;
  for (size_t i = index; i < positional_.size(); ++i) rest.Add(positional_[i]);
  for (const auto& [name, value] : named_) {
    rest.Add(name, value);
    used_named_.push_back(name);
  }
  used_positional_ = std::max(used_positional_, positional_.size());
  return rest;
}

void Args::CheckAllUsed(Context* context, int line, const std::string& callee) const {
  if (positional_.size() > used_positional_) {
    context->Fail(line, fmt::format("{} takes at most {} arguments", callee, used_positional_));
  }
  for (const auto& entry : named_) {
    if (std::find(used_named_.begin(), used_named_.end(), entry.first) == used_named_.end()) {
      context->Fail(line, fmt::format("{} does not take the argument '{}'", callee, entry.first));
    }
  }
}

}  // namespace octet::jinja
