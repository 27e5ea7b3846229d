#include "core/loader/elf_image.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "add this machine's ELF number"
#endif

constexpr uint64_t kAddressEnd = uint64_t{1} << 47;    // no sum below wraps
constexpr uint64_t kMostTlsBytes = uint64_t{1} << 28;  // glibc ends the process when a thread cannot get its block

std::string MachineName(uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "aarch64";
    case EM_386:
      return "32-bit x86";
    case EM_PPC64:
      return "ppc64";
    case EM_S390:
      return "s390x";
    case EM_RISCV:
      return "riscv64";
    default:
      return absl::StrCat("machine number ", machine);
  }
}

uint64_t PageBytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
uint64_t PageDown(uint64_t address) { return address / PageBytes() * PageBytes(); }
uint64_t PageUp(uint64_t address) { return PageDown(address + PageBytes() - 1); }

}  // namespace

absl::Status ElfDamaged(std::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("the file is cut short or damaged: ", std::string(what)));
}

absl::StatusOr<ElfImage> ElfImage::Read(std::span<const std::byte> file) {
  ElfImage image(file);
  const auto ident = image.FromFile<std::array<unsigned char, EI_NIDENT>>(0);
  if (!ident || std::memcmp(ident->data(), ELFMAG, SELFMAG) != 0) {
    return absl::FailedPreconditionError("the file is not a shared library (no ELF header)");
  }
  if ((*ident)[EI_CLASS] != ELFCLASS64) {
    return absl::FailedPreconditionError("it is a 32-bit library; this program needs 64-bit ones");
  }
  if ((*ident)[EI_DATA] != ELFDATA2LSB) {
    return absl::FailedPreconditionError("it is a big-endian library; this program needs little-endian ones");
  }
  const auto header = image.FromFile<Elf64_Ehdr>(0);
  if (!header) return ElfDamaged("the ELF header is incomplete");
  if (absl::Status status = image.CheckHeader(*header); !status.ok()) return status;

  std::vector<Elf64_Phdr> segments;
  for (uint64_t i = 0; i < header->e_phnum; ++i) {
    // e_phoff + i * 56 cannot wrap into the file again: FromFile refuses offsets beyond its end.
    const auto segment = header->e_phoff <= file.size()
                             ? image.FromFile<Elf64_Phdr>(header->e_phoff + i * sizeof(Elf64_Phdr))
                             : std::nullopt;
    if (!segment) return ElfDamaged("the program headers end early");
    segments.push_back(*segment);
    if (segment->p_type == PT_DYNAMIC) image.dynamic_ = *segment;
    if (segment->p_type == PT_GNU_RELRO) image.relro_end_ = PageDown(segment->p_vaddr + segment->p_memsz);
    if (segment->p_type != PT_LOAD) continue;
    if (absl::Status status = image.AddLoad(*segment); !status.ok()) return status;
  }
  if (image.dynamic_.p_type != PT_DYNAMIC || image.loads_.empty()) {
    return absl::FailedPreconditionError("it is an ELF file without a dynamic section");
  }
  for (const Elf64_Phdr& segment : segments) {
    if (absl::Status status = image.CheckSegment(*header, segment); !status.ok()) return status;
  }
  if (absl::Status status = image.CheckSections(*header); !status.ok()) return status;
  return image;
}

absl::Status ElfImage::CheckHeader(const Elf64_Ehdr& header) const {
  if (header.e_machine != kMachine) {
    return absl::FailedPreconditionError(absl::StrCat("it was built for ", MachineName(header.e_machine),
                                                      "; this program runs on ", MachineName(kMachine)));
  }
  if (header.e_type != ET_DYN) return absl::FailedPreconditionError("it is an ELF file but not a shared library");
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return ElfDamaged("its program headers have an unknown size");
  return absl::OkStatus();
}

absl::Status ElfImage::AddLoad(const Elf64_Phdr& s) {
  if (s.p_offset > file_.size() || s.p_filesz > file_.size() - s.p_offset) {
    return ElfDamaged("a segment lies beyond the end of the file");
  }
  if (s.p_memsz < s.p_filesz || s.p_vaddr >= kAddressEnd || s.p_memsz >= kAddressEnd) {
    return ElfDamaged("a segment has an impossible size or address");
  }
  if ((s.p_vaddr - s.p_offset) % PageBytes() != 0 || !std::has_single_bit(s.p_align)) {
    return ElfDamaged("a segment is not aligned to pages");
  }
  if ((s.p_flags & PF_R) == 0) return ElfDamaged("a segment may not be read");
  if (!loads_.empty() && PageDown(s.p_vaddr) < PageUp(loads_.back().p_vaddr + loads_.back().p_memsz)) {
    return ElfDamaged("its segments overlap or are out of order");
  }
  loads_.push_back(s);
  return absl::OkStatus();
}

