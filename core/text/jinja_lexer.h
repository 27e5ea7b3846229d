// Cuts a template into text, tags and the tokens inside tags.
// Assumes the whitespace rules that chat templates are written for: trim_blocks and lstrip_blocks are on and one
// newline at the end of the source is dropped. Reference:
// https://jinja.palletsprojects.com/en/3.1.x/templates/#whitespace-control
#ifndef OCTET_CORE_TEXT_JINJA_LEXER_H_
#define OCTET_CORE_TEXT_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace octet::jinja {

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  std::string text;  // string literals: without quotes, escapes replaced
  int line;          // from 1
};

// The last token is kEnd. InvalidArgument, naming the line, for what is not a token or never ends.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_LEXER_H_
