// The rest of a transformer: weights, linear layers, norms, RoPE, activations. Implemented by a backend, called by core
// through the loader. Shapes and formulas stand at octet_dense_ops in abi.h.
#ifndef OCTET_DENSE_OPS_H_
#define OCTET_DENSE_OPS_H_

#include <cstdint>
#include <span>
#include <string>

#include "octet/kv_cache.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {

// Rows of one stored tensor in host memory; row r counts as row_scale[r] * row where row_scale is set.
struct WeightPart {
  DType dtype = DType::kF32;
  int64_t rows = 0, row_stride_bytes = 0;
  const void* data = nullptr;
  const float* row_scale = nullptr;
};

// A matrix [sum of rows][columns].
struct WeightDesc {
  int64_t columns = 0;
  std::span<const WeightPart> parts;
  bool linear = true, embed = false, exact = false;
  int32_t max_tokens = 0;
  DType x_type = DType::kF32, y_type = DType::kF32;

  int64_t rows() const {
    int64_t n = 0;
    for (const WeightPart& part : parts) n += part.rows;
    return n;
  }
};

// What of a desc outlives its data; a backend's prepared weight derives from it.
struct WeightShape {
  explicit WeightShape(const WeightDesc& d)
      : rows(d.rows()),
        columns(d.columns),
        linear(d.linear),
        embed(d.embed),
        max_tokens(d.max_tokens),
        x_type(d.x_type),
        y_type(d.y_type) {}

  int64_t rows, columns;
  bool linear, embed;
  int32_t max_tokens;
  DType x_type, y_type;
};

// For PrepareWeight: SupportsWeight may be asked about parts without data.
inline Status CheckWeightData(const WeightDesc& desc) {
  for (const WeightPart& part : desc.parts) {
    if (part.data == nullptr) {
      return InvalidArgument("a weight part of " + std::to_string(part.rows) + " rows has no data");
    }
  }
  return OkStatus();
}

// y = norm(x) W^T + bias + residual.
struct LinearArgs {
  const Tensor* x = nullptr;
  const Tensor* y = nullptr;
  const Tensor* bias = nullptr;
  const Tensor* norm_gain = nullptr;
  float norm_eps = 0.0f;
  const Tensor* residual = nullptr;
  const Weight* w = nullptr;
  Buffer* workspace = nullptr;
  uint64_t workspace_offset = 0;
};

enum class NormKind : int32_t { kRms = OCTET_NORM_RMS, kLayer = OCTET_NORM_LAYER };

enum class Activation : int32_t {
  kSiluGated = OCTET_ACT_SILU_GATED,
  kGeluTanhGated = OCTET_ACT_GELU_TANH_GATED,
  kGeluGated = OCTET_ACT_GELU_GATED,
  kSilu = OCTET_ACT_SILU,
  kGeluTanh = OCTET_ACT_GELU_TANH,
  kGelu = OCTET_ACT_GELU,
};

// One object per open device; thread rule and errors as for QuantOps.
class DenseOps {
 public:
  virtual ~DenseOps() = default;

  virtual Support SupportsWeight(const WeightDesc& desc) const = 0;
  // Copies and repacks: the desc's data may go away on return. Ended by ReleaseWeight.
  virtual StatusOr<Weight*> PrepareWeight(Stream& stream, const WeightDesc& desc) = 0;
  virtual void ReleaseWeight(Weight* weight) = 0;

  virtual Status Linear(Stream& stream, const LinearArgs& args) = 0;
  virtual Status Embed(Stream& stream, const Weight& weight, const Tensor& ids, float scale, const Tensor& y) = 0;
  virtual Status Norm(Stream& stream, NormKind kind, const Tensor& x, const Tensor& gain, const Tensor* bias, float eps,
                      const Tensor& y) = 0;
  virtual Status Rope(Stream& stream, const Tensor& x, const Tensor& positions, const Tensor& cos_sin,
                      bool interleaved) = 0;
  virtual Status Activate(Stream& stream, Activation kind, const Tensor& x, const Tensor& y) = 0;
  virtual Status Add(Stream& stream, const Tensor& x, const Tensor& y) = 0;
  virtual Status GatherRows(Stream& stream, const Tensor& x, const Tensor& rows, const Tensor& y) = 0;
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_DENSE_OPS_H_
