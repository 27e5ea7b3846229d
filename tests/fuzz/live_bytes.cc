#include "tests/fuzz/live_bytes.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#define OCTET_HAS_FEATURE(name) __has_feature(name)
#else
#define OCTET_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || OCTET_HAS_FEATURE(address_sanitizer) || \
    OCTET_HAS_FEATURE(thread_sanitizer)
#define OCTET_SANITIZER_HOOKS
// Of sanitizer/allocator_interface.h, which Debian's gcc comes without.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* p);
#endif

namespace {

thread_local int64_t g_live = 0;
thread_local int64_t g_peak = 0;

void CountNew(size_t bytes) {
  g_live += static_cast<int64_t>(bytes);
  g_peak = std::max(g_peak, g_live);
}
void CountOld(size_t bytes) { g_live -= static_cast<int64_t>(bytes); }

}  // namespace

namespace octet::fuzz {

LiveBytes::LiveBytes() {
#ifdef OCTET_SANITIZER_HOOKS
  static const bool hooked =
      __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t bytes) { CountNew(bytes); },
                                                [](const volatile void* p) {
                                                  if (p != nullptr) CountOld(__sanitizer_get_allocated_size(p));
                                                }) != 0;
  if (!hooked) std::abort();
#endif
  start_ = g_peak = g_live;
}

int64_t LiveBytes::peak() const { return g_peak - start_; }

void LiveBytes::RequireAtMost(int64_t fixed, int64_t factor, size_t input_bytes, const char* what) const {
  if (peak() <= fixed + factor * static_cast<int64_t>(input_bytes)) return;
  std::fprintf(stderr, "%s: %zu bytes of input took %lld bytes of memory, more than %lld + %lld per byte\n", what,
               input_bytes, static_cast<long long>(peak()), static_cast<long long>(fixed),
               static_cast<long long>(factor));
  std::abort();
}

}  // namespace octet::fuzz

#ifndef OCTET_SANITIZER_HOOKS

namespace {

void* TryAllocate(size_t bytes, size_t align) noexcept {
  void* p = nullptr;
  if (posix_memalign(&p, std::max(align, sizeof(void*)), std::max<size_t>(bytes, 1)) != 0) return nullptr;
  CountNew(malloc_usable_size(p));
  return p;
}

void Release(void* p) noexcept {
  if (p == nullptr) return;
  CountOld(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

#include "tests/unit/replaced_new.h"

#endif  // OCTET_SANITIZER_HOOKS
