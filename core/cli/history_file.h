// The file that keeps what a user typed from one chat to the next, octet/history in $XDG_STATE_HOME (~/.local/state):
// libedit's format, an entry per line. Several programs may have it open: each entry is appended as it is typed.
// What the user put in its place stays: a link is followed, /dev/null keeps nothing.
// Reference: editline(3), H_LOAD and H_SAVE_FP; XDG Base Directory Specification 0.8.
#ifndef OCTET_CORE_CLI_HISTORY_FILE_H_
#define OCTET_CORE_CLI_HISTORY_FILE_H_

#include <string>

#include "absl/status/status.h"

struct history;  // libedit's

namespace octet {

// Thread-compatible.
class HistoryFile {
 public:
  // Fills `entries` from the file, which is made, with mode 0600, where there is none; one with more than `max_entries`
  // is cut to the last of them. Does nothing where OCTET_NO_HISTORY is set, there is no home, or the file is /dev/null.
  // Unknown, and the file is left as it is, when it is not an ordinary file, may not be written, or is no history.
  absl::Status Open(struct history* entries, int max_entries);

  // One write at the end of the file; nothing after Open did nothing. Unknown when it could not be written.
  absl::Status Append(const std::string& entry);

 private:
  std::string path_;  // empty: not kept
};

}  // namespace octet

#endif  // OCTET_CORE_CLI_HISTORY_FILE_H_
