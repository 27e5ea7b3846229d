// Runs a template.
#ifndef OCTET_CORE_TEXT_JINJA_EVAL_H_
#define OCTET_CORE_TEXT_JINJA_EVAL_H_

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/text/jinja_ast.h"
#include "core/text/jinja_context.h"

namespace octet::jinja {

// `now` is what strftime_now prints; the clock when not given. InvalidArgument when the template does something that is
// not possible, ResourceExhausted when it takes too many steps, memory or output; the message names the line.
// `max_work`: steps in jinja_context.h's units, kMaxWork at most.
absl::StatusOr<std::string> Run(const Body& body, const Entries& globals, std::optional<std::time_t> now,
                                uint64_t max_work = kMaxWork);

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_EVAL_H_
