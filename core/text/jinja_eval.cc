#include "core/text/jinja_eval.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "core/text/jinja_builtins.h"
#include "core/text/jinja_context.h"
#include "fmt/format.h"

namespace octet::jinja {
namespace {

enum class Flow { kNext, kBreak, kContinue };

struct Scope {
  const Scope* parent;
  Entries names;

  void Set(const std::string& name, Value value) {
    for (auto& entry : names) {
      if (entry.first == name) {
        entry.second = std::move(value);
        return;
      }
    }
    names.emplace_back(name, std::move(value));
  }
};

class Interpreter {
 public:
  Interpreter(const Entries& globals, std::optional<std::time_t> now, uint64_t max_work)
      : context_(now, max_work), global_{nullptr, globals} {}

  absl::StatusOr<std::string> Run(const Body& body) {
    std::string out;
    out_ = &out;
    scope_ = &global_;
    Exec(body);
    if (context_.failed()) return context_.status();
    return out;
  }

 private:
  Value Fail(int line, const std::string& message) { return context_.Fail(line, message); }

  // Bounds the recursion that macros add to the tree's own depth.
  class Level {
   public:
    Level(Interpreter* run, int line) : run_(run) {
      if (++run_->level_ > kMaxCallDepth) run_->Fail(line, "the calls are nested too deep");
      run_->context_.Charge(line, kNodeWork);
    }
    ~Level() { --run_->level_; }

   private:
    Interpreter* run_;
  };

  void Write(int line, const std::string& text) {
    if (!context_.Charge(line, text.size())) return;
    if (text.size() > kMaxOutputBytes - std::min(kMaxOutputBytes, out_->size())) {
      Fail(line, fmt::format("the template writes more than {} MiB", kMaxOutputBytes >> 20));
      return;
    }
    *out_ += text;
  }
  std::string Text(int line, const Value& value) {
    return context_.Charge(line, value.weight()) ? ToText(value) : std::string();
  }

  Flow Exec(const Body& body) {
    for (const auto& stmt : body) {
      const Flow flow = Exec(*stmt);
      if (flow != Flow::kNext || context_.failed()) return flow;
    }
    return Flow::kNext;
  }

