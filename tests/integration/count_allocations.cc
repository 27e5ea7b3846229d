#include "tests/integration/count_allocations.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

// A file of its own: where the compiler sees both sides, it takes free() after operator new for a mistake.

namespace {

thread_local int64_t g_allocations = 0;

void* TryAllocate(size_t bytes, size_t align) noexcept {
  ++g_allocations;
  void* p = nullptr;
  return posix_memalign(&p, std::max(align, sizeof(void*)), std::max<size_t>(bytes, 1)) == 0 ? p : nullptr;
}

void* Allocate(size_t bytes, std::align_val_t align = std::align_val_t{alignof(std::max_align_t)}) {
  void* p = TryAllocate(bytes, static_cast<size_t>(align));
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

int64_t octet::AllocationsOfThisThread() { return g_allocations; }

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
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
