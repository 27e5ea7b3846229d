#include "core/cli/history_file.h"

#include <fcntl.h>
#include <histedit.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/program.h"

namespace octet {
namespace {

constexpr int kLockTries = 100;
constexpr useconds_t kLockPause = 20000;  // microseconds

// Empty where there is no place for it.
std::string StateFolder() {
  // A relative path there is to be ignored, the specification says.
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') return state;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? absl::StrCat(home, "/.local/state") : std::string();
}

absl::Status FileError(const char* what, const std::string& path) {
  return absl::UnknownError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

// The folder and those above it.
absl::Status MakeFolders(const std::string& folder) {
  for (size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    const std::string part = folder.substr(0, end);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return FileError("cannot make the folder", part);
    if (end == std::string::npos) return absl::OkStatus();
  }
}

bool IsNull(const struct stat& file) { return S_ISCHR(file.st_mode) && file.st_rdev == makedev(1, 3); }

class Locked {
 public:
  Locked() = default;
  explicit Locked(int fd) : fd_(fd) {}
  Locked(Locked&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Locked& operator=(Locked&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Locked() {
    if (fd_ >= 0) close(fd_);  // ends the lock
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;  // -1: /dev/null, which keeps nothing
};

// The file behind the links, with a lock that every octet takes before it reads all of it or writes.
absl::StatusOr<Locked> OpenLocked(const std::string& path) {
  for (;;) {
    // First without opening: that alone would have an effect on a pipe or a tape.
    struct stat file;
    if (stat(path.c_str(), &file) == 0) {
      if (IsNull(file)) return Locked();
      if (!S_ISREG(file.st_mode)) return absl::UnknownError(absl::StrCat(path, " is not an ordinary file"));
      // Root may write what has no write permission, and was told not to all the same.
      if ((file.st_mode & 0222) == 0) return absl::UnknownError(absl::StrCat(path, " is read-only"));
    }
    Locked opened(open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600));
    if (opened.fd() < 0) return FileError("cannot write", path);
    // Another chat holds it for a moment; whoever holds it for longer is not waited for.
    for (int tries = 0; flock(opened.fd(), LOCK_EX | LOCK_NB) != 0; ++tries) {
      if ((errno != EINTR && errno != EWOULDBLOCK) || tries == kLockTries) return FileError("cannot lock", path);
      usleep(kLockPause);
    }
    // Another program may have put a shorter one in its place meanwhile.
    struct stat now, ours;
    if (fstat(opened.fd(), &ours) != 0) return FileError("cannot read", path);
    if (stat(path.c_str(), &now) == 0 && now.st_ino == ours.st_ino && now.st_dev == ours.st_dev) return opened;
  }
}

// What libedit would put into a file: a first line that names the format, and a line per entry.
absl::StatusOr<std::string> Encode(struct history* entries) {
  // Not open_memstream: libedit changes the mode of what it writes, which only files have.
  const int fd = memfd_create("octet-history", MFD_CLOEXEC);
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> stream(fd < 0 ? nullptr : fdopen(fd, "w+"), &std::fclose);
  if (stream == nullptr) {
    if (fd >= 0) close(fd);
    return absl::UnknownError("there is no memory to write the history");
  }
  HistEvent event;
  std::string text;
  if (history(entries, &event, H_SAVE_FP, stream.get()) >= 0 && std::fflush(stream.get()) == 0) {
    text.resize(static_cast<size_t>(std::max(std::ftell(stream.get()), 0L)));
    std::rewind(stream.get());
    if (std::fread(text.data(), 1, text.size(), stream.get()) == text.size() && !text.empty()) return text;
  }
  return absl::UnknownError("the history cannot be put into its format");
}

// Written beside the file and moved over it: never half a history, never one that others may read.
absl::Status Replace(const std::string& link, const std::string& text) {
  const std::unique_ptr<char, decltype(&std::free)> target(realpath(link.c_str(), nullptr), &std::free);
  if (target == nullptr) return FileError("cannot find", link);
  std::string path = absl::StrCat(target.get(), ".XXXXXX");
  const int fd = mkstemp(path.data());  // with mode 0600
  if (fd < 0) return FileError("cannot write", path);
  absl::Status status;
  if (!WriteAll(fd, text)) status = FileError("cannot write", path);
  if (close(fd) != 0 && status.ok()) status = FileError("cannot write", path);
  if (status.ok() && std::rename(path.c_str(), target.get()) != 0) status = FileError("cannot write", target.get());
  if (!status.ok()) unlink(path.c_str());
  return status;
}

}  // namespace

absl::Status HistoryFile::Open(struct history* entries, int max_entries) {
  if (std::getenv("OCTET_NO_HISTORY") != nullptr) return absl::OkStatus();
  const std::string state = StateFolder();
  if (state.empty()) return absl::OkStatus();
  const std::string folder = absl::StrCat(state, "/octet");
  if (auto status = MakeFolders(folder); !status.ok()) return status;
  const std::string path = absl::StrCat(folder, "/history");
  auto locked = OpenLocked(path);
  if (!locked.ok()) return locked.status();
  if (locked->fd() < 0) return absl::OkStatus();
  struct stat file;
  if (fstat(locked->fd(), &file) != 0) return FileError("cannot read", path);
  if (file.st_size > 0) {
    HistEvent event;
    const int loaded = history(entries, &event, H_LOAD, path.c_str());
    if (loaded < 0) {
      return absl::UnknownError(
          absl::StrCat(path, " is no history of this editor or cannot be read; remove it to start anew"));
    }
    if (loaded > max_entries) {
      const auto text = Encode(entries);
      if (!text.ok()) return text.status();
      if (auto status = Replace(path, *text); !status.ok()) return status;
    }
  }
  path_ = path;
  return absl::OkStatus();
}

absl::Status HistoryFile::Append(const std::string& entry) {
  if (path_.empty()) return absl::OkStatus();
  const std::unique_ptr<struct history, decltype(&history_end)> alone(history_init(), &history_end);
  if (alone == nullptr) return absl::UnknownError("the history cannot be written");
  HistEvent event;
  history(alone.get(), &event, H_SETSIZE, 1);
  history(alone.get(), &event, H_ENTER, entry.c_str());
  auto text = Encode(alone.get());
  if (!text.ok()) return text.status();

  auto locked = OpenLocked(path_);
  if (!locked.ok()) return locked.status();
  if (locked->fd() < 0) return absl::OkStatus();
  struct stat file;
  if (fstat(locked->fd(), &file) != 0) return FileError("cannot read", path_);
  if (file.st_size > 0) {
    text->erase(0, text->find('\n') + 1);  // the first line is there
    char last = '\n';
    if (pread(locked->fd(), &last, 1, file.st_size - 1) == 1 && last != '\n') *text = absl::StrCat("\n", *text);
  }
  return WriteAll(locked->fd(), *text) ? absl::OkStatus() : FileError("cannot write", path_);
}

}  // namespace octet
