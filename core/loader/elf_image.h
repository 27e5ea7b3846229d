// An ELF file as the dynamic linker will map it: its segments, and the bytes behind their addresses.
//
// Read checks what glibc takes for granted: that segments ascend, lie inside the file and do not share pages. Every
// access afterwards is bounded by them. Format: System V ABI, ELF-64, chapter 5; elf(5).
#ifndef OCTET_CORE_LOADER_ELF_IMAGE_H_
#define OCTET_CORE_LOADER_ELF_IMAGE_H_

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace octet {

// "the file is cut short or damaged: <what>".
absl::Status ElfDamaged(std::string_view what);

// Points into `file`, which must outlive it. Addresses are virtual addresses as the file writes them.
class ElfImage {
 public:
  // FailedPrecondition, with the reason, for anything but a shared library for this machine whose headers hold
  // together.
  static absl::StatusOr<ElfImage> Read(std::span<const std::byte> file);

  const Elf64_Phdr& dynamic() const { return dynamic_; }

  // The first of `bytes` bytes at an address; null unless all of them stand in the file, in one segment.
  const std::byte* At(uint64_t address, uint64_t bytes) const;
  template <typename T>
  std::optional<T> Get(uint64_t address) const {
    const std::byte* at = At(address, sizeof(T));
    if (at == nullptr) return std::nullopt;
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  bool IsSpanned(uint64_t address) const;                   // between its first and last byte, or just behind
  bool IsCode(uint64_t address) const;                      // in an executable segment
  bool IsWritable(uint64_t address, uint64_t bytes) const;  // memory behind the file's bytes (.bss) counts

 private:
  explicit ElfImage(std::span<const std::byte> file) : file_(file) {}

  template <typename T>
  std::optional<T> FromFile(uint64_t offset) const {
    if (offset > file_.size() || sizeof(T) > file_.size() - offset) return std::nullopt;
    T value;
    std::memcpy(&value, file_.data() + offset, sizeof value);
    return value;
  }
  absl::Status CheckHeader(const Elf64_Ehdr& header) const;
  absl::Status AddLoad(const Elf64_Phdr& segment);
  absl::Status CheckSegment(const Elf64_Ehdr& header, const Elf64_Phdr& segment) const;
  absl::Status CheckSections(const Elf64_Ehdr& header) const;
  // The last segment that begins at or before an address, which may lie behind its end; null before the first.
  const Elf64_Phdr* LoadBefore(uint64_t address) const;
  bool HoldsFileBytes(uint64_t address, uint64_t offset, uint64_t bytes) const;

  std::span<const std::byte> file_;
  std::vector<Elf64_Phdr> loads_;  // ascending
  Elf64_Phdr dynamic_{};
  uint64_t relro_end_ = 0;  // first address that stays writable
};

}  // namespace octet

#endif  // OCTET_CORE_LOADER_ELF_IMAGE_H_
