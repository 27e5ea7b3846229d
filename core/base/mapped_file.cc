#include "core/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace octet {
namespace {

int64_t ChangedNs(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // Without O_NONBLOCK a named pipe would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int open_errno = errno;
    const std::string text = absl::StrCat("cannot open ", path, ": ", std::strerror(open_errno));
    return open_errno == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, S_ISREG(info.st_mode) ? " is an empty file" : " is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_errno = errno;
  if (data == MAP_FAILED) {
    close(fd);
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", path, ": ", std::strerror(map_errno)));
  }
  MappedFile file;
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  file.fd_ = fd;
  file.changed_ns_ = ChangedNs(info);
  return file;
}

MappedFile MappedFile::Borrow(std::span<const std::byte> bytes) {
  MappedFile file;
  file.data_ = bytes.data();
  file.size_ = bytes.size();
  return file;
}

MappedFile::~MappedFile() {
  if (fd_ < 0) return;
  munmap(const_cast<std::byte*>(data_), size_);
  close(fd_);
}

absl::Status MappedFile::CheckUnchanged(const std::string& path) const {
  if (fd_ < 0) return absl::OkStatus();
  struct stat info {};
  if (fstat(fd_, &info) != 0) {
    return absl::DataLossError(absl::StrCat("cannot look at ", path, " again: ", std::strerror(errno)));
  }
  if (static_cast<size_t>(info.st_size) == size_ && ChangedNs(info) == changed_ns_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " was changed while octet read it: it had ", size_, " bytes and has ",
                                          info.st_size, "; run again once it is whole"));
}

void MappedFile::DropPages(std::span<const std::byte> bytes) const {
  if (fd_ < 0 || bytes.empty()) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(bytes.data() - data_);
  const size_t begin = offset / page * page;
  madvise(const_cast<std::byte*>(data_) + begin, offset + bytes.size() - begin, MADV_DONTNEED);
}

}  // namespace octet
