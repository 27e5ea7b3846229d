// How a program reads its command line. Shared by octet and octet-conformance; CLI11's own words reach nobody.
#ifndef OCTET_CORE_BASE_COMMAND_LINE_H_
#define OCTET_CORE_BASE_COMMAND_LINE_H_

#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace octet {

// False: --help or --version, which was answered. InvalidArgument for a command line that `app` does not take.
absl::StatusOr<bool> ParseCommandLine(CLI::App& app, int argc, const char* const* argv);

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
