// What the operations of one open device share: its kernels and the host's threads.
#ifndef OCTET_BACKENDS_CPU_CONTEXT_H_
#define OCTET_BACKENDS_CPU_CONTEXT_H_

#include <cstdint>

#include "backends/cpu/kernels/kernels.h"
#include "octet/backend.hpp"
#include "octet/host_memory.hpp"

namespace octet_cpu {

struct Context {
  const KernelTable* kernels = nullptr;
  octet::HostServices host;

  // body(begin, end) over [0, n). Work of less than about 20 microseconds stays on the calling thread: `flops_per_item`
  // is a rough count.
  template <typename Body>
  void For(int64_t n, int64_t flops_per_item, Body&& body) const {
    constexpr int64_t kWorthwhile = 100000;
    if (n <= 0) return;
    if (n == 1 || flops_per_item <= kWorthwhile / n) {
      body(int64_t{0}, n);
    } else {
      host.ParallelFor(n, [&body](uint32_t, int64_t begin, int64_t end) { body(begin, end); });
    }
  }
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_CONTEXT_H_
