// Norms, RoPE, activations, additions and row copies of the CPU backend.
#include <cstring>
#include <string>

#include "backends/cpu/dense.h"
#include "octet/checks.h"

namespace octet_cpu {
namespace {

using octet::DType;
using octet::InvalidArgument;
using octet::OkStatus;
using octet::Status;
using octet::Tensor;
using octet::Unimplemented;

// f32, f16 or bf16 of any rank, rows contiguous, all of it inside its buffer.
Status CheckRows(const char* name, const Tensor& t) {
  const DType type = octet::TypeOf(t);
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return Unimplemented(std::string("cpu: ") + name + " of type " + octet::DTypeName(type) +
                         " is not supported here; f32, f16 and bf16 are");
  }
  OCTET_RETURN_IF_ERROR(octet::CheckStrides(name, t));
  return octet::CheckBounds(name, t);
}

Status CheckSameShape(const char* names, const Tensor& x, const Tensor& y, int64_t x_last) {
  bool same = x.rank == y.rank;
  for (int i = 0; same && i < x.rank - 1; ++i) same = x.shape[i] == y.shape[i];
  if (same && y.shape[y.rank - 1] == x_last) return OkStatus();
  return InvalidArgument(std::string(names) + " are " + octet::ShapeText(x) + " and " + octet::ShapeText(y) +
                         ", which do not fit");
}

}  // namespace

Status Dense::Norm(octet::Stream&, octet::NormKind kind, const Tensor& x, const Tensor& gain, const Tensor* bias,
                   float eps, const Tensor& y) {
  if (kind != octet::NormKind::kRms && kind != octet::NormKind::kLayer) {
    return Unimplemented("norm: kind " + std::to_string(static_cast<int32_t>(kind)) +
                         " is unknown; known are 1 (RMS) and 2 (layer)");
  }
  OCTET_RETURN_IF_ERROR(CheckRows("x", x));
  OCTET_RETURN_IF_ERROR(CheckRows("y", y));
  const int64_t n = x.shape[x.rank - 1];
  OCTET_RETURN_IF_ERROR(CheckSameShape("x and y", x, y, n));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("gain", &gain, DType::kF32, {n}));
  if (bias != nullptr) {
    if (kind == octet::NormKind::kRms) return InvalidArgument("norm: RMS norm has no bias");
    OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("bias", bias, DType::kF32, {n}));
  }
  if (octet::NumElements(x) == 0) return OkStatus();
  NormParams p{};
  p.layer = kind == octet::NormKind::kLayer;
  p.n = n;
  p.gain = octet::HostData<const float>(gain);
  p.bias = bias != nullptr ? octet::HostData<const float>(*bias) : nullptr;
  p.eps = eps;
  const KernelTable& kernels = *context_.kernels;
  const FloatRows in(kernels, x), out(kernels, y);
  return ForRows(context_, scratch_, 4 * n, &in, out, false,
                 [&](int64_t, const float* from, float* to) { kernels.norm(p, from, to); });
}

