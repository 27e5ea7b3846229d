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
  close(fd);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", path, ": ", std::strerror(map_errno)));
  }
  MappedFile file;
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  file.mapped_ = true;
  return file;
}

MappedFile MappedFile::Borrow(std::span<const std::byte> bytes) {
  MappedFile file;
  file.data_ = bytes.data();
  file.size_ = bytes.size();
  return file;
}

MappedFile::~MappedFile() {
  if (mapped_) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::DropPages(size_t offset, size_t size) const {
  if (!mapped_) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size) / page * page;
  if (begin < end && end <= size_) madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace octet
