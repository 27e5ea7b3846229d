// Reads a user's lines: on a terminal with an editor and a history (libedit), from anything else as they come.
// The history is a file, octet/history in $XDG_STATE_HOME (~/.local/state), which only its owner may read; with
// OCTET_NO_HISTORY set it is kept in memory only. Reference: editline(3); XDG Base Directory Specification 0.8.
#ifndef OCTET_CORE_CLI_LINE_READER_H_
#define OCTET_CORE_CLI_LINE_READER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace octet {

struct InputLine {
  enum class Kind { kText, kInterrupted, kEnd };  // kInterrupted: Ctrl-C, terminals only
  Kind kind = Kind::kEnd;
  std::string text;  // without its newline; pasted text may have newlines inside
};

// Thread-compatible; one at a time. On a terminal SIGINT must have a handler that returns while Read waits.
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
