// Bounds what a parser allocates: counts the bytes that are alive, so that a fuzz target can demand that a small input
// never takes much memory. Under a sanitizer its allocator tells; elsewhere live_bytes.cc, linked into the program
// itself, replaces operator new in every form.
#ifndef OCTET_TESTS_FUZZ_LIVE_BYTES_H_
#define OCTET_TESTS_FUZZ_LIVE_BYTES_H_

#include <cstddef>
#include <cstdint>

namespace octet::fuzz {

// Counts this thread's allocations from its construction on; one at a time.
class LiveBytes {
 public:
  LiveBytes();
  // The most bytes that were alive at once, beyond those at construction.
  int64_t peak() const;
  // Ends the process where the peak is above `fixed` plus `factor` bytes per byte of input.
  void RequireAtMost(int64_t fixed, int64_t factor, size_t input_bytes, const char* what) const;

 private:
  int64_t start_;
};

}  // namespace octet::fuzz

#endif  // OCTET_TESTS_FUZZ_LIVE_BYTES_H_
