// A progress line for long work: on a terminal only, so that a pipe or a log holds none.
#ifndef OCTET_CORE_CLI_PROGRESS_H_
#define OCTET_CORE_CLI_PROGRESS_H_

#include <chrono>
#include <string>

namespace octet {

// Writes to stderr from the second second on; erased when all is done, before anything else is written there, or when
// it ends. Thread-compatible.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  void Update(double share);
  // The same for callbacks with a context pointer.
  static void Callback(double share, void* progress) { static_cast<Progress*>(progress)->Update(share); }

 private:
  void Erase();

  std::string what_;
  bool terminal_;
  int shown_percent_ = -1;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace octet

#endif  // OCTET_CORE_CLI_PROGRESS_H_
