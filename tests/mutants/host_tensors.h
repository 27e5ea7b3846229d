// Elements of tensors in host memory as doubles, whatever their type. Expects CheckTensorInside to have passed.
#ifndef OCTET_TESTS_MUTANTS_HOST_TENSORS_H_
#define OCTET_TESTS_MUTANTS_HOST_TENSORS_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "octet/host_memory.hpp"
#include "tests/reference/dense.h"
#include "tests/reference/float_types.h"

namespace octet::mutants {

namespace ref = octet::reference;

inline uint8_t* At(const Tensor& t, int64_t i, int64_t j = 0, int64_t k = 0) {
  return HostData<uint8_t>(t) + (i * t.stride[0] + j * t.stride[1] + k * t.stride[2]) * ElementBytes(TypeOf(t));
}
inline double Get(const Tensor& t, int64_t i, int64_t j = 0, int64_t k = 0) {
  return ref::LoadFloat(TypeOf(t), At(t, i, j, k));
}
inline void Set(const Tensor& t, double x, int64_t i, int64_t j = 0, int64_t k = 0) {
  ref::StoreFloat(TypeOf(t), static_cast<float>(x), At(t, i, j, k));
}
inline int32_t Int(const Tensor& t, int64_t i) { return HostData<const int32_t>(t)[i * t.stride[0]]; }

// All elements of a tensor of rank 3 at most, row-major.
inline ref::Vector All(const Tensor& t) {
  ref::Vector x;
  for (int64_t i = 0; i < t.shape[0]; ++i) {
    for (int64_t j = 0; j < t.shape[1]; ++j) {
      for (int64_t k = 0; k < t.shape[2]; ++k) x.push_back(Get(t, i, j, k));
    }
  }
  return x;
}
inline void SetAll(const Tensor& t, const ref::Vector& x) {
  size_t at = 0;
  for (int64_t i = 0; i < t.shape[0]; ++i) {
    for (int64_t j = 0; j < t.shape[1]; ++j) {
      for (int64_t k = 0; k < t.shape[2]; ++k) Set(t, x[at++], i, j, k);
    }
  }
}
inline std::vector<float> Floats(const Tensor* t) {
  if (t == nullptr) return {};
  const ref::Vector x = All(*t);
  return {x.begin(), x.end()};
}
inline Status CheckFloat(const char* name, const Tensor* t, std::initializer_list<int64_t> dims) {
  if (t == nullptr) return InvalidArgument(std::string(name) + " is NULL");
  const DType type = TypeOf(*t);
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return Unimplemented(std::string(name) + " is " + DTypeName(type) + "; f32, f16 and bf16 are possible");
  }
  return CheckTensorInside(name, t, type, dims);
}

}  // namespace octet::mutants

#endif  // OCTET_TESTS_MUTANTS_HOST_TENSORS_H_
