#include "core/text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <span>
#include <string>

#include "core/text/jinja_lexer.h"
#include "fmt/format.h"

namespace octet::jinja {
namespace {

using Kind = Token::Kind;

// After the first error every function returns at once with what it has; Run discards it.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Body> Run() {
    Body body = ParseBody({});
    if (!status_.ok()) return status_;
    return body;
  }

 private:
  // Tokens. The last one is kEnd and is never passed.
  const Token& Now() const { return tokens_[at_]; }
  void Next() {
    if (Now().kind != Kind::kEnd) ++at_;
  }
  bool Is(Kind kind) const { return status_.ok() && Now().kind == kind; }
  bool IsOperator(std::string_view text) const { return Is(Kind::kOperator) && Now().text == text; }
  bool IsName(std::string_view text) const { return Is(Kind::kName) && Now().text == text; }
  bool TakeOperator(std::string_view text) {
    if (!IsOperator(text)) return false;
    Next();
    return true;
  }
  bool TakeName(std::string_view text) {
    if (!IsName(text)) return false;
    Next();
    return true;
  }
  void ExpectOperator(std::string_view text) {
    if (!TakeOperator(text)) Unexpected(fmt::format("'{}'", text));
  }
  void ExpectBlockEnd() {
    if (!Is(Kind::kBlockEnd)) return Unexpected("'%}'");
    Next();
  }
  std::string ExpectName() {
    if (!Is(Kind::kName)) {
      Unexpected("a name");
      return {};
    }
    std::string name = Now().text;
    Next();
    return name;
  }

  void Fail(absl::StatusCode code, int line, std::string_view message) {
    if (status_.ok()) status_ = absl::Status(code, fmt::format("chat template, line {}: {}", line, message));
  }
  void Unexpected(std::string_view wanted) {
    static constexpr const char* kNames[] = {"text",     "'{%'", "'%}'", "'{{'", "'}}'",   "",
                                             "a string", "",     "",     "",     "the end"};
    const char* name = kNames[static_cast<size_t>(Now().kind)];
    const std::string found = *name == '\0' ? fmt::format("'{}'", Now().text) : name;
    Fail(absl::StatusCode::kInvalidArgument, Now().line, fmt::format("expected {} instead of {}", wanted, found));
  }
  void NotSupported(int line, std::string_view what) {
    Fail(absl::StatusCode::kUnimplemented, line, fmt::format("{} is not supported", what));
  }

  // Bounds the recursion of the parser, and with it that of everything that walks the tree.
  class Level {
   public:
    explicit Level(Parser* parser) : parser_(parser) {
      // Up to three levels per bracket; see the callers.
      if (++parser_->level_ > 3 * kMaxNesting) {
        parser_->Fail(absl::StatusCode::kInvalidArgument, parser_->Now().line,
                      fmt::format("nested more than {} deep", kMaxNesting));
      }
    }
    ~Level() { --parser_->level_; }

   private:
    Parser* parser_;
  };

  ExprPtr Make(Expr::Kind kind, int line) { return std::make_unique<Expr>(Expr{kind, line}); }
  ExprPtr Add(ExprPtr parent, ExprPtr child) {
    if (child != nullptr) parent->depth = std::max(parent->depth, child->depth + 1);
    if (parent->depth > kMaxNesting) {
      Fail(absl::StatusCode::kInvalidArgument, parent->line, fmt::format("nested more than {} deep", kMaxNesting));
    }
    parent->children.push_back(std::move(child));
    return parent;
  }
  ExprPtr Binary(Expr::Kind kind, int line, ExprPtr left, ExprPtr right, std::string text = {}) {
    ExprPtr node = Make(kind, line);
    node->text = std::move(text);
    return Add(Add(std::move(node), std::move(left)), std::move(right));
  }

