#include "core/base/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace octet {

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  const int fd = standard ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int open_errno = errno;
    const std::string text = absl::StrCat("cannot open ", path, ": ", std::strerror(open_errno));
    return open_errno == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  const absl::Cleanup closer = [fd, standard] {
    if (!standard) close(fd);
  };
  std::string text;
  constexpr size_t kPiece = 1 << 16;
  for (size_t size = 0;;) {
    text.resize(size + kPiece);
    const ssize_t got = read(fd, text.data() + size, kPiece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::InvalidArgumentError(absl::StrCat("cannot read ", name, ": ", std::strerror(errno)));
    if (got == 0) {
      text.resize(size);
      break;
    }
    size += static_cast<size_t>(got);
    if (size > kMaxTextBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has more than ", kMaxTextBytes >> 20,
                                                     " MiB, the most that is read as one text; give a shorter one"));
    }
  }
  return text;
}

}  // namespace octet
