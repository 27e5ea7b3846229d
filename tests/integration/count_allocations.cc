#include "tests/integration/count_allocations.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

// clang's thread sanitizer links operators of its own, which cannot be replaced.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OCTET_OWN_OPERATORS
#endif
#endif

namespace {

thread_local int64_t g_allocations = 0;
std::atomic<int64_t> g_live{0}, g_until_failure{0};
std::atomic<bool> g_failed{false};

#if !defined(OCTET_OWN_OPERATORS)
void* TryAllocate(size_t bytes, size_t align) noexcept {
  ++g_allocations;
  if (g_until_failure.load(std::memory_order_relaxed) > 0 && g_until_failure.fetch_sub(1) == 1) {
    g_failed.store(true);
    return nullptr;
  }
  void* p = nullptr;
  if (posix_memalign(&p, std::max(align, sizeof(void*)), std::max<size_t>(bytes, 1)) != 0) return nullptr;
  g_live.fetch_add(1, std::memory_order_relaxed);
  return p;
}

void Release(void* p) noexcept {
  if (p != nullptr) g_live.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}
#endif

}  // namespace

#if defined(OCTET_OWN_OPERATORS)
bool octet::CountsAllocations() { return false; }
#else
bool octet::CountsAllocations() { return true; }
#endif
int64_t octet::AllocationsOfThisThread() { return g_allocations; }
int64_t octet::LiveAllocations() { return g_live.load(); }
void octet::FailAllocation(int64_t nth) {
  g_failed.store(false);
  g_until_failure.store(nth);
}
bool octet::AllocationHasFailed() { return g_failed.load(); }

#if !defined(OCTET_OWN_OPERATORS)
#include "tests/unit/replaced_new.h"
#endif
