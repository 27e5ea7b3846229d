// A whole file mapped read-only into memory, or bytes that stand in for one. Whoever may write to the file may also
// shorten it: reading behind its new end raises SIGBUS (the octet program answers with a sentence,
// core/cli/file_fault.h), and the rest of its last page reads as zeros. So CheckUnchanged is asked after the last byte
// was read.
#ifndef OCTET_CORE_BASE_MAPPED_FILE_H_
#define OCTET_CORE_BASE_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace octet {

// Owns the mapping; moves, does not copy. Safe to read from any thread.
class MappedFile {
 public:
  // NotFound when there is no such file, InvalidArgument when it cannot be opened, is not a regular file or is empty,
  // ResourceExhausted when it cannot be mapped; the message names the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  // A view of the caller's bytes, which must outlive it.
  static MappedFile Borrow(std::span<const std::byte> bytes);

  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(fd_, other.fd_);
    std::swap(changed_ns_, other.changed_ns_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // DataLoss when the file is no longer what was opened: another length, or written to since. What was read until then
  // may be wrong. `path` is for the message.
  absl::Status CheckUnchanged(const std::string& path) const;

  // Tells the kernel that `bytes`, which lie in bytes(), will not be read again soon: their pages go, and those that
  // they share with their neighbours. All of them stay readable.
  void DropPages(std::span<const std::byte> bytes) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;             // -1: borrowed
  int64_t changed_ns_ = 0;  // time of the last write, at Open
};

}  // namespace octet

#endif  // OCTET_CORE_BASE_MAPPED_FILE_H_