Status Dense::Rope(octet::Stream&, const Tensor& x, const Tensor& positions, const Tensor& cos_sin, bool interleaved) {
  OCTET_RETURN_IF_ERROR(CheckRows("x", x));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("x", &x, octet::TypeOf(x), {-1, -1, -1}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("positions", &positions, DType::kI32, {x.shape[0]}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("cos_sin", &cos_sin, DType::kF32, {-1, -1, 2}));
  const int64_t pairs = cos_sin.shape[1];
  if (2 * pairs > x.shape[2]) {
    return InvalidArgument("rope: " + std::to_string(pairs) + " pairs do not fit into head_dim " +
                           std::to_string(x.shape[2]));
  }
  OCTET_RETURN_IF_ERROR(octet::CheckHostPositions(positions, cos_sin.shape[0]));
  if (octet::NumElements(x) == 0 || pairs == 0) return OkStatus();
  RopeParams p{};
  p.pairs = pairs;
  p.pair_stride = cos_sin.stride[1];
  p.interleaved = interleaved;
  const auto* position = octet::HostData<const int32_t>(positions);
  const auto* table = octet::HostData<const float>(cos_sin);
  const KernelTable& kernels = *context_.kernels;
  return ForRows(context_, scratch_, 8 * pairs, nullptr, FloatRows(kernels, x), true,
                 [&](int64_t row, const float*, float* at) {
                   kernels.rope(p, table + position[row / x.shape[1]] * cos_sin.stride[0], at);
                 });
}

Status Dense::Activate(octet::Stream&, octet::Activation kind, const Tensor& x, const Tensor& y) {
  const auto number = static_cast<int32_t>(kind);
  if (number < OCTET_ACT_SILU_GATED || number > OCTET_ACT_GELU) {
    return Unimplemented("activation: kind " + std::to_string(number) + " is unknown; known are 1 to 6");
  }
  OCTET_RETURN_IF_ERROR(CheckRows("x", x));
  OCTET_RETURN_IF_ERROR(CheckRows("y", y));
  const bool gated = number <= OCTET_ACT_GELU_GATED;
  const int64_t width = x.shape[x.rank - 1];
  if (gated && width % 2 != 0) return InvalidArgument("activation: a gated kind needs an even last dimension");
  OCTET_RETURN_IF_ERROR(CheckSameShape("x and y", x, y, gated ? width / 2 : width));
  if (octet::NumElements(y) == 0) return OkStatus();
  const int64_t n = y.shape[y.rank - 1];
  const KernelTable& kernels = *context_.kernels;
  const FloatRows in(kernels, x), out(kernels, y);
  return ForRows(context_, scratch_, 30 * n, &in, out, false,
                 [&](int64_t, const float* from, float* to) { kernels.activation(number, n, from, to); });
}

Status Dense::Add(octet::Stream&, const Tensor& x, const Tensor& y) {
  OCTET_RETURN_IF_ERROR(CheckRows("x", x));
  OCTET_RETURN_IF_ERROR(CheckRows("y", y));
  const int64_t n = x.shape[x.rank - 1];
  OCTET_RETURN_IF_ERROR(CheckSameShape("x and y", x, y, n));
  if (octet::NumElements(y) == 0) return OkStatus();
  const KernelTable& kernels = *context_.kernels;
  const FloatRows in(kernels, x), out(kernels, y);
  return ForRows(context_, scratch_, n, &in, out, true,
                 [&](int64_t, const float* from, float* to) { kernels.add(n, from, to); });
}

Status Dense::GatherRows(octet::Stream&, const Tensor& x, const Tensor& rows, const Tensor& y) {
  const DType type = octet::TypeOf(x);
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("x", &x, type, {-1, -1}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("rows", &rows, DType::kI32, {-1}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("y", &y, type, {rows.shape[0], x.shape[1]}));
  const auto* row = octet::HostData<const int32_t>(rows);
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    if (row[i] < 0 || row[i] >= x.shape[0]) {
      return InvalidArgument("gather_rows: rows[" + std::to_string(i) + "] is " + std::to_string(row[i]) + "; x has " +
                             std::to_string(x.shape[0]) + " rows");
    }
  }
  if (octet::NumElements(y) == 0) return OkStatus();
  const int64_t element = octet::ElementBytes(type);
  const uint8_t* from = octet::HostBufferOf(*x.buffer).data() + x.offset;
  uint8_t* to = octet::HostBufferOf(*y.buffer).data() + y.offset;
  context_.For(rows.shape[0], x.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // Overlapping x and y are the caller's mistake, which must not be more than that.
      std::memmove(to + i * y.stride[0] * element, from + row[i] * x.stride[0] * element,
                   static_cast<size_t>(x.shape[1] * element));
    }
  });
  return OkStatus();
}

}  // namespace octet_cpu
