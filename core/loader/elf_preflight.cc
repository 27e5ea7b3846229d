#include "core/loader/elf_preflight.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
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

absl::Status Damaged(const char* what) {
  return absl::FailedPreconditionError(absl::StrCat("the file is cut short or damaged: ", what));
}

// Bounded reads at file offsets.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  std::optional<T> Read(uint64_t offset) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  // The NUL-terminated text at `offset`, all of it before `end`.
  std::optional<std::string_view> Text(uint64_t offset, uint64_t end) const {
    end = std::min<uint64_t>(end, bytes_.size());
    if (offset >= end) return std::nullopt;
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + offset;
    const void* nul = std::memchr(begin, 0, end - offset);
    if (nul == nullptr) return std::nullopt;
    return std::string_view(begin, static_cast<size_t>(static_cast<const char*>(nul) - begin));
  }

  uint64_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

struct Dynamic {
  uint64_t symtab = 0, strtab = 0, strsz = 0, hash = 0, gnu_hash = 0;  // virtual addresses, bytes
  std::vector<uint64_t> needed;                                        // offsets into strtab
};

class Inspector {
 public:
  explicit Inspector(std::span<const std::byte> file) : file_(file) {}

  absl::StatusOr<ElfReport> Run() {
    if (absl::Status status = ReadHeader(); !status.ok()) return status;
    if (absl::Status status = ReadDynamic(); !status.ok()) return status;
    const std::optional<uint64_t> strtab = FileOffset(dynamic_.strtab);
    if (!strtab || dynamic_.strsz > file_.size()) return Damaged("it has no string table");
    const uint64_t strtab_end = *strtab + dynamic_.strsz;

    ElfReport report;
    for (uint64_t name : dynamic_.needed) {
      const auto text = name < dynamic_.strsz ? file_.Text(*strtab + name, strtab_end) : std::nullopt;
      if (!text) return Damaged("the name of a library that it needs lies outside the string table");
      report.needed.emplace_back(*text);
    }
    const std::optional<uint64_t> symtab = FileOffset(dynamic_.symtab);
    const std::optional<uint64_t> symbols = CountSymbols();
    if (!symtab || !symbols) return Damaged("it has no readable table of exported symbols");
    for (uint64_t i = 1; i < *symbols; ++i) {
      const auto symbol = file_.Read<Elf64_Sym>(*symtab + i * sizeof(Elf64_Sym));
      if (!symbol) return Damaged("the table of exported symbols ends early");
      if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC ||
          ELF64_ST_BIND(symbol->st_info) == STB_LOCAL || symbol->st_name >= dynamic_.strsz) {
        continue;
      }
      const auto name = file_.Text(*strtab + symbol->st_name, strtab_end);
      if (!name) return Damaged("the name of an exported symbol lies outside the string table");
      if (const auto major = AbiMajor(*name)) report.abi_majors.push_back(*major);
    }
    std::sort(report.abi_majors.begin(), report.abi_majors.end());
    return report;
  }

 private:
  absl::Status ReadHeader() {
    const auto ident = file_.Read<std::array<unsigned char, EI_NIDENT>>(0);
    if (!ident || std::memcmp(ident->data(), ELFMAG, SELFMAG) != 0) {
      return absl::FailedPreconditionError("the file is not a shared library (no ELF header)");
    }
    if ((*ident)[EI_CLASS] != ELFCLASS64) {
      return absl::FailedPreconditionError("it is a 32-bit library; this program needs 64-bit ones");
    }
    if ((*ident)[EI_DATA] != ELFDATA2LSB) {
      return absl::FailedPreconditionError("it is a big-endian library; this program needs little-endian ones");
    }
    const auto header = file_.Read<Elf64_Ehdr>(0);
    if (!header) return Damaged("the ELF header is incomplete");
    if (header->e_machine != kMachine) {
      return absl::FailedPreconditionError(absl::StrCat("it was built for ", MachineName(header->e_machine),
                                                        "; this program runs on ", MachineName(kMachine)));
    }
    if (header->e_type != ET_DYN) {
      return absl::FailedPreconditionError("it is an ELF file but not a shared library");
    }
    if (header->e_phentsize != sizeof(Elf64_Phdr)) return Damaged("its program headers have an unknown size");
    for (uint64_t i = 0; i < header->e_phnum; ++i) {
      // e_phoff + i * 56 cannot wrap into the file again: Read refuses offsets beyond its end.
      const auto segment = header->e_phoff <= file_.size()
                               ? file_.Read<Elf64_Phdr>(header->e_phoff + i * sizeof(Elf64_Phdr))
                               : std::nullopt;
      if (!segment) return Damaged("the program headers end early");
      if (segment->p_type == PT_LOAD) {
        if (segment->p_offset > file_.size() || segment->p_filesz > file_.size() - segment->p_offset) {
          return Damaged("a segment lies beyond the end of the file");
        }
        loads_.push_back(*segment);
      }
      if (segment->p_type == PT_DYNAMIC) dynamic_segment_ = *segment;
    }
    return absl::OkStatus();
  }

  absl::Status ReadDynamic() {
    if (!dynamic_segment_) return absl::FailedPreconditionError("it is an ELF file without a dynamic section");
    const uint64_t begin = dynamic_segment_->p_offset;
    const uint64_t count = dynamic_segment_->p_filesz / sizeof(Elf64_Dyn);
    for (uint64_t i = 0; i < count; ++i) {
      const auto entry = begin <= file_.size() ? file_.Read<Elf64_Dyn>(begin + i * sizeof(Elf64_Dyn)) : std::nullopt;
      if (!entry) return Damaged("the dynamic section ends early");
      switch (entry->d_tag) {
        case DT_NULL:
          return absl::OkStatus();
        case DT_NEEDED:
          dynamic_.needed.push_back(entry->d_un.d_val);
          break;
        case DT_SYMTAB:
          dynamic_.symtab = entry->d_un.d_ptr;
          break;
        case DT_STRTAB:
          dynamic_.strtab = entry->d_un.d_ptr;
          break;
        case DT_STRSZ:
          dynamic_.strsz = entry->d_un.d_val;
          break;
        case DT_HASH:
          dynamic_.hash = entry->d_un.d_ptr;
          break;
        case DT_GNU_HASH:
          dynamic_.gnu_hash = entry->d_un.d_ptr;
          break;
        default:
          break;
      }
    }
    return absl::OkStatus();
  }

  // Where the byte at a virtual address stands in the file.
  std::optional<uint64_t> FileOffset(uint64_t address) const {
    for (const Elf64_Phdr& load : loads_) {
      if (address >= load.p_vaddr && address - load.p_vaddr < load.p_filesz) {
        return load.p_offset + (address - load.p_vaddr);
      }
    }
    return std::nullopt;
  }

  // Only the hash tables say how many symbols there are. Never more than fit into the file.
  std::optional<uint64_t> CountSymbols() const {
    const uint64_t most = file_.size() / sizeof(Elf64_Sym);
    if (dynamic_.gnu_hash != 0) {
      struct Header {
        uint32_t buckets, first, bloom_words, bloom_shift;
      };
      const auto at = FileOffset(dynamic_.gnu_hash);
      const auto header = at ? file_.Read<Header>(*at) : std::nullopt;
      if (!header) return std::nullopt;
      const uint64_t buckets = *at + sizeof(Header) + uint64_t{header->bloom_words} * 8;
      uint64_t last = 0;
      for (uint64_t i = 0; i < header->buckets; ++i) {
        const auto bucket = file_.Read<uint32_t>(buckets + i * 4);
        if (!bucket) return std::nullopt;
        last = std::max<uint64_t>(last, *bucket);
      }
      if (last < header->first) return std::min<uint64_t>(header->first, most);  // nothing is exported
      const uint64_t chains = buckets + uint64_t{header->buckets} * 4;
      for (;; ++last) {  // the last chain ends with an odd value
        const auto link = file_.Read<uint32_t>(chains + (last - header->first) * 4);
        if (!link) return std::nullopt;
        if ((*link & 1) != 0) break;
      }
      return std::min(last + 1, most);
    }
    const auto at = dynamic_.hash != 0 ? FileOffset(dynamic_.hash) : std::nullopt;
    const auto chains = at ? file_.Read<uint32_t>(*at + 4) : std::nullopt;
    if (!chains) return std::nullopt;
    return std::min<uint64_t>(*chains, most);
  }

  static std::optional<uint32_t> AbiMajor(std::string_view symbol) {
    constexpr std::string_view kPrefix = "octet_backend_query_v";
    if (!symbol.starts_with(kPrefix)) return std::nullopt;
    symbol.remove_prefix(kPrefix.size());
    uint32_t major = 0;
    const auto [end, error] = std::from_chars(symbol.data(), symbol.data() + symbol.size(), major);
    if (error != std::errc() || end != symbol.data() + symbol.size()) return std::nullopt;
    return major;
  }

  Bytes file_;
  std::vector<Elf64_Phdr> loads_;
  std::optional<Elf64_Phdr> dynamic_segment_;
  Dynamic dynamic_;
};

}  // namespace

absl::StatusOr<ElfReport> InspectElf(std::span<const std::byte> file) { return Inspector(file).Run(); }

}  // namespace octet
