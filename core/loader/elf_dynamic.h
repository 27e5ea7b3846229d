// The dynamic section of a shared library, with everything that it points at checked: glibc follows these pointers,
// sizes and indexes without looking, so one damaged byte would end the process.
//
// What cannot be seen in the file stays unseen: an address that is inside the code but wrong. Format: System V ABI,
// chapter 5; GNU hash and symbol versions as in glibc's elf/dl-lookup.c and elf/dl-version.c.
#ifndef OCTET_CORE_LOADER_ELF_DYNAMIC_H_
#define OCTET_CORE_LOADER_ELF_DYNAMIC_H_

#include <elf.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/loader/elf_image.h"

namespace octet {

// Points into `image`, which must outlive it.
class ElfDynamic {
 public:
  // FailedPrecondition, with what is damaged. Leaves the relocations aside.
  static absl::StatusOr<ElfDynamic> Read(const ElfImage& image);

  const std::vector<std::string_view>& needed() const { return needed_; }  // names of libraries, in order
  uint64_t symbols() const { return symbols_; }
  Elf64_Sym symbol(uint64_t index) const;  // index < symbols()
  std::string_view name(const Elf64_Sym& symbol) const;

  // Once, after Read: the relocations, and the functions that run when it is loaded and when the process ends.
  absl::Status CheckRelocations();

 private:
  explicit ElfDynamic(const ElfImage& image) : image_(&image) {}

  // A table: its address, and its size in bytes where it has one.
  struct Table {
    uint64_t begin = 0, bytes = 0;
  };
  bool Has(int64_t tag) const { return values_.contains(tag); }
  uint64_t Value(int64_t tag) const { return values_.at(tag); }
  std::optional<Table> TableOf(int64_t tag, int64_t size_tag) const;
  std::optional<std::string_view> Text(uint64_t offset) const;
  void Keep(uint64_t begin, uint64_t bytes) { fixed_.push_back({begin, bytes}); }

  absl::Status ReadEntries();
  absl::Status CheckTables();
  absl::Status CheckStrings();
  absl::Status CheckGnuHash();
  absl::Status CheckHash();
  absl::Status CheckSymbols() const;
  absl::Status CheckVersions();
  absl::Status ReadVersionNeeds(uint32_t* highest);
  absl::Status ReadVersionDefinitions(uint32_t* highest);
  void JoinFixed();
  absl::Status CheckRelocation(const Elf64_Rela& relocation);
  absl::Status CheckRelative();
  absl::Status CheckTarget(uint64_t address, uint64_t bytes) const;
  // A pointer to code is written to `address`: notes it where that is an entry of an array of functions.
  absl::Status NoteFunction(uint64_t address, std::optional<uint64_t> code);
  absl::Status CheckFunctions() const;

  const ElfImage* image_;
  std::map<int64_t, uint64_t> values_;  // by tag; the last entry counts, as for glibc
  std::vector<uint64_t> texts_;         // offsets of names
  std::vector<uint64_t> needed_offsets_;
  std::vector<std::string_view> needed_;
  Table strings_;
  uint64_t symbols_ = 0;
  std::vector<Table> fixed_;         // what no relocation may change; ascending and apart once they are checked
  std::vector<Table> functions_;     // arrays of functions that run when it is loaded and when the process ends
  std::map<uint64_t, bool> filled_;  // entries of those arrays: does a relocation fill it?
};

}  // namespace octet

#endif  // OCTET_CORE_LOADER_ELF_DYNAMIC_H_
