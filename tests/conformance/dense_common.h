// What the cases of the dense operations share.
//
// Bounds, with u = 2^-24 and n terms in a sum: EXACT linear layers may lose n u of the sum of the terms' sizes in any
// order of f32 additions. The others may round activations to 8 bits with one scale per row (error at most max|x| /
// 254, uniform) or both factors to bf16; such errors are independent, so six standard deviations, 6 / sqrt(3) times the
// root of the sum of squares, hold for every element of these cases. Everything may lose 2 ulp of the output type.
#ifndef OCTET_TESTS_CONFORMANCE_DENSE_COMMON_H_
#define OCTET_TESTS_CONFORMANCE_DENSE_COMMON_H_

#include <cmath>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/reference/dense.h"
#include "tests/reference/float_types.h"
#include "tests/reference/random.h"

namespace octet::conformance {
using reference::Random;
using reference::Vector;

inline constexpr double kUnit = 0x1p-24;
inline constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

inline Vector Doubles(const std::vector<float>& x) { return Vector(x.begin(), x.end()); }

inline std::vector<float> Rounded(DType type, std::vector<float> x) {
  for (float& v : x) v = reference::RoundTo(type, v);
  return x;
}

inline void Compare(const Block& y, DType type, const Vector& want, const std::function<double(size_t)>& bound) {
  const std::vector<float> got = y.Floats(type);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double allowed = bound(i) + 2 * reference::Ulp(type, want[i]);
    ASSERT_LE(std::abs(got[i] - want[i]), allowed) << "element " << i << ": got " << got[i] << ", want " << want[i];
  }
}

inline StatusOr<DenseOps*> Dense() {
  if (DenseOps* dense = TheSubject().device->dense()) return dense;
  return Unimplemented("the backend has no dense table");
}

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_DENSE_COMMON_H_
