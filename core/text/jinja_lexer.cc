#include "core/text/jinja_lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

#include "core/base/utf8.h"
#include "core/text/jinja_value.h"
#include "fmt/format.h"

namespace octet::jinja {
namespace {

bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80) != 0; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

size_t LeadingSpace(std::string_view text) {
  size_t size = 0;
  while (size < text.size()) {
    const size_t next = FirstUtf8Char(text.substr(size)).size;
    if (!IsSpace(CodePoint(text.substr(size, next)))) break;
    size += next;
  }
  return size;
}

// `text` without the whitespace at its end.
std::string_view WithoutTrailingSpace(std::string_view text) {
  size_t keep = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t next = FirstUtf8Char(text.substr(at)).size;
    if (!IsSpace(CodePoint(text.substr(at, next)))) keep = at + next;
    at += next;
  }
  return text.substr(0, keep);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
    rest_ = source_;
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (!rest_.empty() && error_.empty()) {
      const size_t tag = FindTag();
      std::string_view text = rest_.substr(0, tag);
      if (tag == rest_.size()) {
        AddText(text);
        Skip(tag);
        break;
      }
      const char kind = rest_[tag + 1];
      const char sign = tag + 2 < rest_.size() ? rest_[tag + 2] : '\0';
      if (sign == '-') {
        text = WithoutTrailingSpace(text);
      } else if (sign != '+' && kind != '{') {
        text = WithoutIndent(text);
      }
      AddText(text);
      Skip(tag);
      if (kind == '#') {
        Comment();
      } else if (kind == '%' && RawBegin() > 0) {
        Raw();
      } else {
        Skip(sign == '-' || sign == '+' ? 3 : 2);
        Add(kind == '%' ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "");
        InsideTag(kind);
      }
    }
    if (!error_.empty()) {
      return absl::InvalidArgumentError(fmt::format("chat template, line {}: {}", error_line_, error_));
    }
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void AddText(std::string_view text) {
    if (!text.empty()) Add(Token::Kind::kText, std::string(text));
  }
  void Fail(int line, std::string message) {
    if (!error_.empty()) return;
    error_ = std::move(message);
    error_line_ = line;
    rest_ = {};
  }
  void Skip(size_t size) {
    size = std::min(size, rest_.size());
    if (size == 0) return;
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(size), '\n'));
    at_line_start_ = rest_[size - 1] == '\n';
    rest_.remove_prefix(size);
  }

  size_t FindTag() const {
    for (size_t at = rest_.find('{'); at != rest_.npos; at = rest_.find('{', at + 1)) {
      if (at + 1 < rest_.size() && (rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#')) return at;
    }
    return rest_.size();
  }

  // lstrip_blocks: spaces between the line's beginning and a block tag go.
  std::string_view WithoutIndent(std::string_view text) const {
    const size_t line = text.rfind('\n') + 1;  // 0 when there is none
    if (line == 0 && !at_line_start_) return text;
    return LeadingSpace(text.substr(line)) == text.size() - line ? text.substr(0, line) : text;
  }

  // The size of the end of a block or comment at the front, with the whitespace that goes with it; 0 when there is
  // none.
  size_t BlockEnd(char kind) const {
    const std::string end = {kind, '}'};
    if (rest_.starts_with('-') && rest_.substr(1).starts_with(end)) return 3 + LeadingSpace(rest_.substr(3));
    if (rest_.starts_with('+') && rest_.substr(1).starts_with(end)) return 3;
    if (!rest_.starts_with(end)) return 0;
    return rest_.substr(2).starts_with('\n') ? 3 : 2;
  }

  size_t OutputEnd() const {
    if (rest_.starts_with("-}}")) return 3 + LeadingSpace(rest_.substr(3));
    return rest_.starts_with("}}") ? 2 : 0;
  }

  void Comment() {
    const int begin = line_;
    Skip(rest_.substr(2).starts_with('-') || rest_.substr(2).starts_with('+') ? 3 : 2);
    while (!rest_.empty()) {
      if (const size_t end = BlockEnd('#')) {
        Skip(end);
        return;
      }
      Skip(1);
    }
    Fail(begin, "the comment never ends");
  }

  // The size of {% raw %} or, with `word` "endraw", its end at the front; 0 when there is something else.
  size_t RawTag(std::string_view text, std::string_view word, bool trim_newline) const {
    if (!text.starts_with("{%")) return 0;
    size_t at = 2;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    at += LeadingSpace(text.substr(at));
    if (!text.substr(at).starts_with(word)) return 0;
    at += word.size();
    at += LeadingSpace(text.substr(at));
    if (text.substr(at).starts_with("-%}")) return at + 3 + LeadingSpace(text.substr(at + 3));
    if (trim_newline && text.substr(at).starts_with("+%}")) return at + 3;
    if (!text.substr(at).starts_with("%}")) return 0;
    return at + 2 + (trim_newline && text.substr(at + 2).starts_with('\n') ? 1 : 0);
  }
  size_t RawBegin() const { return RawTag(rest_, "raw", false); }

  void Raw() {
    const int begin = line_;
    Skip(RawBegin());
    for (size_t at = rest_.find("{%"); at != rest_.npos; at = rest_.find("{%", at + 1)) {
      const size_t size = RawTag(rest_.substr(at), "endraw", true);
      if (size == 0) continue;
      std::string_view text = rest_.substr(0, at);
      if (rest_[at + 2] == '-') {
        text = WithoutTrailingSpace(text);
      } else if (rest_[at + 2] != '+') {
        text = WithoutIndent(text);
      }
      AddText(text);
      Skip(at + size);
      return;
    }
    Fail(begin, "the raw block never ends");
  }

  void InsideTag(char kind) {
    const int begin = line_;
    std::string open;  // brackets; a tag cannot end inside them
    while (!rest_.empty()) {
      if (open.empty()) {
        if (const size_t end = kind == '%' ? BlockEnd('%') : OutputEnd()) {
          Add(kind == '%' ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "");
          Skip(end);
          return;
        }
      }
      const char c = rest_[0];
      if (const size_t space = LeadingSpace(rest_)) {
        Skip(space);
      } else if (IsNameStart(c)) {
        size_t size = 1;
        while (size < rest_.size() && (IsNameStart(rest_[size]) || IsDigit(rest_[size]))) ++size;
        Take(Token::Kind::kName, size);
      } else if (IsDigit(c)) {
        Number();
      } else if (c == '"' || c == '\'') {
        StringLiteral();
      } else {
        Operator(&open);
      }
    }
    Fail(begin, kind == '%' ? "the tag '{%' never ends" : "the tag '{{' never ends");
  }

  void Take(Token::Kind kind, size_t size) {
    Add(kind, std::string(rest_.substr(0, size)));
    Skip(size);
  }

  void Number() {
    size_t size = 0;
    const auto digits = [&] {
      while (size < rest_.size() && IsDigit(rest_[size])) ++size;
    };
    digits();
    Token::Kind kind = Token::Kind::kInt;
    if (size + 1 < rest_.size() && rest_[size] == '.' && IsDigit(rest_[size + 1])) {
      kind = Token::Kind::kFloat;
      ++size;
      digits();
    }
    if (size < rest_.size() && (rest_[size] == 'e' || rest_[size] == 'E')) {
      size_t sign = size + 1;
      if (sign < rest_.size() && (rest_[sign] == '+' || rest_[sign] == '-')) ++sign;
      if (sign < rest_.size() && IsDigit(rest_[sign])) {
        kind = Token::Kind::kFloat;
        size = sign;
        digits();
      }
    }
    if (size < rest_.size() && IsNameStart(rest_[size])) {
      Fail(line_, fmt::format("'{}' is not a number", rest_.substr(0, size + 1)));
      return;
    }
    Take(kind, size);
  }

  void Operator(std::string* open) {
    const char c = rest_[0];
    for (std::string_view two : {"//", "**", "==", "!=", "<=", ">="}) {
      if (rest_.starts_with(two)) return Take(Token::Kind::kOperator, 2);
    }
    if (std::string_view("+-*/%~<>=.:|,()[]{}").find(c) == std::string_view::npos) {
      Fail(line_, fmt::format("unexpected character '{}'", rest_.substr(0, FirstUtf8Char(rest_).size)));
      return;
    }
    if (c == '(' || c == '[' || c == '{') open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open->empty() || open->back() != c) {
        Fail(line_, fmt::format("unexpected '{}'", c));
        return;
      }
      open->pop_back();
    }
    Take(Token::Kind::kOperator, 1);
  }

  void StringLiteral() {
    const int begin = line_;
    const char quote = rest_[0];
    std::string text;
    size_t at = 1;
    while (at < rest_.size() && rest_[at] != quote) {
      if (rest_[at] == '\\' && at + 1 < rest_.size()) {
        at = Escape(at + 1, &text);
        if (at == 0) return;
      } else {
        text += rest_[at++];
      }
    }
    if (at >= rest_.size()) {
      Fail(begin, "the string literal never ends");
      return;
    }
    Add(Token::Kind::kString, std::move(text));
    Skip(at + 1);
  }

  // Python's escapes; `at` is behind the backslash. Returns where the text goes on, 0 after an error.
  size_t Escape(size_t at, std::string* text) {
    static constexpr std::pair<char, char> kSimple[] = {{'n', '\n'},  {'t', '\t'}, {'r', '\r'}, {'\\', '\\'},
                                                        {'\'', '\''}, {'"', '"'},  {'a', '\a'}, {'b', '\b'},
                                                        {'f', '\f'},  {'v', '\v'}};
    const char c = rest_[at];
    for (const auto& [letter, byte] : kSimple) {
      if (c == letter) {
        *text += byte;
        return at + 1;
      }
    }
    if (c == '\n') return at + 1;
    const bool octal = c >= '0' && c <= '7';
    const size_t digits = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      *text += '\\';
      return at;
    }
    if (!octal) ++at;
    uint32_t code = 0;
    size_t count = 0;
    for (; count < digits && at < rest_.size(); ++count, ++at) {
      const char digit = rest_[at];
      if (octal ? digit < '0' || digit > '7' : !std::isxdigit(static_cast<unsigned char>(digit))) break;
      const int value = IsDigit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10;
      code = code * (octal ? 8 : 16) + static_cast<uint32_t>(value);
    }
    if ((!octal && count < digits) || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      Fail(line_, fmt::format("the escape '\\{}' in a string literal is not a character", c));
      return 0;
    }
    AppendUtf8(code, text);
    return at;
  }

  std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
  std::string error_;
  int error_line_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace octet::jinja
