// The relocations of a shared library, and the functions that run when it is loaded and when the process ends.
#include <elf.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/loader/elf_dynamic.h"

namespace octet {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kNone = R_X86_64_NONE, kRelative = R_X86_64_RELATIVE, kIrelative = R_X86_64_IRELATIVE,
                   kCopy = R_X86_64_COPY, kTlsDesc = R_X86_64_TLSDESC;
#elif defined(__aarch64__)
constexpr uint32_t kNone = R_AARCH64_NONE, kRelative = R_AARCH64_RELATIVE, kIrelative = R_AARCH64_IRELATIVE,
                   kCopy = R_AARCH64_COPY, kTlsDesc = R_AARCH64_TLSDESC;
#endif

}  // namespace

// A file may have a million pieces and a million relocations, so each of these must cost no more than a search.
void ElfDynamic::JoinFixed() {
  std::sort(fixed_.begin(), fixed_.end(), [](const Table& a, const Table& b) { return a.begin < b.begin; });
  size_t joined = 0;
  for (const Table piece : fixed_) {
    if (joined > 0 && piece.begin <= fixed_[joined - 1].begin + fixed_[joined - 1].bytes) {
      Table& last = fixed_[joined - 1];
      last.bytes = std::max(last.bytes, piece.begin + piece.bytes - last.begin);
    } else {
      fixed_[joined++] = piece;
    }
  }
  fixed_.resize(joined);
}

absl::Status ElfDynamic::CheckRelocations() {
  JoinFixed();
  for (const Table& array : functions_) {
    for (uint64_t at = array.begin; at < array.begin + array.bytes; at += sizeof(Elf64_Addr)) filled_[at] = false;
  }
  for (const auto& [tag, size_tag] : {std::pair{DT_RELA, DT_RELASZ}, std::pair{DT_JMPREL, DT_PLTRELSZ}}) {
    const std::optional<Table> table = TableOf(tag, size_tag);
    if (!table) continue;
    const uint64_t count = table->bytes / sizeof(Elf64_Rela);
    const uint64_t relative = tag == DT_RELA && Has(DT_RELACOUNT) ? Value(DT_RELACOUNT) : 0;
    if (relative > count) return ElfDamaged("it has fewer relative relocations than it says");
    for (uint64_t i = 0; i < count; ++i) {
      const Elf64_Rela r = *image_->Get<Elf64_Rela>(table->begin + i * sizeof(Elf64_Rela));
      if (i < relative && ELF64_R_TYPE(r.r_info) != kRelative) {
        return ElfDamaged("it has fewer relative relocations than it says");
      }
      if (absl::Status status = CheckRelocation(r); !status.ok()) return status;
    }
  }
  if (absl::Status status = CheckRelative(); !status.ok()) return status;
  return CheckFunctions();
}

absl::Status ElfDynamic::CheckRelocation(const Elf64_Rela& r) {
  const auto type = static_cast<uint32_t>(ELF64_R_TYPE(r.r_info));
  if (type == kNone) return absl::OkStatus();
  if (type == kCopy) return ElfDamaged("it copies data of another library, which only programs do");
  if (ELF64_R_SYM(r.r_info) >= symbols_) return ElfDamaged("a relocation names a symbol that does not exist");
  if (absl::Status status = CheckTarget(r.r_offset, type == kTlsDesc ? 16 : 8); !status.ok()) return status;
  const auto addend = static_cast<uint64_t>(r.r_addend);
  if (type == kIrelative && !image_->IsCode(addend)) {
    return ElfDamaged("a function that chooses another one lies outside its code");
  }
  if (type == kRelative && !image_->IsSpanned(addend)) return ElfDamaged("an address in its data lies outside it");
  return NoteFunction(r.r_offset, type == kRelative ? std::optional(addend) : std::nullopt);
}

// DT_RELR: an even word is an address, an odd one a bit map of the 63 words behind the last address.
absl::Status ElfDynamic::CheckRelative() {
  const std::optional<Table> table = TableOf(DT_RELR, DT_RELRSZ);
  if (!table) return absl::OkStatus();
  const auto check = [this](uint64_t address) {
    if (absl::Status status = CheckTarget(address, 8); !status.ok()) return status;
    const auto addend = image_->Get<uint64_t>(address);
    if (!addend || !image_->IsSpanned(*addend)) return ElfDamaged("an address in its data lies outside it");
    return NoteFunction(address, addend);
  };
  uint64_t next = 0;
  for (uint64_t at = table->begin; at < table->begin + table->bytes; at += sizeof(Elf64_Relr)) {
    const Elf64_Relr word = *image_->Get<Elf64_Relr>(at);
    if ((word & 1) == 0) {
      if (absl::Status status = check(word); !status.ok()) return status;
      next = word + 8;
      continue;
    }
    for (uint64_t bit = 1; bit < 64; ++bit) {
      if ((word >> bit & 1) == 0) continue;
      if (absl::Status status = check(next + (bit - 1) * 8); !status.ok()) return status;
    }
    next += uint64_t{63} * 8;
  }
  return absl::OkStatus();
}

absl::Status ElfDynamic::CheckTarget(uint64_t address, uint64_t bytes) const {
  if (!image_->IsWritable(address, bytes)) return ElfDamaged("a relocation lies outside its writable segments");
  const auto behind = std::lower_bound(fixed_.begin(), fixed_.end(), address + bytes,
                                       [](const Table& fixed, uint64_t end) { return fixed.begin < end; });
  if (behind != fixed_.begin() && address < (behind - 1)->begin + (behind - 1)->bytes) {
    return ElfDamaged("a relocation would change the tables that the dynamic linker reads");
  }
  return absl::OkStatus();
}

absl::Status ElfDynamic::NoteFunction(uint64_t address, std::optional<uint64_t> code) {
  for (const Table& array : functions_) {
    if (address >= array.begin + array.bytes || address + 8 <= array.begin) continue;
    const auto entry = filled_.find(address);
    if (entry == filled_.end() || (code && !image_->IsCode(*code))) {
      return ElfDamaged("a function of its start or end lies outside its code");
    }
    entry->second = true;
  }
  return absl::OkStatus();
}

// An entry that no relocation fills would be called as it stands, an address that is not the library's.
absl::Status ElfDynamic::CheckFunctions() const {
  const bool all = std::all_of(filled_.begin(), filled_.end(), [](const auto& entry) { return entry.second; });
  return all ? absl::OkStatus() : ElfDamaged("a function of its start or end lies outside its code");
}

}  // namespace octet