  Flow Exec(const Stmt& stmt) {
    Level level(this, stmt.line);
    if (context_.failed()) return Flow::kNext;
    switch (stmt.kind) {
      case Stmt::Kind::kText:
        Write(stmt.line, stmt.text);
        break;
      case Stmt::Kind::kOutput:
        Output(stmt);
        break;
      case Stmt::Kind::kFor:
        For(stmt);
        break;
      case Stmt::Kind::kIf:
        for (size_t i = 0; i < stmt.exprs.size(); ++i) {
          if (stmt.exprs[i] == nullptr || Eval(*stmt.exprs[i]).truthy()) return Exec(stmt.bodies[i]);
        }
        break;
      case Stmt::Kind::kSet:
        Assign(stmt.line, stmt.targets, Eval(*stmt.exprs[0]));
        break;
      case Stmt::Kind::kSetBlock:
        SetBlock(stmt);
        break;
      case Stmt::Kind::kMacro:
        Set(stmt.line, scope_, stmt.text, Value::Of(&stmt));
        break;
      case Stmt::Kind::kScope:
        return InScope(stmt.bodies[0]);
      case Stmt::Kind::kBreak:
        return Flow::kBreak;
      case Stmt::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  void Output(const Stmt& stmt) {
    const Value value = Eval(*stmt.exprs[0]);
    if (!context_.failed()) Write(stmt.line, Text(stmt.line, value));
  }

  Flow InScope(const Body& body) {
    Scope scope{scope_, {}};
    Scope* const outer = std::exchange(scope_, &scope);
    const Flow flow = Exec(body);
    scope_ = outer;
    return flow;
  }

  // What the body writes, in a scope of its own.
  std::string Capture(const Body& body, Scope* scope) {
    std::string text;
    std::string* const out = std::exchange(out_, &text);
    Scope* const outer = std::exchange(scope_, scope);
    Exec(body);
    scope_ = outer;
    out_ = out;
    return text;
  }

  void SetBlock(const Stmt& stmt) {
    Scope scope{scope_, {}};
    Value value = context_.MakeString(stmt.line, Capture(stmt.bodies[0], &scope));
    if (stmt.exprs[0] != nullptr) {
      Scope filter_scope{scope_, {{stmt.text, value}}};
      Scope* const outer = std::exchange(scope_, &filter_scope);
      value = Eval(*stmt.exprs[0]);
      scope_ = outer;
    }
    Assign(stmt.line, stmt.targets, std::move(value));
  }

  void For(const Stmt& stmt) {
    List items;
    if (!GetItems(&context_, stmt.line, Eval(*stmt.exprs[0]), &items)) return;
    if (stmt.exprs[1] != nullptr) {
      std::erase_if(items, [&](const Value& item) {
        Scope scope{scope_, {}};
        Scope* const outer = std::exchange(scope_, &scope);
        Assign(stmt.line, stmt.targets, item);
        const bool keep = !context_.failed() && Eval(*stmt.exprs[1]).truthy();
        scope_ = outer;
        return !keep;
      });
    }
    if (items.empty() && !context_.failed()) InScope(stmt.bodies[1]);
    const auto loop = std::make_shared<LoopState>();
    loop->items = std::move(items);
    loop->depth = ++loops_;
    for (; loop->index < loop->items.size() && !context_.failed(); ++loop->index) {
      if (!context_.Charge(stmt.line, kNodeWork)) break;
      Scope scope{scope_, {{"loop", Value::Of(std::shared_ptr<const LoopState>(loop))}}};
      Scope* const outer = std::exchange(scope_, &scope);
      Assign(stmt.line, stmt.targets, loop->items[loop->index]);
      const Flow flow = Exec(stmt.bodies[0]);
      scope_ = outer;
      if (flow == Flow::kBreak) break;
    }
    --loops_;
  }

  void Assign(int line, const std::vector<std::string>& targets, const Value& value) {
    if (context_.failed()) return;
    if (targets.size() == 1) return AssignOne(line, targets[0], value);
    List items;
    if (!GetItems(&context_, line, value, &items)) return;
    if (items.size() != targets.size()) {
      Fail(line, fmt::format("{} values for {} names", items.size(), targets.size()));
      return;
    }
    for (size_t i = 0; i < targets.size(); ++i) AssignOne(line, targets[i], items[i]);
  }

  void AssignOne(int line, const std::string& target, const Value& value) {
    const size_t dot = target.find('.');
    if (dot == target.npos) return Set(line, scope_, target, value);
    const Value object = Lookup(line, target.substr(0, dot));
    if (object.space() == nullptr) {
      Fail(line, fmt::format("'{}' is not a namespace, so '{}' cannot be set", target.substr(0, dot), target));
      return;
    }
    if (value.space() != nullptr) {
      Fail(line, "a namespace cannot be put into a list, a dict or a namespace");
      return;
    }
    Scope fields{nullptr, std::move(object.space()->entries)};
    Set(line, &fields, target.substr(dot + 1), value);
    object.space()->entries = std::move(fields.names);
  }

  // Names are searched one by one, which a template with many of them pays for.
  void Set(int line, Scope* scope, const std::string& name, const Value& value) {
    if (context_.Charge(line, scope->names.size())) scope->Set(name, value);
  }

  Value Lookup(int line, const std::string& name) {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      if (!context_.Charge(line, 1 + scope->names.size())) return Value::Undefined();
      if (const Value* value = FindEntry(scope->names, name)) return *value;
    }
    static constexpr std::pair<const char*, Function> kFunctions[] = {{"range", Function::kRange},
                                                                      {"namespace", Function::kNamespace},
                                                                      {"dict", Function::kDict},
                                                                      {"raise_exception", Function::kRaiseException},
                                                                      {"strftime_now", Function::kStrftimeNow}};
    for (const auto& [known, function] : kFunctions) {
      if (name == known) return Value::Of(function);
    }
    return Value::Undefined(name);
  }

  Value Eval(const Expr& expr) {
    Level level(this, expr.line);
    if (context_.failed()) return Value::Undefined();
    switch (expr.kind) {
      case Expr::Kind::kConstant:
        return expr.constant;
      case Expr::Kind::kName:
        return Lookup(expr.line, expr.text);
      case Expr::Kind::kList:
        return context_.MakeList(expr.line, EvalAll(expr));
      case Expr::Kind::kDict:
        return Dict(expr);
      case Expr::Kind::kNegate:
      case Expr::Kind::kPlus:
        return Sign(expr);
      case Expr::Kind::kNot:
        return Value::Of(!Eval(*expr.children[0]).truthy());
      case Expr::Kind::kAnd:
      case Expr::Kind::kOr:
        return Logic(expr);
      case Expr::Kind::kBinary:
        return Binary(expr);
      case Expr::Kind::kConcat:
        return Concat(expr);
      case Expr::Kind::kCompare:
        return Compare(expr);
      case Expr::Kind::kCondition:
        if (Eval(*expr.children[1]).truthy()) return Eval(*expr.children[0]);
        return expr.children[2] == nullptr ? Value::Undefined() : Eval(*expr.children[2]);
      case Expr::Kind::kAttribute:
        return Attribute(expr);
      case Expr::Kind::kItem:
        return Item(expr);
      case Expr::Kind::kSlice:
        return Slice(expr);
      case Expr::Kind::kCall:
        return Call(expr);
      case Expr::Kind::kFilter:
        return Filter(expr);
      case Expr::Kind::kTest:
        return Test(expr);
    }
    return Value::Undefined();
  }

  List EvalAll(const Expr& expr) {
    List values;
    for (const ExprPtr& child : expr.children) values.push_back(Eval(*child));
    return values;
  }

  Value Dict(const Expr& expr) {
    Scope entries{nullptr, {}};  // a later equal key replaces an earlier one
    for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
      const Value key = Eval(*expr.children[i]);
      if (key.string() == nullptr) {
        return context_.Unsupported(expr.line,
                                    fmt::format("a dict key of type {}, which is no string,", key.type_name()));
      }
      Set(expr.line, &entries, *key.string(), Eval(*expr.children[i + 1]));
      if (context_.failed()) return Value::Undefined();
    }
    return context_.MakeDict(expr.line, std::move(entries.names));
  }

