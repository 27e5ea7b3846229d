// Signals as something that a prompt waits for beside its keys. A handler only marks the signal and wakes by a pipe, so
// that none is lost between two reads and nothing happens in the middle of the editor's work.
// Reference: the self-pipe trick, D. J. Bernstein; signal-safety(7).
#ifndef OCTET_CORE_CLI_PROMPT_SIGNALS_H_
#define OCTET_CORE_CLI_PROMPT_SIGNALS_H_

#include <csignal>

#include <array>
#include <cstddef>

#include "absl/status/status.h"

namespace octet {

// While it lasts SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT and SIGWINCH wait to be taken. Those of them that
// the program ignores (as SIGHUP under nohup) stay ignored. One at a time; one thread makes, asks and ends it.
class PromptSignals {
 public:
  // Makes the pipe, once for the program. Unknown when there are no file descriptors left.
  static absl::Status Open();
  PromptSignals();  // needs Open
  // Handlers as before; a signal that was not taken is raised again.
  ~PromptSignals();
  PromptSignals(const PromptSignals&) = delete;
  PromptSignals& operator=(const PromptSignals&) = delete;

  // Waits until a signal has come, whose number is returned, or `fd` is ready for `events` (poll(2)): 0.
  int Wait(int fd, short events) const;
  // A signal that has come, or 0.
  int Take() const;
  // Does what the signal did before, here and now. Comes back when that does not end the program, or when it goes on.
  void Raise(int signal);

 private:
  static constexpr std::array<int, 7> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};

  void Catch(size_t i);

  std::array<struct sigaction, kSignals.size()> before_;
};

}  // namespace octet

#endif  // OCTET_CORE_CLI_PROMPT_SIGNALS_H_
