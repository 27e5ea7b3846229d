// What the operations of one open device share: its kernels, the host's threads and, where prompts go through it,
// oneDNN.
#ifndef OCTET_BACKENDS_CPU_CONTEXT_H_
#define OCTET_BACKENDS_CPU_CONTEXT_H_

#include <cstdint>
#include <memory>

#include "backends/cpu/kernels/kernels.h"
#include "octet/backend.hpp"
#include "octet/host_memory.hpp"

namespace octet_cpu {

class OneDnn;

// How kernels name an element type of activations and caches.
inline Element ElementOf(octet::DType type) {
  switch (type) {
    case octet::DType::kF16:
      return Element::kF16;
    case octet::DType::kBF16:
      return Element::kBF16;
    case octet::DType::kI8:
      return Element::kI8;
    default:
      return Element::kF32;
  }
}

// How many items a worker gets of work that can be cut as one likes: enough that the last one is not waited for.
constexpr int64_t kItemsPerWorker = 4;

struct Context {
  const KernelTable* kernels = nullptr;
  octet::HostServices host;
  std::shared_ptr<OneDnn> onednn = nullptr;  // computes prompts' linear layers of fast weights; null: kernels do

  // body(worker, begin, end) over [0, n), worker < host.max_workers(). Work of less than about 20 microseconds stays on
  // the calling thread: `flops_per_item` is a rough count.
  template <typename Body>
  void ForWorkers(int64_t n, int64_t flops_per_item, Body&& body) const {
    constexpr int64_t kWorthwhile = 100000;
    if (n <= 0) return;
    if (n == 1 || flops_per_item <= kWorthwhile / n) {
      body(uint32_t{0}, int64_t{0}, n);
    } else {
      host.ParallelFor(n, body);
    }
  }

  // body(begin, end).
  template <typename Body>
  void For(int64_t n, int64_t flops_per_item, Body&& body) const {
    ForWorkers(n, flops_per_item, [&body](uint32_t, int64_t begin, int64_t end) { body(begin, end); });
  }
};

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_CONTEXT_H_
