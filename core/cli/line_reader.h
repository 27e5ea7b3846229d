// Reads a user's lines: on a terminal with an editor and a history (libedit), from anything else as they come.
// The history is kept in a file (history_file.h). Reference: editline(3).
#ifndef OCTET_CORE_CLI_LINE_READER_H_
#define OCTET_CORE_CLI_LINE_READER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace octet {

struct InputLine {
  enum class Kind { kText, kInterrupted, kEnd };  // kInterrupted: Ctrl-C, terminals only
  struct LeftOut {                                // of what was typed and pasted on a terminal
    int64_t pasted_controls = 0;
    int64_t bad_bytes = 0;  // no UTF-8
  };
  Kind kind = Kind::kEnd;
  std::string text;  // without its newline; pasted text may have newlines inside
  LeftOut left_out;
};

// Thread-compatible; one at a time.
class LineReader {
 public:
  // The editor where both stdin and stdout are terminals. What keeps the history from its file is one warning on
  // stderr. Sets the character set of the process (LC_CTYPE) to UTF-8 for the editor.
  static absl::StatusOr<std::unique_ptr<LineReader>> Create(std::string prompt);
  virtual ~LineReader() = default;

  virtual bool is_terminal() const = 0;
  // Unknown when stdin cannot be read.
  virtual absl::StatusOr<InputLine> Read() = 0;
};

}  // namespace octet

#endif  // OCTET_CORE_CLI_LINE_READER_H_
