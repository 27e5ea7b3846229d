// What every part of a running template needs: the first error, and the budget that bounds a hostile template.
#ifndef OCTET_CORE_TEXT_JINJA_CONTEXT_H_
#define OCTET_CORE_TEXT_JINJA_CONTEXT_H_

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/text/jinja_value.h"

namespace octet::jinja {

// One unit of work is about one byte copied; an evaluated node costs kNodeWork, an element of a list kElementWork.
inline constexpr uint64_t kMaxWork = uint64_t{1} << 27;
inline constexpr uint64_t kNodeWork = 16;
inline constexpr uint64_t kElementWork = 64;
inline constexpr size_t kMaxOutputBytes = size_t{32} << 20;
inline constexpr int kMaxValueDepth = 100;  // lists and dicts inside one another
inline constexpr int kMaxCallDepth = 600;   // evaluations inside one another

// After the first error everything goes on with undefined values until the loops notice; the result is discarded.
class Context {
 public:
  Context(std::optional<std::time_t> now, uint64_t max_work) : now_(now), max_work_(max_work) {}

  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }
  std::optional<std::time_t> now() const { return now_; }

  // Keeps the first message only. Returns an undefined value, for the caller to pass on.
  Value Fail(int line, const std::string& message);
  // The same for what Jinja has and octet has not: Unimplemented instead of InvalidArgument.
  Value Unsupported(int line, const std::string& what);
  // False, after Fail, when the budget is used up.
  bool Charge(int line, uint64_t work);

  // Values that are charged and checked for depth; undefined after Fail.
  Value MakeString(int line, std::string text);
  Value MakeList(int line, List items);
  Value MakeDict(int line, Entries entries);

 private:
  bool CheckContent(int line, const Value& value);

  std::optional<std::time_t> now_;
  uint64_t max_work_;  // at most kMaxWork
  uint64_t work_ = 0;
  absl::Status status_;
};

// Arguments of a filter, test, method or function. What nobody asked for is an error.
class Args {
 public:
  void Add(Value value) { positional_.push_back(std::move(value)); }
  void Add(std::string name, Value value) { named_.emplace_back(std::move(name), std::move(value)); }

  // The argument at a place or of a name, which may be nullptr; nothing when it was not given.
  std::optional<Value> Get(size_t index, const char* name);
  std::optional<Value> Named(const char* name);
  // The same, with Fail when it was not given.
  Value Require(Context* context, int line, size_t index, const char* name, const std::string& callee);
  // Takes everything from `index` on, for a callee that passes it on.
  Args Rest(size_t index);
  // Fails when an argument was never asked for.
  void CheckAllUsed(Context* context, int line, const std::string& callee) const;

  size_t size() const { return positional_.size() + named_.size(); }
  std::vector<Value>& positional() { return positional_; }
  Entries& named() { return named_; }

 private:
  std::vector<Value> positional_;
  Entries named_;
  size_t used_positional_ = 0;  // places below this were asked for
  std::vector<std::string> used_named_;
};

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_CONTEXT_H_
