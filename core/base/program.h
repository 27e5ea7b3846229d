// How a program runs, writes its output and ends. Shared by octet and octet-conformance.
// Whatever fails ends with one sentence on stderr and an exit code.
#ifndef OCTET_CORE_BASE_PROGRAM_H_
#define OCTET_CORE_BASE_PROGRAM_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace octet {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;       // anything else
inline constexpr int kExitWrong = 2;        // the command line or a file is wrong
inline constexpr int kExitUnsupported = 3;  // not supported, or not available here

// main: calls `body`, whose value is the exit code, and sees that all of stdout was written. A status that is not OK,
// or an exception, becomes "name: <sentence>" on stderr and its exit code. Files that are opened meanwhile never take
// the place of a standard stream that was closed.
int RunProgram(const std::string& name, const std::function<absl::StatusOr<int>()>& body);

// What cannot be written to stdout is noticed when the program ends; what cannot be written to stderr is lost, and
// makes no good run fail.
void Print(std::string_view text);
void PrintToStderr(std::string_view text);
// "octet: <sentence>" on a line of its own, where `name` is "octet"; what is not printable in the sentence is escaped.
void PrintSentence(std::string_view name, std::string_view sentence);

// Writes all of it, whatever signals come meanwhile; signal handlers may call it. False: errno says why not.
bool WriteAll(int fd, std::string_view text);

}  // namespace octet

#endif  // OCTET_CORE_BASE_PROGRAM_H_