  Value Sign(const Expr& expr) {
    const Value value = Eval(*expr.children[0]);
    const bool negate = expr.kind == Expr::Kind::kNegate;
    if (const std::optional<int64_t> integer = value.integer()) {
      if (negate && *integer == std::numeric_limits<int64_t>::min()) return Fail(expr.line, "the number is too large");
      return Value::Of(negate ? -*integer : *integer);
    }
    if (value.is_float()) return Value::Of(negate ? -*value.number() : *value.number());
    return Fail(expr.line, fmt::format("a sign needs a number, not {}", Describe(value)));
  }

  Value Logic(const Expr& expr) {
    Value left = Eval(*expr.children[0]);
    if (left.truthy() == (expr.kind == Expr::Kind::kOr)) return left;
    return Eval(*expr.children[1]);
  }

  Value Concat(const Expr& expr) {
    std::string text;
    for (const ExprPtr& child : expr.children) text += Text(child->line, Eval(*child));
    return context_.MakeString(expr.line, std::move(text));
  }

  Value Compare(const Expr& expr) {
    Value left = Eval(*expr.children[0]);
    for (size_t i = 0; i < expr.operators.size() && !context_.failed(); ++i) {
      Value right = Eval(*expr.children[i + 1]);
      if (!Holds(expr.line, expr.operators[i], left, right)) return Value::Of(false);
      left = std::move(right);
    }
    return Value::Of(true);
  }

  bool Holds(int line, const std::string& op, const Value& left, const Value& right) {
    if (op == "in") return Contains(&context_, line, right, left);
    if (op == "not in") return !Contains(&context_, line, right, left);
    if (!context_.Charge(line, std::min(left.weight(), right.weight()))) return false;
    if (op == "==") return Equal(left, right);
    if (op == "!=") return !Equal(left, right);
    const std::optional<int> order = Order(left, right);
    if (!order.has_value()) {
      Fail(line, fmt::format("'{}' does not compare {} and {}", op, Describe(left), Describe(right)));
      return false;
    }
    if (op == "<") return *order < 0;
    if (op == "<=") return *order <= 0;
    return op == ">" ? *order > 0 : *order >= 0;
  }

  // For messages: the type, or which name was undefined.
  static std::string Describe(const Value& value) {
    if (!value.is_undefined() || value.undefined_name().empty()) return value.type_name();
    return fmt::format("undefined '{}'", value.undefined_name());
  }

