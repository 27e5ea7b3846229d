#include "core/cli/prompt_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

// Made once, open until the program ends: a handler may still run while the object goes.
int pipe_ends[2] = {-1, -1};

void Note(int signal) {
  const int error = errno;
  const unsigned char number = static_cast<unsigned char>(signal);
  // A full pipe has more than enough to take.
  [[maybe_unused]] const ssize_t written = write(pipe_ends[1], &number, 1);
  errno = error;
}

}  // namespace

absl::Status PromptSignals::Open() {
  if (pipe_ends[0] >= 0 || pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC) == 0) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("no pipe for signals can be made: ", std::strerror(errno)));
}

PromptSignals::PromptSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    Catch(i);
  }
}

PromptSignals::~PromptSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  while (const int signal = Take()) {
    if (signal != SIGINT && signal != SIGCONT && signal != SIGWINCH) raise(signal);
  }
}

void PromptSignals::Catch(size_t i) {
  if (before_[i].sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = &Note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(kSignals[i], &action, nullptr);
}

int PromptSignals::Take() const {
  unsigned char signal = 0;
  return read(pipe_ends[0], &signal, 1) == 1 ? signal : 0;
}

int PromptSignals::Wait(int fd, short events) const {
  std::array<struct pollfd, 2> ready = {{{pipe_ends[0], POLLIN, 0}, {fd, events, 0}}};
  for (;;) {
    const int count = poll(ready.data(), ready.size(), -1);
    if (const int signal = Take()) return signal;
    if (count > 0 || (count < 0 && errno != EINTR)) return 0;
  }
}

void PromptSignals::Raise(int signal) {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != signal) continue;
    sigaction(signal, &before_[i], nullptr);
    raise(signal);
    Catch(i);
  }
}

}  // namespace octet
