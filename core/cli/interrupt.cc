#include "core/cli/interrupt.h"

#include <unistd.h>

#include <cstdint>
#include <ctime>

namespace octet {
namespace {

constexpr int kExitInterrupted = 130;

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a handler may touch lock-free atomics only");

void Ignore(int) {}

// When the first one came. A key that is held, or pressed twice in one go, is one.
std::atomic<int64_t> first_at = 0;
constexpr int64_t kOnePress = 300;  // ms

int64_t Milliseconds() {
  struct timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void SetFlagOrEnd(int) {
  if (!interrupted.exchange(true)) {
    first_at = Milliseconds();
  } else if (Milliseconds() - first_at > kOnePress) {
    _exit(kExitInterrupted);
  }
}

}  // namespace

InterruptScope::InterruptScope(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // output goes on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_);
}

InterruptScope::~InterruptScope() { sigaction(SIGINT, &before_, nullptr); }

IgnoreInterrupts::IgnoreInterrupts() : InterruptScope(&Ignore) {}

CatchInterrupts::CatchInterrupts() : InterruptScope((interrupted = false, &SetFlagOrEnd)) {}

const std::atomic<bool>* CatchInterrupts::flag() const { return &interrupted; }

}  // namespace octet
