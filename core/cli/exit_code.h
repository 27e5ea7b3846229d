// How a command ends: one sentence on stderr and an exit code.
#ifndef OCTET_CORE_CLI_EXIT_CODE_H_
#define OCTET_CORE_CLI_EXIT_CODE_H_

#include "absl/status/status.h"

namespace octet {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;       // anything else
inline constexpr int kExitWrong = 2;        // the command line or a file is wrong
inline constexpr int kExitUnsupported = 3;  // not supported, or not available here

int ExitCodeOf(const absl::Status& status);

// Prints "octet: <sentence>" on stderr where the status is not OK; returns its exit code.
int Finish(const absl::Status& status);

}  // namespace octet

#endif  // OCTET_CORE_CLI_EXIT_CODE_H_
