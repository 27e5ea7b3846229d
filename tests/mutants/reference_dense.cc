// Weights, linear layers and the small operations of the reference backend.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "octet/checks.h"
#include "tests/mutants/fault.h"
#include "tests/mutants/host_tensors.h"
#include "tests/mutants/reference_backend.h"
#include "tests/reference/gguf.h"

namespace octet::mutants {
namespace {

struct Matrix {
  ref::Vector w;
  int64_t rows = 0, columns = 0;
  DType x_type, y_type;
};

class Dense final : public DenseOps {
 public:
  Support SupportsWeight(const WeightDesc& d) const override {
    if (const Status status = Check(d); !status.ok()) return Support::No(status.message());
    return Support::Yes(1, "reference");
  }
  StatusOr<Weight*> PrepareWeight(Stream&, const WeightDesc& d) override {
    if (const Status status = Check(d); !status.ok()) return status;
    return reinterpret_cast<Weight*>(new Matrix{ref::WeightMatrix(d), d.rows(), d.columns, d.x_type, d.y_type});
  }
  void ReleaseWeight(Weight* weight) override { delete reinterpret_cast<Matrix*>(weight); }

  Status Linear(Stream&, const LinearArgs& a) override {
    if (a.w == nullptr) return InvalidArgument("the weight is NULL");
    const auto& m = *reinterpret_cast<const Matrix*>(a.w);
    OCTET_RETURN_IF_ERROR(CheckTensorInside("x", a.x, m.x_type, {-1, m.columns}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("y", a.y, m.y_type, {a.x->shape[0], m.rows}));
    if (a.bias != nullptr) OCTET_RETURN_IF_ERROR(CheckTensorInside("bias", a.bias, DType::kF32, {m.rows}));
    if (a.norm_gain != nullptr)
      OCTET_RETURN_IF_ERROR(CheckTensorInside("norm_gain", a.norm_gain, DType::kF32, {m.columns}));
    if (a.residual != nullptr)
      OCTET_RETURN_IF_ERROR(CheckTensorInside("residual", a.residual, m.y_type, {a.x->shape[0], m.rows}));
    ref::Vector x = All(*a.x);
    if (a.norm_gain != nullptr)
      x = ref::Norm(NormKind::kRms, x, All(*a.norm_gain), {}, Faulty("eps_ignored") ? 0.0 : a.norm_eps).value;
    const ref::Vector bias = a.bias != nullptr && !Faulty("bias_ignored") ? All(*a.bias) : ref::Vector{};
    const ref::Vector residual = a.residual != nullptr ? All(*a.residual) : ref::Vector{};
    SetAll(*a.y, ref::Linear(x, m.w, m.columns, bias, residual).value);
    return OkStatus();
  }

  Status Embed(Stream&, const Weight& weight, const Tensor& ids, float scale, const Tensor& y) override {
    const auto& m = reinterpret_cast<const Matrix&>(weight);
    OCTET_RETURN_IF_ERROR(CheckTensorInside("ids", &ids, DType::kI32, {-1}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("y", &y, m.y_type, {ids.shape[0], m.columns}));
    for (int64_t t = 0; t < ids.shape[0]; ++t) {
      const int64_t id = Int(ids, t);
      const bool inside = id >= 0 && id < m.rows;
      for (int64_t c = 0; c < m.columns; ++c) {
        Set(y, inside ? scale * m.w[static_cast<size_t>(id * m.columns + c)] : std::nan(""), t, c);
      }
    }
    return OkStatus();
  }

  Status Norm(Stream&, NormKind kind, const Tensor& x, const Tensor& gain, const Tensor* bias, float eps,
              const Tensor& y) override {
    if (kind != NormKind::kRms && kind != NormKind::kLayer)
      return Unimplemented("norm kind " + std::to_string(static_cast<int>(kind)) + " is unknown");
    OCTET_RETURN_IF_ERROR(CheckAlike(x, y));
    const int64_t n = x.shape[x.rank - 1];
    OCTET_RETURN_IF_ERROR(CheckTensorInside("gain", &gain, DType::kF32, {n}));
    if (bias != nullptr) OCTET_RETURN_IF_ERROR(CheckTensorInside("bias", bias, DType::kF32, {n}));
    SetAll(y, ref::Norm(kind, All(x), All(gain), bias != nullptr ? All(*bias) : ref::Vector{},
                        Faulty("eps_ignored") ? 0.0 : eps)
                  .value);
    return OkStatus();
  }

  Status Rope(Stream&, const Tensor& x, const Tensor& positions, const Tensor& cos_sin, bool interleaved) override {
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1, -1}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("positions", &positions, DType::kI32, {x.shape[0]}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("cos_sin", &cos_sin, DType::kF32, {-1, -1, 2}));
    const int64_t pairs = cos_sin.shape[1];
    if (2 * pairs > x.shape[2]) return InvalidArgument("cos_sin has more pairs than x has channels");
    std::vector<int32_t> at;
    for (int64_t t = 0; t < x.shape[0]; ++t) {
      at.push_back(Int(positions, t));
      if (at.back() < 0 || at.back() >= cos_sin.shape[0]) return InvalidArgument("a position is outside cos_sin");
    }
    SetAll(x, ref::Rope(All(x), x.shape[1], x.shape[2], at, Floats(&cos_sin), pairs,
                        interleaved != Faulty("rope_other_pairs"))
                  .value);
    return OkStatus();
  }

  Status Activate(Stream&, Activation kind, const Tensor& x, const Tensor& y) override {
    if (kind < Activation::kSiluGated || kind > Activation::kGelu)
      return Unimplemented("activation " + std::to_string(static_cast<int>(kind)) + " is unknown");
    const bool gated = kind <= Activation::kGeluGated;
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1}));
    if (gated && x.shape[1] % 2 != 0) return InvalidArgument("a gated activation needs an even number of columns");
    OCTET_RETURN_IF_ERROR(CheckFloat("y", &y, {x.shape[0], gated ? x.shape[1] / 2 : x.shape[1]}));
    SetAll(y, ref::Activate(kind, All(x), x.shape[1]).value);
    return OkStatus();
  }

