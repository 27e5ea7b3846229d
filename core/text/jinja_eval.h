// Runs a template.
#ifndef OCTET_CORE_TEXT_JINJA_EVAL_H_
#define OCTET_CORE_TEXT_JINJA_EVAL_H_

#include <ctime>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/text/jinja_ast.h"

namespace octet::jinja {

// `now` is what strftime_now prints; the clock when not given. InvalidArgument when the template does something that is
// not possible, ResourceExhausted when it takes too many steps, memory or output; the message names the line.
absl::StatusOr<std::string> Run(const Body& body, const Entries& globals, std::optional<std::time_t> now);

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_EVAL_H_
