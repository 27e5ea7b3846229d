// Builds the syntax tree of a template.
// Reference: https://jinja.palletsprojects.com/en/3.1.x/templates/ ; what octet leaves out is refused by name.
#ifndef OCTET_CORE_TEXT_JINJA_PARSER_H_
#define OCTET_CORE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "core/text/jinja_ast.h"

namespace octet::jinja {

inline constexpr int kMaxNesting = 100;  // of statements, and of operators in an expression

// InvalidArgument for a syntax error or too deep nesting, Unimplemented for a construct that octet does not know. The
// message names the line.
absl::StatusOr<Body> Parse(std::string_view source);

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_PARSER_H_