  Status Add(Stream&, const Tensor& x, const Tensor& y) override {
    OCTET_RETURN_IF_ERROR(CheckAlike(x, y));
    ref::Vector sum = All(y);
    const ref::Vector other = All(x);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    SetAll(y, sum);
    return OkStatus();
  }

  Status GatherRows(Stream&, const Tensor& x, const Tensor& rows, const Tensor& y) override {
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("rows", &rows, DType::kI32, {-1}));
    OCTET_RETURN_IF_ERROR(CheckFloat("y", &y, {rows.shape[0], x.shape[1]}));
    for (int64_t i = 0; i < rows.shape[0]; ++i) {
      const int64_t row = Int(rows, i);
      if (row < 0 || row >= x.shape[0]) return InvalidArgument("row " + std::to_string(row) + " does not exist");
      for (int64_t c = 0; c < x.shape[1]; ++c) Set(y, Get(x, row, c), i, c);
    }
    return OkStatus();
  }

 private:
  static Status Check(const WeightDesc& d) {
    for (DType type : {d.x_type, d.y_type}) {
      if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16)
        return Unimplemented(std::string("activations of type ") + DTypeName(type) + " are unknown");
    }
    if (d.columns < 1 || d.parts.empty()) return InvalidArgument("a weight needs columns and parts");
    for (const WeightPart& part : d.parts) {
      const ref::BlockShape shape = ref::BlockOf(part.dtype);
      if (shape.elements == 0)
        return Unimplemented(std::string("weights of type ") + DTypeName(part.dtype) + " are unknown");
      if (part.data == nullptr || part.rows < 1 || d.columns % shape.elements != 0 ||
          part.row_stride_bytes < d.columns / shape.elements * shape.bytes) {
        return InvalidArgument("a weight's rows do not fit its columns");
      }
    }
    return OkStatus();
  }
  static Status CheckAlike(const Tensor& x, const Tensor& y) {
    if (x.rank < 1 || x.rank > 3 || y.rank != x.rank) return InvalidArgument("x and y must have the same rank, 1 to 3");
    if (x.rank == 1) {
      OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1}));
      return CheckFloat("y", &y, {x.shape[0]});
    }
    if (x.rank == 2) {
      OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1}));
      return CheckFloat("y", &y, {x.shape[0], x.shape[1]});
    }
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1, -1}));
    return CheckFloat("y", &y, {x.shape[0], x.shape[1], x.shape[2]});
  }
};

}  // namespace

std::unique_ptr<DenseOps> MakeReferenceDense() { return std::make_unique<Dense>(); }

}  // namespace octet::mutants
