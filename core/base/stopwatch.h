// Time since it was made.
#ifndef OCTET_CORE_BASE_STOPWATCH_H_
#define OCTET_CORE_BASE_STOPWATCH_H_

#include <chrono>

namespace octet {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace octet

#endif  // OCTET_CORE_BASE_STOPWATCH_H_