  Value Binary(const Expr& expr) {
    const Value left = Eval(*expr.children[0]);
    const Value right = Eval(*expr.children[1]);
    if (context_.failed()) return Value::Undefined();
    const std::string& op = expr.text;
    if (left.integer().has_value() && right.integer().has_value()) {
      return IntegerOperation(expr.line, op, *left.integer(), *right.integer());
    }
    if (left.number().has_value() && right.number().has_value()) {
      return FloatOperation(expr.line, op, *left.number(), *right.number());
    }
    if (op == "+" && left.string() != nullptr && right.string() != nullptr) {
      if (!context_.Charge(expr.line, left.weight() + right.weight())) return Value::Undefined();
      return Value::Of(*left.string() + *right.string());
    }
    if (op == "+" && left.list() != nullptr && right.list() != nullptr) {
      if (!context_.Charge(expr.line, (left.list()->size() + right.list()->size()) * kElementWork)) return {};
      List items = *left.list();
      items.insert(items.end(), right.list()->begin(), right.list()->end());
      return context_.MakeList(expr.line, std::move(items));
    }
    if (op == "*" && left.string() != nullptr && right.integer().has_value()) {
      return Repeat(expr.line, *left.string(), *right.integer());
    }
    if (op == "*" && right.string() != nullptr && left.integer().has_value()) {
      return Repeat(expr.line, *right.string(), *left.integer());
    }
    return Fail(expr.line, fmt::format("'{}' does not work on {} and {}", op, Describe(left), Describe(right)));
  }

  Value Repeat(int line, const std::string& text, int64_t times) {
    if (times <= 0 || text.empty()) return Value::Of(std::string());
    const uint64_t work =
        static_cast<uint64_t>(times) > kMaxWork ? kMaxWork + 1 : text.size() * static_cast<uint64_t>(times);
    if (!context_.Charge(line, work)) return Value::Undefined();
    std::string repeated;
    for (int64_t i = 0; i < times; ++i) repeated += text;
    return Value::Of(std::move(repeated));
  }

  Value IntegerOperation(int line, const std::string& op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
      overflow = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (op == "**") {
      if (b < 0) return FloatOperation(line, op, static_cast<double>(a), static_cast<double>(b));
      result = 1;
      // Every base but 0, 1 and -1 overflows within 64 steps; those three repeat with period 2.
      for (int64_t i = 0; i < (b > 64 ? 64 + b % 2 : b) && !overflow; ++i) {
        overflow = __builtin_mul_overflow(result, a, &result);
      }
    } else {
      if (b == 0) return Fail(line, "division by zero");
      if (op == "/") return Value::Of(static_cast<double>(a) / static_cast<double>(b));
      if (b == -1) {  // the one quotient that overflows
        if (op == "%") return Value::Of(int64_t{0});
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
      } else {
        const bool round_down = a % b != 0 && (a < 0) != (b < 0);
        result = op == "%" ? a % b + (round_down ? b : 0) : a / b - (round_down ? 1 : 0);
      }
    }
    return overflow ? Fail(line, "the number is too large") : Value::Of(result);
  }

  Value FloatOperation(int line, const std::string& op, double a, double b) {
    if (op == "+") return Value::Of(a + b);
    if (op == "-") return Value::Of(a - b);
    if (op == "*") return Value::Of(a * b);
    if (op == "**") return Value::Of(std::pow(a, b));
    if (b == 0) return Fail(line, "division by zero");
    if (op == "/") return Value::Of(a / b);
    double remainder = std::fmod(a, b);
    if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
    return Value::Of(op == "%" ? remainder : std::round((a - remainder) / b));
  }

  Value Attribute(const Expr& expr) { return GetAttribute(&context_, expr.line, Eval(*expr.children[0]), expr.text); }

  Value Item(const Expr& expr) {
    const Value object = Eval(*expr.children[0]);
    return GetItem(&context_, expr.line, object, Eval(*expr.children[1]));
  }

