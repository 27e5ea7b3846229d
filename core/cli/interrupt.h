// What Ctrl-C (SIGINT) does while a scope lasts. The handlers only set a flag or end the program.
// Reference: signal-safety(7).
#ifndef OCTET_CORE_CLI_INTERRUPT_H_
#define OCTET_CORE_CLI_INTERRUPT_H_

#include <csignal>

#include <atomic>

namespace octet {

// Scopes nest; the one before is back when one ends. One thread makes and ends them.
class InterruptScope {
 public:
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 protected:
  explicit InterruptScope(void (*handler)(int));

 private:
  struct sigaction before_;
};

// Nothing, until the prompt waits for it (prompt_signals.h).
class IgnoreInterrupts : public InterruptScope {
 public:
  IgnoreInterrupts();
};

// The first one sets the flag; another one, a third of a second later or more, ends the program with exit code 130, as
// shells number an end by SIGINT.
class CatchInterrupts : public InterruptScope {
 public:
  CatchInterrupts();
  const std::atomic<bool>* flag() const;
};

}  // namespace octet

#endif  // OCTET_CORE_CLI_INTERRUPT_H_
