// Replaces operator new and delete in every form, for the one file of a program that has defined before
//   void* TryAllocate(size_t bytes, size_t align) noexcept;  // null where there is no memory
//   void Release(void* p) noexcept;                          // takes null
// and holds nothing else: where the compiler sees both sides, it takes free() after operator new for a mistake.
#ifndef OCTET_TESTS_UNIT_REPLACED_NEW_H_
#define OCTET_TESTS_UNIT_REPLACED_NEW_H_

#include <cstddef>
#include <new>

static void* Allocate(size_t bytes, std::align_val_t align = std::align_val_t{alignof(std::max_align_t)}) {
  void* p = TryAllocate(bytes, static_cast<size_t>(align));
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

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

#endif  // OCTET_TESTS_UNIT_REPLACED_NEW_H_
