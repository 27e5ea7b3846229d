// How a program reads its command line, writes its output and ends. Shared by octet and octet-conformance.
// Whatever fails ends with one sentence on stderr and an exit code; CLI11's own words and codes reach nobody.
#ifndef OCTET_CORE_BASE_COMMAND_LINE_H_
#define OCTET_CORE_BASE_COMMAND_LINE_H_

#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace octet {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;       // anything else
inline constexpr int kExitWrong = 2;        // the command line or a file is wrong
inline constexpr int kExitUnsupported = 3;  // not supported, or not available here

int ExitCodeOf(const absl::Status& status);

// main: calls `body`, whose value is the exit code, and sees that all of stdout was written. A status that is not OK,
// or an exception, becomes "name: <sentence>" on stderr and its exit code. Files that are opened meanwhile never take
// the place of a standard stream that was closed.
int RunProgram(const std::string& name, const std::function<absl::StatusOr<int>()>& body);

// False: --help or --version, which was answered. InvalidArgument for a command line that `app` does not take.
absl::StatusOr<bool> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

// What cannot be written to stdout is noticed when the program ends; what cannot be written to stderr is lost, and
// makes no good run fail.
void Print(std::string_view text);
void PrintToStderr(std::string_view text);

// T: int32_t, int64_t, uint32_t, uint64_t or double.
template <typename T>
struct Range {
  T min = std::numeric_limits<T>::lowest();
  T max = std::numeric_limits<T>::max();
  bool above_min = false;  // min itself is outside
};

// A decimal number, which ends where the text does: no octal, no hex, no blanks, no NaN. InvalidArgument names `what`,
// the text and the range.
template <typename T>
absl::StatusOr<T> ParseNumber(std::string_view what, std::string_view text, Range<T> range);

// An option with such a value. `set` is called while the command line is parsed, for each value where the caller makes
// the option repeatable.
template <typename T>
CLI::Option* AddNumber(CLI::App& app, const std::string& names, Range<T> range, std::function<void(T)> set,
                       const std::string& help);
// The same for a variable, whose present value --help shows as the default.
template <typename T>
CLI::Option* AddNumber(CLI::App& app, const std::string& names, Range<T> range, T* value, const std::string& help);

}  // namespace octet

#endif  // OCTET_CORE_BASE_COMMAND_LINE_H_
