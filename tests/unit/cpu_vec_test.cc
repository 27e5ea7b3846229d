// Vector functions of the CPU kernels: lanes past the end of a row hold whatever memory held, so any bits
// have to pass without undefined behaviour, and NaN has to stay NaN.
#include <bit>
#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"

// The plain C++ is the same at every width; four lanes need no special instructions.
#define OCTET_CPU_ISA test4
#define OCTET_CPU_LANES 4
#include "backends/cpu/kernels/vec.h"
#undef OCTET_CPU_ISA
#undef OCTET_CPU_LANES

namespace octet_cpu::test4 {
namespace {

constexpr int kSteps = 1 << 16;  // every pattern of sign, exponent and the top bits of the fraction

TEST(CpuVecTest, ExpAndTanhTakeAnyBits) {
  for (int i = 0; i < kSteps; ++i) {
    for (const uint32_t low : {0u, 1u, 0xdeu, 0x1deu, 0xffffu}) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(i) << 16 | low);
      float exp[kLanes], tanh[kLanes];
      Store(exp, Exp(Splat(x)));
      Store(tanh, Tanh(Splat(x)));
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(exp[0]) && std::isnan(tanh[0])) << std::hex << i << " " << low;
        continue;
      }
      const double clamped = x > 88.0f ? 88.0 : x, expected = x < -87.3f ? 0.0 : std::exp(clamped);
      ASSERT_NEAR(exp[0], expected, 2.5e-7 * expected) << x;
      ASSERT_NEAR(tanh[0], std::tanh(static_cast<double>(x)), 2.5e-7 * std::abs(std::tanh(static_cast<double>(x))))
          << x;
    }
  }
}

}  // namespace
}  // namespace octet_cpu::test4
