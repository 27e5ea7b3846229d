#include "core/cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace octet {

Progress::Progress(std::string what)
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { Erase(); }

void Progress::Erase() {
  if (shown_percent_ >= 0) std::fprintf(stderr, "\r\033[K");
  shown_percent_ = -1;
}

void Progress::Update(double share) {
  if (share >= 1) return Erase();
  if (!terminal_ || std::chrono::steady_clock::now() - start_ < std::chrono::seconds(1)) return;
  const int percent = static_cast<int>(share * 100);
  if (percent == shown_percent_) return;
  shown_percent_ = percent;
  std::fprintf(stderr, "\r\033[K%s %d %%", what_.c_str(), percent);
}

}  // namespace octet
