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
  if (!status.ok()) std::fprintf(stderr, "octet: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace octet