  // Statements, up to a block tag with one of the names in `ends`, whose name is left to be read.
  Body ParseBody(std::span<const std::string_view> ends) {
    Level level(this);
    Body body;
    while (status_.ok()) {
      const int line = Now().line;
      if (Is(Kind::kText)) {
        body.push_back(std::make_unique<Stmt>(Stmt{Stmt::Kind::kText, line, Now().text}));
        Next();
      } else if (Is(Kind::kOutputBegin)) {
        Next();
        auto output = std::make_unique<Stmt>(Stmt{Stmt::Kind::kOutput, line});
        output->exprs.push_back(ParseExpressionOrList());
        body.push_back(std::move(output));
        if (!Is(Kind::kOutputEnd)) Unexpected("'}}'");
        Next();
      } else if (Is(Kind::kBlockBegin)) {
        Next();
        if (Is(Kind::kName) && std::find(ends.begin(), ends.end(), Now().text) != ends.end()) return body;
        ParseStatement(&body);
      } else if (ends.empty()) {
        return body;
      } else {
        Unexpected(fmt::format("'{{% {} %}}'", ends.back()));
      }
    }
    return body;
  }
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    return ParseBody(std::span<const std::string_view>(ends.begin(), ends.size()));
  }
  // A body up to {% end %}, which is read too.
  Body ParseBodyTo(std::string_view end) {
    Body body = ParseBody({end});
    Next();
    ExpectBlockEnd();
    return body;
  }

  void ParseStatement(Body* body) {
    const int line = Now().line;
    const std::string name = ExpectName();
    auto stmt = std::make_unique<Stmt>(Stmt{Stmt::Kind::kText, line});
    if (name == "for") {
      ParseFor(stmt.get());
    } else if (name == "if") {
      ParseIf(stmt.get());
    } else if (name == "set") {
      ParseSet(stmt.get());
    } else if (name == "macro") {
      ParseMacro(stmt.get());
    } else if (name == "generation") {  // marks what an assistant wrote, for training; prints its body
      ExpectBlockEnd();
      stmt->kind = Stmt::Kind::kScope;
      stmt->bodies.push_back(ParseBodyTo("endgeneration"));
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) Fail(absl::StatusCode::kInvalidArgument, line, fmt::format("'{}' outside a loop", name));
      ExpectBlockEnd();
      stmt->kind = name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
    } else if (name.starts_with("end") || name == "else" || name == "elif") {
      Fail(absl::StatusCode::kInvalidArgument, line, fmt::format("'{}' without its beginning", name));
    } else {
      NotSupported(line, fmt::format("the statement '{}'", name));
    }
    body->push_back(std::move(stmt));
  }

  void ParseTargets(Stmt* stmt, bool allow_attribute) {
    const bool bracket = TakeOperator("(");
    do {
      std::string target = ExpectName();
      if (allow_attribute && TakeOperator(".")) target += "." + ExpectName();
      stmt->targets.push_back(std::move(target));
    } while (TakeOperator(",") && !IsName("in") && !IsOperator("="));
    if (bracket) ExpectOperator(")");
  }

  void ParseFor(Stmt* stmt) {
    stmt->kind = Stmt::Kind::kFor;
    ParseTargets(stmt, false);
    if (!TakeName("in")) Unexpected("'in'");
    // Without the conditional expression: `if` here filters the items.
    stmt->exprs.push_back(ParseOr());
    stmt->exprs.push_back(TakeName("if") ? ParseExpression() : nullptr);
    if (IsName("recursive")) NotSupported(Now().line, "a recursive loop");
    ExpectBlockEnd();
    ++loops_;
    stmt->bodies.push_back(ParseBody({"else", "endfor"}));
    --loops_;
    stmt->bodies.emplace_back();
    if (TakeName("else")) {
      ExpectBlockEnd();
      stmt->bodies[1] = ParseBody({"endfor"});
    }
    Next();
    ExpectBlockEnd();
  }

  void ParseIf(Stmt* stmt) {
    stmt->kind = Stmt::Kind::kIf;
    bool more = true;
    while (more && status_.ok()) {
      stmt->exprs.push_back(ParseExpression());
      ExpectBlockEnd();
      stmt->bodies.push_back(ParseBody({"elif", "else", "endif"}));
      more = TakeName("elif");
    }
    if (TakeName("else")) {
      ExpectBlockEnd();
      stmt->exprs.push_back(nullptr);
      stmt->bodies.push_back(ParseBody({"endif"}));
    }
    Next();
    ExpectBlockEnd();
  }

  void ParseSet(Stmt* stmt) {
    ParseTargets(stmt, true);
    if (TakeOperator("=")) {
      stmt->kind = Stmt::Kind::kSet;
      stmt->exprs.push_back(ParseExpressionOrList());
      return ExpectBlockEnd();
    }
    stmt->kind = Stmt::Kind::kSetBlock;
    if (stmt->targets.size() != 1) return Unexpected("'='");
    if (IsOperator("|")) {
      ExprPtr input = Make(Expr::Kind::kName, Now().line);
      input->text = " block";  // no template can spell this name
      stmt->text = input->text;
      stmt->exprs.push_back(ParseFilters(std::move(input)));
    } else {
      stmt->exprs.push_back(nullptr);
    }
    ExpectBlockEnd();
    stmt->bodies.push_back(ParseBodyTo("endset"));
  }

  void ParseMacro(Stmt* stmt) {
    stmt->kind = Stmt::Kind::kMacro;
    if (loops_ > 0 || in_macro_) NotSupported(stmt->line, "a macro inside a loop or another macro");
    stmt->text = ExpectName();
    ExpectOperator("(");
    while (status_.ok() && !IsOperator(")")) {
      std::string name = ExpectName();
      ExprPtr fallback = TakeOperator("=") ? ParseExpression() : nullptr;
      stmt->parameters.emplace_back(std::move(name), std::move(fallback));
      if (!TakeOperator(",")) break;
    }
    ExpectOperator(")");
    ExpectBlockEnd();
    in_macro_ = true;
    stmt->bodies.push_back(ParseBodyTo("endmacro"));
    in_macro_ = false;
  }

  // Expressions, from the loosest binding to the tightest.
  // `a, b` without brackets is a list, where a statement allows it.
  ExprPtr ParseExpressionOrList() {
    ExprPtr first = ParseExpression();
    if (!IsOperator(",")) return first;
    ExprPtr list = Add(Make(Expr::Kind::kList, Now().line), std::move(first));
    while (TakeOperator(",") && !Is(Kind::kBlockEnd) && !Is(Kind::kOutputEnd)) {
      list = Add(std::move(list), ParseExpression());
    }
    return list;
  }

  ExprPtr ParseExpression() {
    Level level(this);
    ExprPtr value = ParseOr();
    while (status_.ok() && IsName("if")) {
      const int line = Now().line;
      Next();
      value = Binary(Expr::Kind::kCondition, line, std::move(value), ParseOr());
      value = Add(std::move(value), TakeName("else") ? ParseExpression() : nullptr);
    }
    return value;
  }

  ExprPtr ParseOr() {
    ExprPtr left = ParseAnd();
    while (IsName("or")) {
      const int line = Now().line;
      Next();
      left = Binary(Expr::Kind::kOr, line, std::move(left), ParseAnd());
    }
    return left;
  }

  ExprPtr ParseAnd() {
    ExprPtr left = ParseNot();
    while (IsName("and")) {
      const int line = Now().line;
      Next();
      left = Binary(Expr::Kind::kAnd, line, std::move(left), ParseNot());
    }
    return left;
  }

  ExprPtr ParseNot() {
    Level level(this);
    const int line = Now().line;
    if (status_.ok() && TakeName("not")) return Add(Make(Expr::Kind::kNot, line), ParseNot());
    return ParseCompare();
  }

  ExprPtr ParseCompare() {
    ExprPtr left = ParseSum();
    ExprPtr compare;
    while (status_.ok()) {
      const int line = Now().line;
      std::string op;
      if (IsName("not") && tokens_[at_ + 1].kind == Kind::kName && tokens_[at_ + 1].text == "in") {
        Next();
        op = "not in";
      } else if (IsName("in") || IsOperator("==") || IsOperator("!=") || IsOperator("<") || IsOperator("<=") ||
                 IsOperator(">") || IsOperator(">=")) {
        op = Now().text;
      } else {
        break;
      }
      Next();
      if (compare == nullptr) compare = Add(Make(Expr::Kind::kCompare, line), std::move(left));
      compare->operators.push_back(std::move(op));
      compare = Add(std::move(compare), ParseSum());
    }
    return compare == nullptr ? std::move(left) : std::move(compare);
  }

  ExprPtr ParseSum() {
    ExprPtr left = ParseConcat();
    while (IsOperator("+") || IsOperator("-")) {
      const Token op = Now();
      Next();
      left = Binary(Expr::Kind::kBinary, op.line, std::move(left), ParseConcat(), op.text);
    }
    return left;
  }

  ExprPtr ParseConcat() {
    ExprPtr left = ParseProduct();
    if (!IsOperator("~")) return left;
    ExprPtr concat = Add(Make(Expr::Kind::kConcat, Now().line), std::move(left));
    while (TakeOperator("~")) concat = Add(std::move(concat), ParseProduct());
    return concat;
  }

  ExprPtr ParseProduct() {
    ExprPtr left = ParsePower();
    while (IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%")) {
      const Token op = Now();
      Next();
      left = Binary(Expr::Kind::kBinary, op.line, std::move(left), ParsePower(), op.text);
    }
    return left;
  }

  ExprPtr ParsePower() {
    ExprPtr left = ParseUnary(true);
    while (IsOperator("**")) {
      const Token op = Now();
      Next();
      left = Binary(Expr::Kind::kBinary, op.line, std::move(left), ParseUnary(true), op.text);
    }
    return left;
  }

  ExprPtr ParseUnary(bool with_filters) {
    Level level(this);
    const int line = Now().line;
    ExprPtr value;
    if (!status_.ok()) return Make(Expr::Kind::kConstant, line);
    if (TakeOperator("-")) {
      value = Add(Make(Expr::Kind::kNegate, line), ParseUnary(false));
    } else if (TakeOperator("+")) {
      value = Add(Make(Expr::Kind::kPlus, line), ParseUnary(false));
    } else {
      value = ParsePrimary();
    }
    value = ParsePostfix(std::move(value));
    return with_filters ? ParseFilters(std::move(value)) : std::move(value);
  }

  ExprPtr ParsePrimary() {
    const Token token = Now();
    if (Is(Kind::kName)) {
      Next();
      ExprPtr name = Make(Expr::Kind::kConstant, token.line);
      if (token.text == "true" || token.text == "True") {
        name->constant = Value::Of(true);
      } else if (token.text == "false" || token.text == "False") {
        name->constant = Value::Of(false);
      } else if (token.text == "none" || token.text == "None") {
        name->constant = Value::None();
      } else {
        name->kind = Expr::Kind::kName;
        name->text = token.text;
      }
      return name;
    }
    ExprPtr constant = Make(Expr::Kind::kConstant, token.line);
    if (Is(Kind::kString)) {
      std::string text;
      for (; Is(Kind::kString); Next()) text += Now().text;
      constant->constant = Value::Of(std::move(text));
    } else if (Is(Kind::kInt)) {
      int64_t value = 0;
      if (std::from_chars(token.text.data(), token.text.data() + token.text.size(), value).ec != std::errc()) {
        Fail(absl::StatusCode::kInvalidArgument, token.line, fmt::format("the number {} is too large", token.text));
      }
      constant->constant = Value::Of(value);
      Next();
    } else if (Is(Kind::kFloat)) {
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      constant->constant = Value::Of(value);
      Next();
    } else if (TakeOperator("(")) {
      return ParseBracketed(token.line);
    } else if (TakeOperator("[")) {
      ExprPtr list = Make(Expr::Kind::kList, token.line);
      while (status_.ok() && !IsOperator("]")) {
        list = Add(std::move(list), ParseExpression());
        if (!TakeOperator(",")) break;
      }
      ExpectOperator("]");
      return list;
    } else if (TakeOperator("{")) {
      ExprPtr dict = Make(Expr::Kind::kDict, token.line);
      while (status_.ok() && !IsOperator("}")) {
        dict = Add(std::move(dict), ParseExpression());
        ExpectOperator(":");
        dict = Add(std::move(dict), ParseExpression());
        if (!TakeOperator(",")) break;
      }
      ExpectOperator("}");
      return dict;
    } else {
      Unexpected("an expression");
    }
    return constant;
  }

  // Behind "(": an expression, or a tuple, which is treated as a list.
  ExprPtr ParseBracketed(int line) {
    if (TakeOperator(")")) return Make(Expr::Kind::kList, line);
    ExprPtr value = ParseExpression();
    if (IsOperator(",")) {
      value = Add(Make(Expr::Kind::kList, line), std::move(value));
      while (TakeOperator(",") && !IsOperator(")")) value = Add(std::move(value), ParseExpression());
    }
    ExpectOperator(")");
    return value;
  }

  ExprPtr ParsePostfix(ExprPtr value) {
    while (status_.ok()) {
      const int line = Now().line;
      if (TakeOperator(".")) {
        value = Add(Make(Expr::Kind::kAttribute, line), std::move(value));
        if (Is(Kind::kInt)) {
          NotSupported(line, "an index behind a dot");
        } else {
          value->text = ExpectName();
        }
      } else if (TakeOperator("[")) {
        value = ParseSubscript(std::move(value), line);
      } else if (IsOperator("(")) {
        value = Add(Make(Expr::Kind::kCall, line), std::move(value));
        ParseArguments(&value);
      } else {
        break;
      }
    }
    return value;
  }

  ExprPtr ParseSubscript(ExprPtr value, int line) {
    ExprPtr index = IsOperator(":") ? nullptr : ParseExpression();
    if (!IsOperator(":")) {
      ExpectOperator("]");
      return Binary(Expr::Kind::kItem, line, std::move(value), std::move(index));
    }
    value = Binary(Expr::Kind::kSlice, line, std::move(value), std::move(index));
    for (int part = 0; part < 2; ++part) {
      const bool given = TakeOperator(":") && !IsOperator(":") && !IsOperator("]");
      value = Add(std::move(value), given ? ParseExpression() : nullptr);
    }
    ExpectOperator("]");
    return value;
  }

  // From "(" to ")".
  void ParseArguments(ExprPtr* call) {
    ExpectOperator("(");
    while (status_.ok() && !IsOperator(")")) {
      if (IsOperator("*") || IsOperator("**")) NotSupported(Now().line, "unpacking of arguments");
      const Token& next = tokens_[std::min(at_ + 1, tokens_.size() - 1)];
      if (Is(Kind::kName) && next.kind == Kind::kOperator && next.text == "=") {
        std::string name = ExpectName();
        Next();
        ExprPtr value = ParseExpression();
        (*call)->depth = std::max((*call)->depth, value->depth + 1);
        (*call)->named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!(*call)->named.empty()) Unexpected("a named argument");
        *call = Add(std::move(*call), ParseExpression());
      }
      if (!TakeOperator(",")) break;
    }
    ExpectOperator(")");
  }

  ExprPtr ParseFilters(ExprPtr value) {
    while (status_.ok()) {
      const int line = Now().line;
      if (TakeOperator("|")) {
        value = Add(Make(Expr::Kind::kFilter, line), std::move(value));
        value->text = ExpectName();
        if (IsOperator("(")) ParseArguments(&value);
      } else if (TakeName("is")) {
        value = ParseTest(std::move(value), line);
      } else if (IsOperator("(")) {
        value = Add(Make(Expr::Kind::kCall, line), std::move(value));
        ParseArguments(&value);
      } else {
        break;
      }
    }
    return value;
  }

  ExprPtr ParseTest(ExprPtr value, int line) {
    const bool negated = TakeName("not");
    ExprPtr test = Add(Make(Expr::Kind::kTest, line), std::move(value));
    test->text = ExpectName();
    if (IsOperator("(")) {
      ParseArguments(&test);
    } else if (Is(Kind::kString) || Is(Kind::kInt) || Is(Kind::kFloat) || IsOperator("[") || IsOperator("{") ||
               (Is(Kind::kName) && !IsName("else") && !IsName("or") && !IsName("and") && !IsName("if") &&
                !IsName("not") && !IsName("in") && !IsName("is"))) {
      // One argument may stand without brackets: x is divisibleby 3.
      test = Add(std::move(test), ParsePostfix(ParsePrimary()));
    }
    return negated ? Add(Make(Expr::Kind::kNot, line), std::move(test)) : std::move(test);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;
  bool in_macro_ = false;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Body> Parse(std::string_view source) {
  absl::StatusOr<std::vector<Token>> tokens = Tokenize(source);
  if (!tokens.ok()) return tokens.status();
  return Parser(*std::move(tokens)).Run();
}

}  // namespace octet::jinja