  Value Slice(const Expr& expr) {
    const Value object = Eval(*expr.children[0]);
    std::optional<int64_t> parts[3];
    for (size_t i = 0; i < 3; ++i) {
      if (expr.children[i + 1] == nullptr) continue;
      const Value part = Eval(*expr.children[i + 1]);
      if (part.is_none()) continue;
      if (!part.integer().has_value())
        return Fail(expr.line, fmt::format("a slice needs ints, not {}", Describe(part)));
      parts[i] = part.integer();
    }
    const int64_t step = parts[2].value_or(1);
    if (step == 0) return Fail(expr.line, "a slice needs a step that is not 0");
    if (object.list() == nullptr && object.string() == nullptr) {
      return Fail(expr.line, fmt::format("a slice needs a list or a string, not {}", Describe(object)));
    }
    List items;
    if (!GetItems(&context_, expr.line, object, &items)) return Value::Undefined();
    const auto size = static_cast<int64_t>(items.size());
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? size : size - 1;
    const auto bound = [&](std::optional<int64_t> given, int64_t absent) {
      if (!given.has_value()) return absent;
      return std::clamp(*given < 0 ? std::max(*given, -size - 1) + size : *given, low, high);
    };
    const int64_t begin = bound(parts[0], step > 0 ? low : high);
    const int64_t end = bound(parts[1], step > 0 ? high : low);
    List kept;
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
      kept.push_back(items[static_cast<size_t>(i)]);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (object.list() != nullptr) return context_.MakeList(expr.line, std::move(kept));
    std::string text;
    for (const Value& item : kept) text += *item.string();
    return context_.MakeString(expr.line, std::move(text));
  }

  // The arguments of a call, filter or test: children[1..] and named.
  Args Arguments(const Expr& expr) {
    Args args;
    for (size_t i = 1; i < expr.children.size(); ++i) args.Add(Eval(*expr.children[i]));
    for (const auto& [name, value] : expr.named) args.Add(name, Eval(*value));
    // Each is looked for among the others.
    context_.Charge(expr.line, expr.named.size() * expr.named.size());
    return args;
  }

  Value Filter(const Expr& expr) {
    const Value input = Eval(*expr.children[0]);
    Args args = Arguments(expr);
    return context_.failed() ? Value() : ApplyFilter(&context_, expr.line, expr.text, input, &args);
  }

  Value Test(const Expr& expr) {
    const Value value = Eval(*expr.children[0]);
    Args args = Arguments(expr);
    return context_.failed() ? Value() : Value::Of(ApplyTest(&context_, expr.line, expr.text, value, &args));
  }

  Value Call(const Expr& expr) {
    const Expr& target = *expr.children[0];
    Value callee;
    if (target.kind == Expr::Kind::kAttribute) {
      const Value object = Eval(*target.children[0]);
      if (IsMethod(object, target.text)) {
        Args args = Arguments(expr);
        return context_.failed() ? Value() : CallMethod(&context_, expr.line, object, target.text, &args);
      }
      callee = GetAttribute(&context_, target.line, object, target.text);
      if (!context_.failed() && !callee.is_callable()) {
        return context_.Unsupported(expr.line, fmt::format("the method '{}' of {}", target.text, object.type_name()));
      }
    } else {
      callee = Eval(target);
    }
    Args args = Arguments(expr);
    if (context_.failed()) return Value::Undefined();
    if (const Stmt* macro = callee.macro()) return CallMacro(expr.line, *macro, &args);
    if (const std::optional<Function> function = callee.function()) {
      return CallFunction(&context_, expr.line, *function, &args);
    }
    return Fail(expr.line, fmt::format("{} cannot be called", Describe(callee)));
  }

  // A macro sees its arguments and the template's own names, not those of the caller.
  Value CallMacro(int line, const Stmt& macro, Args* args) {
    Scope scope{&global_, {}};
    if (!context_.Charge(line, macro.parameters.size() * (macro.parameters.size() + args->size()))) return {};
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, fallback] = macro.parameters[i];
      std::optional<Value> value = args->Get(i, name.c_str());
      if (!value.has_value() && fallback != nullptr) {
        Scope* const outer = std::exchange(scope_, &scope);
        value = Eval(*fallback);
        scope_ = outer;
      }
      scope.Set(name, value.value_or(Value::Undefined(name)));
    }
    args->CheckAllUsed(&context_, line, fmt::format("the macro '{}'", macro.text));
    if (context_.failed()) return Value::Undefined();
    return context_.MakeString(line, Capture(macro.bodies[0], &scope));
  }

  Context context_;
  Scope global_;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  int level_ = 0;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<std::string> Run(const Body& body, const Entries& globals, std::optional<std::time_t> now,
                                uint64_t max_work) {
  return Interpreter(globals, now, std::min(max_work, kMaxWork)).Run(body);
}

}  // namespace octet::jinja
