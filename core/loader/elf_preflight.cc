#include "core/loader/elf_preflight.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/loader/elf_dynamic.h"
#include "core/loader/elf_image.h"

namespace octet {
namespace {

std::optional<uint32_t> AbiMajor(std::string_view symbol) {
  constexpr std::string_view kPrefix = "octet_backend_query_v";
  if (!symbol.starts_with(kPrefix)) return std::nullopt;
  symbol.remove_prefix(kPrefix.size());
  uint32_t major = 0;
  const auto [end, error] = std::from_chars(symbol.data(), symbol.data() + symbol.size(), major);
  if (error != std::errc() || end != symbol.data() + symbol.size()) return std::nullopt;
  return major;
}

// gcc names the run time as a library; clang leaves it to the program and only asks for its symbols.
std::string SanitizerOf(std::string_view library, std::string_view undefined) {
  for (const auto& [prefix, symbol, name] :
       {std::tuple{"libasan.so", "__asan_init", "address"}, std::tuple{"libtsan.so", "__tsan_init", "thread"},
        std::tuple{"libmsan.so", "__msan_init", "memory"}}) {
    if (library.starts_with(prefix) || undefined == symbol) return name;
  }
  return "";
}

}  // namespace

absl::StatusOr<ElfReport> InspectElf(std::span<const std::byte> file) {
  const absl::StatusOr<ElfImage> image = ElfImage::Read(file);
  if (!image.ok()) return image.status();
  absl::StatusOr<ElfDynamic> dynamic = ElfDynamic::Read(*image);
  if (!dynamic.ok()) return dynamic.status();

  ElfReport report;
  for (const std::string_view library : dynamic->needed()) {
    report.needed.emplace_back(library);
    if (report.sanitizer.empty()) report.sanitizer = SanitizerOf(library, "");
  }
  for (uint64_t i = 1; i < dynamic->symbols(); ++i) {
    const Elf64_Sym symbol = dynamic->symbol(i);
    const std::string_view name = dynamic->name(symbol);
    if (symbol.st_shndx == SHN_UNDEF) {
      if (report.sanitizer.empty()) report.sanitizer = SanitizerOf("", name);
    } else if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && ELF64_ST_BIND(symbol.st_info) != STB_LOCAL) {
      if (const auto major = AbiMajor(name)) report.abi_majors.push_back(*major);
    }
  }
  if (report.abi_majors.empty()) return report;  // no backend: it will not be opened
  if (absl::Status status = dynamic->CheckRelocations(); !status.ok()) return status;
  std::sort(report.abi_majors.begin(), report.abi_majors.end());
  return report;
}

}  // namespace octet
