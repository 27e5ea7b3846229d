#include "tests/integration/count_allocations.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

// A file of its own: where the compiler sees both sides, it takes free() after operator new for a mistake.

namespace {

thread_local int64_t g_allocations = 0;
std::atomic<int64_t> g_live{0}, g_until_failure{0};
std::atomic<bool> g_failed{false};

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

void* Allocate(size_t bytes, std::align_val_t align = std::align_val_t{alignof(std::max_align_t)}) {
  void* p = TryAllocate(bytes, static_cast<size_t>(align));
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

int64_t octet::AllocationsOfThisThread() { return g_allocations; }
int64_t octet::LiveAllocations() { return g_live.load(); }
void octet::FailAllocation(int64_t nth) {
  g_failed.store(false);
  g_until_failure.store(nth);
}
bool octet::AllocationHasFailed() { return g_failed.load(); }

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t align) { return Allocate(bytes, align); }
void* operator new[](size_t bytes, std::align_val_t align) { return Allocate(bytes, align); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return TryAllocate(bytes, alignof(std::max_align_t));
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return TryAllocate(bytes, alignof(std::max_align_t));
}
void* operator new(size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return TryAllocate(bytes, static_cast<size_t>(align));
}
void* operator new[](size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return TryAllocate(bytes, static_cast<size_t>(align));
}
void operator delete(void* p) noexcept { Release(p); }
void operator delete[](void* p) noexcept { Release(p); }
void operator delete(void* p, size_t) noexcept { Release(p); }
void operator delete[](void* p, size_t) noexcept { Release(p); }
void operator delete(void* p, std::align_val_t) noexcept { Release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { Release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { Release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { Release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { Release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { Release(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { Release(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { Release(p); }
