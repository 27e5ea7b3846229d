// How a program reads its command line. Shared by octet and octet-conformance. CLI11 does the reading; its own words
// reach nobody, and neither does its header, which takes longer to compile than any command.
#ifndef OCTET_CORE_BASE_COMMAND_LINE_H_
#define OCTET_CORE_BASE_COMMAND_LINE_H_

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace octet {

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

// What a program takes, or one of its commands. Thread-compatible. Options are added under `names` such as
// "-p,--prompt" and write to variables that outlive the parsing.
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& help);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // The answer to --version, and the end of what --help says.
  void SetVersion(const std::string& version);
  void SetFooter(const std::string& text);

  // A program with commands needs one of them; RunCommand calls the `run` that every command must have been given. The
  // program owns the command.
  CommandLine& AddCommand(const std::string& name, const std::string& help);
  void SetRun(std::function<absl::Status()> run);

  enum class Text { kOptional, kRequired, kShowsDefault };  // the last: --help shows the variable's present value
  void AddText(const std::string& names, std::string* value, const std::string& help, Text kind = Text::kOptional);
  // Repeatable. kMany: one use of the option takes the arguments up to the next option, too.
  enum class Texts { kOneEach, kMany, kManyRequired };
  void AddTexts(const std::string& names, std::vector<std::string>* values, const std::string& help,
                Texts kind = Texts::kOneEach);
  void AddFlag(const std::string& names, bool* value, const std::string& help);
  // --help shows the variable's present value as the default.
  template <typename T>
  void AddNumber(const std::string& names, Range<T> range, T* value, const std::string& help);
  // `set` is called while the command line is parsed, for each value of a repeatable option.
  enum class Numbers { kOne, kRepeatable };
  template <typename T>
  void AddNumber(const std::string& names, Range<T> range, std::function<void(T)> set, const std::string& help,
                 Numbers kind = Numbers::kOne);

  // False: --help or --version, which was answered. InvalidArgument for arguments that the program does not take.
  absl::StatusOr<bool> Parse(int argc, const char* const* argv);
  // After parsing: whether the option was given. `name` is one that was added.
  bool Has(const std::string& name) const;
  // After parsing: the status of the command that was named.
  absl::Status RunCommand() const;

 private:
  struct Impl;
  explicit CommandLine(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace octet

#endif  // OCTET_CORE_BASE_COMMAND_LINE_H_
