#include "core/cli/prompt_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

// Made once, open until the program ends: a handler may still run while the object goes.
int pipe_ends[2] = {-1, -1};

std::atomic<bool> arrived[NSIG];
static_assert(std::atomic<bool>::is_always_lock_free, "a handler may touch lock-free atomics only");

void Note(int signal) {
  const int error = errno;
  arrived[signal] = true;
  [[maybe_unused]] const ssize_t written = write(pipe_ends[1], "", 1);  // a full pipe wakes, too
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
  while (const int signal = Take()) raise(signal);
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
  // First the pipe: a signal that comes now is marked before it wakes, and is found here or wakes the next time.
  std::array<char, 256> wakes;
  while (read(pipe_ends[0], wakes.data(), wakes.size()) > 0) {
  }
  for (const int signal : kSignals) {
    if (arrived[signal].exchange(false)) return signal;
  }
  return 0;
}

int PromptSignals::Wait(int fd, short events) const {
  std::array<struct pollfd, 2> ready = {{{pipe_ends[0], POLLIN, 0}, {fd, events, 0}}};
  for (;;) {
    const int count = poll(ready.data(), ready.size(), -1);
    const int error = errno;
    if (const int signal = Take()) return signal;
    if (count < 0 && error != EINTR) return 0;
    if (count > 0 && ready[1].revents != 0) return 0;
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
