#include "core/cli/interrupt.h"

#include <unistd.h>

namespace octet {
namespace {

constexpr int kExitInterrupted = 130;

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a handler may touch lock-free atomics only");

void Ignore(int) {}

void SetFlagOrEnd(int) {
  if (interrupted.exchange(true)) _exit(kExitInterrupted);
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
