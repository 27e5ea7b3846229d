// A shared library of any bytes, looked at before it is loaded.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/loader/elf_preflight.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/live_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const octet::fuzz::LiveBytes memory;
  const auto report = octet::InspectElf(std::as_bytes(std::span(data, size)));
  octet::fuzz::RequireSentence(report.status());
  memory.RequireAtMost(64 << 10, 32, size, "inspecting");
  return 0;
}