// What the dynamic linker and the unwinder read through the other program headers.
absl::Status ElfImage::CheckSegment(const Elf64_Ehdr& header, const Elf64_Phdr& s) const {
  switch (s.p_type) {
    case PT_DYNAMIC: {
      // glibc writes to it unless its flags say that it may not.
      const bool in_place = HoldsFileBytes(s.p_vaddr, s.p_offset, s.p_filesz) && s.p_vaddr % alignof(Elf64_Dyn) == 0;
      const bool wrong_flags = (s.p_flags & PF_W) != 0 && in_place && !IsWritable(s.p_vaddr, s.p_filesz);
      if (!in_place || wrong_flags) return ElfDamaged("the dynamic section lies outside its segments");
      break;
    }
    case PT_PHDR:
      if (s.p_offset != header.e_phoff ||
          !HoldsFileBytes(s.p_vaddr, s.p_offset, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) {
        return ElfDamaged("the program headers lie outside its segments");
      }
      break;
    case PT_NOTE:
    case PT_GNU_PROPERTY:
    case PT_GNU_EH_FRAME:
      if (!HoldsFileBytes(s.p_vaddr, s.p_offset, s.p_filesz) || s.p_memsz != s.p_filesz) {
        return ElfDamaged("its notes or unwind tables lie outside its segments");
      }
      break;
    case PT_TLS:
      if (s.p_memsz < s.p_filesz || s.p_memsz > kMostTlsBytes || !std::has_single_bit(s.p_align) ||
          s.p_align > kMostTlsBytes || (s.p_filesz > 0 && !HoldsFileBytes(s.p_vaddr, s.p_offset, s.p_filesz))) {
        return ElfDamaged("its thread-local data lies outside its segments or has an impossible size");
      }
      break;
    case PT_GNU_RELRO: {
      // It becomes read-only, so it must not reach into another library or beyond the page where the file's bytes end.
      bool inside = false;
      for (const Elf64_Phdr& load : loads_) {
        inside = inside || ((load.p_flags & PF_W) != 0 && s.p_vaddr >= load.p_vaddr && s.p_memsz < kAddressEnd &&
                            s.p_vaddr + s.p_memsz <= PageUp(load.p_vaddr + load.p_filesz));
      }
      if (!inside) return ElfDamaged("what becomes read-only after loading lies outside its writable segments");
      break;
    }
    default:
      break;
  }
  return absl::OkStatus();
}

// The section table says once more where everything lies. A file without one is as good to the dynamic linker.
absl::Status ElfImage::CheckSections(const Elf64_Ehdr& header) const {
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > file_.size() ||
      uint64_t{header.e_shnum} * sizeof(Elf64_Shdr) > file_.size() - header.e_shoff) {
    return absl::OkStatus();
  }
  const auto names = FromFile<Elf64_Shdr>(header.e_shoff + uint64_t{header.e_shstrndx} * sizeof(Elf64_Shdr));
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = *FromFile<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr));
    const bool image_of_tls = s.sh_type == SHT_NOBITS && (s.sh_flags & SHF_TLS) != 0;
    if ((s.sh_flags & SHF_ALLOC) == 0 || s.sh_size == 0 || image_of_tls) continue;
    const bool zeros = s.sh_type == SHT_NOBITS;
    bool agrees = zeros ? At(s.sh_addr, 1) == nullptr : HoldsFileBytes(s.sh_addr, s.sh_offset, s.sh_size);
    if ((s.sh_flags & SHF_WRITE) != 0) agrees = agrees && IsWritable(s.sh_addr, s.sh_size);
    if ((s.sh_flags & SHF_EXECINSTR) != 0) agrees = agrees && IsCode(s.sh_addr);
    if (s.sh_type == SHT_DYNAMIC) agrees = agrees && s.sh_addr == dynamic_.p_vaddr;
    // Data that its code writes to must stay writable; what else may lie there is the linker's choice.
    const auto name = names ? FromFile<std::array<char, 6>>(names->sh_offset + s.sh_name) : std::nullopt;
    if (name && (std::memcmp(name->data(), ".data", 6) == 0 || std::memcmp(name->data(), ".bss", 5) == 0)) {
      agrees = agrees && s.sh_addr >= relro_end_;
    }
    if (!agrees) return ElfDamaged("its segments and its section table disagree");
  }
  return absl::OkStatus();
}

const Elf64_Phdr* ElfImage::LoadBefore(uint64_t address) const {
  const auto behind = std::upper_bound(loads_.begin(), loads_.end(), address,
                                       [](uint64_t at, const Elf64_Phdr& load) { return at < load.p_vaddr; });
  return behind == loads_.begin() ? nullptr : &*(behind - 1);
}

const std::byte* ElfImage::At(uint64_t address, uint64_t bytes) const {
  const Elf64_Phdr* load = LoadBefore(address);
  if (load == nullptr || address - load->p_vaddr > load->p_filesz) return nullptr;
  const uint64_t skipped = address - load->p_vaddr;
  return bytes <= load->p_filesz - skipped ? file_.data() + load->p_offset + skipped : nullptr;
}

bool ElfImage::HoldsFileBytes(uint64_t address, uint64_t offset, uint64_t bytes) const {
  const std::byte* at = At(address, bytes);
  return at != nullptr && static_cast<uint64_t>(at - file_.data()) == offset;
}

bool ElfImage::IsSpanned(uint64_t address) const {
  return address >= loads_.front().p_vaddr && address <= loads_.back().p_vaddr + loads_.back().p_memsz;
}

bool ElfImage::IsCode(uint64_t address) const {
  const Elf64_Phdr* load = LoadBefore(address);
  return load != nullptr && address - load->p_vaddr < load->p_filesz && (load->p_flags & PF_X) != 0;
}

bool ElfImage::IsWritable(uint64_t address, uint64_t bytes) const {
  const Elf64_Phdr* load = LoadBefore(address);
  return load != nullptr && address - load->p_vaddr < load->p_memsz && (load->p_flags & PF_W) != 0 &&
         bytes <= load->p_memsz - (address - load->p_vaddr);
}

}  // namespace octet
