// Numbers in 16 bits as two signed bytes, n = 256 h + l, for units that multiply bytes.
#ifndef OCTET_BACKENDS_CPU_KERNELS_PLANES_H_
#define OCTET_BACKENDS_CPU_KERNELS_PLANES_H_

#include "backends/cpu/kernels/vec.h"
#include "octet/half.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {

constexpr float kPlanesTop = 32512.0f;  // what the largest |x| becomes: 127 * 256, so that h is in [-127, 127]
constexpr float kLeast = 1e-30f;        // a largest |x| from which kPlanesTop / x is a number of f32, with some room

// To nearest, ties to even; |x| <= kPlanesTop. Of what is not finite: anything.
OCTET_INLINE int32_t RoundToPlanes(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  return static_cast<int32_t>(octet::FloatBits(x + magic)) - 0x4b400000;
}

OCTET_INLINE int32_t HighPlane(int32_t n) { return (n + 128) >> 8; }
OCTET_INLINE int32_t LowPlane(int32_t n) { return n - 256 * HighPlane(n); }

// The low bytes of four numbers as a word, a's lowest.
OCTET_INLINE int32_t BytesOf(int32_t a, int32_t b, int32_t c, int32_t d) {
  const auto byte = [](int32_t n) { return static_cast<uint32_t>(n) & 255; };
  return static_cast<int32_t>(byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24);
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_PLANES_H_
