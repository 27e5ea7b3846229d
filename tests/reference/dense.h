// The dense part of a transformer in double precision, from the formulas at octet_dense_ops in abi.h. Matrices are
// row-major [rows][columns] vectors. Each function also reports the magnitudes that an error bound needs.
#ifndef OCTET_TESTS_REFERENCE_DENSE_H_
#define OCTET_TESTS_REFERENCE_DENSE_H_

#include <cstdint>
#include <vector>

#include "octet/dense_ops.h"

namespace octet::reference {

using Vector = std::vector<double>;

// A weight's rows as numbers: [rows][columns], row scales applied.
Vector WeightMatrix(const WeightDesc& desc);

// y and, element by element, the sum of the absolute values of the terms that were added up for it.
struct Sums {
  Vector value, magnitude;
};

// x [tokens][columns] W^T + bias + residual; bias and residual may be empty.
Sums Linear(const Vector& x, const Vector& w, int64_t columns, const Vector& bias, const Vector& residual);

// Over rows of n. bias may be empty.
Sums Norm(NormKind kind, const Vector& x, const Vector& gain, const Vector& bias, double eps);

// x [tokens][heads][head_dim]; cos_sin [positions][pairs][2].
Sums Rope(const Vector& x, int64_t heads, int64_t head_dim, const std::vector<int32_t>& positions,
          const std::vector<float>& cos_sin, int64_t pairs, bool interleaved);

// columns: of a row of x; the gated kinds halve it. Magnitude: |x| for the plain kinds, |gate * up| for the gated.
Sums Activate(Activation kind, const Vector& x, int64_t columns);

}  // namespace octet::reference

#endif  // OCTET_TESTS_REFERENCE_DENSE_H_
