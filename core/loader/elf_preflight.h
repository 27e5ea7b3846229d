// Looks at a shared library as data, before any of its code runs: may this program load it, is it a backend, of which
// ABI, and which libraries does it need?
//
// Reads what the dynamic linker reads (PT_DYNAMIC), so a stripped library works. Every access is bounded by the size of
// the input: any bytes give an answer or a sentence. A file that passes holds nothing that the dynamic linker would
// follow out of it; what damaged code does is beyond it. Format: System V ABI, ELF-64; elf(5).
#ifndef OCTET_CORE_LOADER_ELF_PREFLIGHT_H_
#define OCTET_CORE_LOADER_ELF_PREFLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace octet {

struct ElfReport {
  std::vector<uint32_t> abi_majors;  // N of each exported function octet_backend_query_v<N>, ascending
  std::vector<std::string> needed;   // names of the libraries it asks for, in order
  std::string sanitizer;             // "address", "thread", "memory": whose run time it asks for; empty none
};

// FailedPrecondition, with the reason, for anything but a shared library that this process could load.
absl::StatusOr<ElfReport> InspectElf(std::span<const std::byte> file);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_ELF_PREFLIGHT_H_
