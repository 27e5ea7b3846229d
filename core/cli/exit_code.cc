#include "core/cli/exit_code.h"

#include <cstdio>
#include <string>

namespace octet {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return kExitWrong;
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return kExitUnsupported;
    default:
      return kExitFailed;
  }
}

int Finish(const absl::Status& status) {
  if (!status.ok()) {
    // One line whatever a name or a text out of a file holds, and no escape sequences for the terminal.
    std::string text(status.message());
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    }
    std::fprintf(stderr, "octet: %s\n", text.c_str());
  }
  return ExitCodeOf(status);
}

}  // namespace octet
