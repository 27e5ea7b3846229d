// The dense part of a model as plain loops over host memory: support level 1, right before fast. Any HostMemoryBackend
// has it, so that a backend with nothing but its own attention runs whole models.
//
// Weights stay in their stored bits and are expanded 256 columns at a time; sums are double. x and y may be f32, f16 or
// bf16. Formulas stand at octet_dense_ops in abi.h.
#ifndef OCTET_HOST_DENSE_HPP_
#define OCTET_HOST_DENSE_HPP_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/backend.hpp"
#include "octet/dense_ops.h"
#include "octet/gguf_blocks.h"
#include "octet/half.h"
#include "octet/host_memory.hpp"

namespace octet {
inline namespace v1 {

// Thread-safe: holds no state, each weight is constant once prepared.
class HostDenseOps final : public DenseOps {
 public:
  Support SupportsWeight(const WeightDesc& desc) const override {
    if (Status status = CheckWeight(desc); !status.ok()) return Support::No(status.message());
    // The workspace takes one factor per token of a fused RMS norm.
    Support support = Support::Yes(1, "host plain loops", static_cast<uint64_t>(desc.max_tokens) * sizeof(float));
    for (const WeightPart& part : desc.parts) {
      const auto row_bytes = GgufRowBytes(part.dtype, desc.columns) + (part.row_scale != nullptr ? 4 : 0);
      support.resident_bytes += static_cast<uint64_t>(part.rows) * static_cast<uint64_t>(row_bytes);
    }
    return support;
  }

  StatusOr<Weight*> PrepareWeight(Stream&, const WeightDesc& desc) override {
    OCTET_RETURN_IF_ERROR(CheckWeight(desc));
    OCTET_RETURN_IF_ERROR(CheckWeightData(desc));
    auto weight = std::make_unique<HostWeight>(desc);
    int64_t first = 0;
    for (const WeightPart& part : desc.parts) {
      Part& mine = weight->parts.emplace_back();
      mine.type = part.dtype;
      mine.first_row = first;
      mine.row_bytes = GgufRowBytes(part.dtype, desc.columns);
      mine.data.resize(static_cast<size_t>(part.rows * mine.row_bytes));
      for (int64_t r = 0; r < part.rows; ++r) {
        std::memcpy(mine.data.data() + r * mine.row_bytes,
                    static_cast<const uint8_t*>(part.data) + r * part.row_stride_bytes,
                    static_cast<size_t>(mine.row_bytes));
      }
      if (part.row_scale != nullptr) mine.scale.assign(part.row_scale, part.row_scale + part.rows);
      first += part.rows;
    }
    return reinterpret_cast<Weight*>(weight.release());
  }

  void ReleaseWeight(Weight* weight) override { delete reinterpret_cast<HostWeight*>(weight); }

  Status Linear(Stream&, const LinearArgs& args) override {
    const auto& w = *reinterpret_cast<const HostWeight*>(args.w);
    if (!w.linear) return InvalidArgument("linear: the weight was prepared without this use");
    OCTET_RETURN_IF_ERROR(CheckTensorInside("x", args.x, w.x_type, {-1, w.columns}));
    const int64_t tokens = args.x->shape[0];
    if (tokens > w.max_tokens) {
      return InvalidArgument("linear: " + std::to_string(tokens) + " tokens, the weight was prepared for " +
                             std::to_string(w.max_tokens));
    }
    OCTET_RETURN_IF_ERROR(CheckTensorInside("y", args.y, w.y_type, {tokens, w.rows}));
    if (args.bias != nullptr) OCTET_RETURN_IF_ERROR(CheckTensorInside("bias", args.bias, DType::kF32, {w.rows}));
    if (args.residual != nullptr) {
      OCTET_RETURN_IF_ERROR(CheckTensorInside("residual", args.residual, w.y_type, {tokens, w.rows}));
    }
    const float* inverse_rms = nullptr;  // [tokens]
    if (args.norm_gain != nullptr) {
      OCTET_RETURN_IF_ERROR(CheckTensorInside("norm_gain", args.norm_gain, DType::kF32, {w.columns}));
      if (args.workspace == nullptr) return InvalidArgument("linear: a fused norm needs the workspace, which is NULL");
      const Tensor factors = MakeTensor(args.workspace, DType::kF32, {tokens}, args.workspace_offset);
      OCTET_RETURN_IF_ERROR(CheckTensorInside("workspace", &factors, DType::kF32, {tokens}));
      float* out = HostData<float>(factors);
      ParallelFor(tokens, [&](uint32_t, int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          double sum = 0.0;
          for (int64_t c = 0; c < w.columns; ++c) {
            const double x = Load(*args.x, t * args.x->stride[0] + c);
            sum += x * x;
          }
          out[t] = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(w.columns) + args.norm_eps));
        }
      });
      inverse_rms = out;
    }
    if (tokens > 0) {
      ParallelFor(w.rows, [&](uint32_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) LinearRow(w, args, inverse_rms, tokens, r);
      });
    }
    return OkStatus();
  }

  Status Embed(Stream&, const Weight& weight, const Tensor& ids, float scale, const Tensor& y) override {
    const auto& w = reinterpret_cast<const HostWeight&>(weight);
    if (!w.embed) return InvalidArgument("embed: the weight was prepared without this use");
    OCTET_RETURN_IF_ERROR(CheckTensorInside("ids", &ids, DType::kI32, {-1}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("y", &y, w.y_type, {ids.shape[0], w.columns}));
    ParallelFor(ids.shape[0], [&](uint32_t, int64_t begin, int64_t end) {
      float values[kChunk];
      for (int64_t t = begin; t < end; ++t) {
        const int32_t id = HostData<const int32_t>(ids)[t];
        const bool known = id >= 0 && id < w.rows;
        for (int64_t c = 0; c < w.columns; c += kChunk) {
          const int64_t n = std::min(kChunk, w.columns - c);
          if (known) Expand(w, id, c, n, values);
          for (int64_t i = 0; i < n; ++i) {
            const float value = known ? values[i] * scale : std::numeric_limits<float>::quiet_NaN();
            Store(y, t * y.stride[0] + c + i, value);
          }
        }
      }
    });
    return OkStatus();
  }

  Status Norm(Stream&, NormKind kind, const Tensor& x, const Tensor& gain, const Tensor* bias, float eps,
              const Tensor& y) override {
    if (kind != NormKind::kRms && kind != NormKind::kLayer) {
      return Unimplemented("norm: kind " + std::to_string(static_cast<int32_t>(kind)) +
                           " is unknown; known are 1 and 2");
    }
    OCTET_RETURN_IF_ERROR(CheckFloats("x", x));
    OCTET_RETURN_IF_ERROR(CheckFloats("y", y));
    OCTET_RETURN_IF_ERROR(CheckSameShape("norm", x, y));
    const int64_t n = x.shape[x.rank - 1];
    OCTET_RETURN_IF_ERROR(CheckTensorInside("gain", &gain, DType::kF32, {n}));
    if (bias != nullptr && kind == NormKind::kRms) return InvalidArgument("norm: an RMS norm has no bias");
    if (bias != nullptr) OCTET_RETURN_IF_ERROR(CheckTensorInside("bias", bias, DType::kF32, {n}));
    ParallelFor(n == 0 ? 0 : NumElements(x) / n, [&](uint32_t, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = RowStart(x, row), to = RowStart(y, row);
        double mean = 0.0, squares = 0.0;
        if (kind == NormKind::kLayer) {
          for (int64_t i = 0; i < n; ++i) mean += Load(x, from + i);
          mean /= static_cast<double>(n);
        }
        for (int64_t i = 0; i < n; ++i) squares += (Load(x, from + i) - mean) * (Load(x, from + i) - mean);
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + eps);
        for (int64_t i = 0; i < n; ++i) {
          const double value = (Load(x, from + i) - mean) * factor * HostData<const float>(gain)[i] +
                               (bias != nullptr ? HostData<const float>(*bias)[i] : 0.0f);
          Store(y, to + i, static_cast<float>(value));
        }
      }
    });
    return OkStatus();
  }

  Status Rope(Stream&, const Tensor& x, const Tensor& positions, const Tensor& cos_sin, bool interleaved) override {
    OCTET_RETURN_IF_ERROR(CheckFloats("x", x));
    if (x.rank != 3) return InvalidArgument("rope: x must be [tokens][heads][head_dim], not " + ShapeText(x));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("positions", &positions, DType::kI32, {x.shape[0]}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("cos_sin", &cos_sin, DType::kF32, {-1, -1, 2}));
    const int64_t pairs = cos_sin.shape[1];
    if (2 * pairs > x.shape[2]) {
      return InvalidArgument("rope: " + std::to_string(pairs) + " pairs do not fit into head_dim " +
                             std::to_string(x.shape[2]));
    }
    OCTET_RETURN_IF_ERROR(CheckHostPositions(positions, cos_sin.shape[0]));
    const auto* position = HostData<const int32_t>(positions);
    ParallelFor(x.shape[0], [&](uint32_t, int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < x.shape[1]; ++h) {
          const int64_t row = t * x.stride[0] + h * x.stride[1];
          for (int64_t p = 0; p < pairs; ++p) {
            const float* angle =
                HostData<const float>(cos_sin) + position[t] * cos_sin.stride[0] + p * cos_sin.stride[1];
            const int64_t i = row + (interleaved ? 2 * p : p), j = row + (interleaved ? 2 * p + 1 : p + pairs);
            const float a = Load(x, i), b = Load(x, j);
            Store(x, i, a * angle[0] - b * angle[1]);
            Store(x, j, a * angle[1] + b * angle[0]);
          }
        }
      }
    });
    return OkStatus();
  }

  Status Activate(Stream&, Activation kind, const Tensor& x, const Tensor& y) override {
    bool gated = false;
    switch (kind) {
      case Activation::kSiluGated:
      case Activation::kGeluTanhGated:
      case Activation::kGeluGated:
        gated = true;
        break;
      case Activation::kSilu:
      case Activation::kGeluTanh:
      case Activation::kGelu:
        break;
      default:
        return Unimplemented("activation: kind " + std::to_string(static_cast<int32_t>(kind)) +
                             " is unknown; known are 1 to 6");
    }
    OCTET_RETURN_IF_ERROR(CheckFloats("x", x));
    OCTET_RETURN_IF_ERROR(CheckFloats("y", y));
    const int64_t n = y.shape[y.rank - 1];
    if (gated) {
      if (x.rank != 2 || y.rank != 2 || x.shape[0] != y.shape[0] || x.shape[1] != 2 * n) {
        return InvalidArgument("activation: a gated one takes x [tokens][2n] to y [tokens][n], not " + ShapeText(x) +
                               " to " + ShapeText(y));
      }
    } else {
      OCTET_RETURN_IF_ERROR(CheckSameShape("activation", x, y));
    }
    ParallelFor(n == 0 ? 0 : NumElements(y) / n, [&](uint32_t, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = RowStart(x, row), to = RowStart(y, row);
        for (int64_t i = 0; i < n; ++i) {
          const float value = Curve(kind, Load(x, from + i));
          Store(y, to + i, gated ? value * Load(x, from + n + i) : value);
        }
      }
    });
    return OkStatus();
  }

  Status Add(Stream&, const Tensor& x, const Tensor& y) override {
    OCTET_RETURN_IF_ERROR(CheckFloats("x", x));
    OCTET_RETURN_IF_ERROR(CheckFloats("y", y));
    OCTET_RETURN_IF_ERROR(CheckSameShape("add", x, y));
    const int64_t n = y.shape[y.rank - 1];
    ParallelFor(n == 0 ? 0 : NumElements(y) / n, [&](uint32_t, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = RowStart(x, row), to = RowStart(y, row);
        for (int64_t i = 0; i < n; ++i) Store(y, to + i, Load(y, to + i) + Load(x, from + i));
      }
    });
    return OkStatus();
  }

  Status GatherRows(Stream&, const Tensor& x, const Tensor& rows, const Tensor& y) override {
    OCTET_RETURN_IF_ERROR(CheckFloats("x", x));
    if (x.rank != 2) return InvalidArgument("gather_rows: x must be [rows][n], not " + ShapeText(x));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("rows", &rows, DType::kI32, {-1}));
    OCTET_RETURN_IF_ERROR(CheckTensorInside("y", &y, TypeOf(x), {rows.shape[0], x.shape[1]}));
    const auto* row = HostData<const int32_t>(rows);
    for (int64_t i = 0; i < rows.shape[0]; ++i) {
      if (row[i] < 0 || row[i] >= x.shape[0]) {
        return InvalidArgument("gather_rows: row " + std::to_string(row[i]) + " does not exist; x has " +
                               std::to_string(x.shape[0]));
      }
    }
    const int64_t element = ElementBytes(TypeOf(x));
    for (int64_t i = 0; i < rows.shape[0] && x.shape[1] > 0; ++i) {
      std::memcpy(HostData<uint8_t>(y) + i * y.stride[0] * element,
                  HostData<const uint8_t>(x) + row[i] * x.stride[0] * element,
                  static_cast<size_t>(x.shape[1] * element));
    }
    return OkStatus();
  }

 private:
  static constexpr int64_t kChunk = 256;  // columns expanded at a time: a multiple of every block
  static constexpr int64_t kTile = 16;    // tokens that share an expanded chunk

  struct Part {
    DType type = DType::kF32;
    int64_t first_row = 0, row_bytes = 0;
    std::vector<uint8_t> data;
    std::vector<float> scale;  // empty: all 1
  };
  struct HostWeight : WeightShape {
    using WeightShape::WeightShape;
    std::vector<Part> parts;
  };

  static bool IsFloat(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

  // Element `i`, counted from the tensor's first one.
  static float Load(const Tensor& t, int64_t i) {
    if (TypeOf(t) == DType::kF32) return HostData<const float>(t)[i];
    const uint16_t bits = HostData<const uint16_t>(t)[i];
    return TypeOf(t) == DType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
  static void Store(const Tensor& t, int64_t i, float value) {
    if (TypeOf(t) == DType::kF32) {
      HostData<float>(t)[i] = value;
    } else {
      HostData<uint16_t>(t)[i] = TypeOf(t) == DType::kF16 ? FloatToHalf(value) : FloatToBf16(value);
    }
  }

  // Where row `index` of the last dimension starts, rows counted over all the others.
  static int64_t RowStart(const Tensor& t, int64_t index) {
    int64_t start = 0;
    for (int i = t.rank - 2; i >= 0; --i) {
      start += index % t.shape[i] * t.stride[i];
      index /= t.shape[i];
    }
    return start;
  }

  static Status CheckFloats(const char* name, const Tensor& t) {
    if (!IsFloat(TypeOf(t))) {
      return InvalidArgument(std::string(name) + " is " + DTypeName(TypeOf(t)) + "; it must be f32, f16 or bf16");
    }
    OCTET_RETURN_IF_ERROR(CheckStrides(name, t));
    return CheckBounds(name, t);
  }

  static Status CheckSameShape(const char* name, const Tensor& x, const Tensor& y) {
    bool same = x.rank == y.rank;
    for (int i = 0; same && i < x.rank; ++i) same = x.shape[i] == y.shape[i];
    return same ? OkStatus()
                : InvalidArgument(std::string(name) + ": x is " + ShapeText(x) + " and y is " + ShapeText(y) +
                                  "; they must be equal");
  }

  static Status CheckWeight(const WeightDesc& desc) {
    if (desc.columns < 1 || desc.columns > (int64_t{1} << 31)) {
      return InvalidArgument("a weight has " + std::to_string(desc.columns) + " columns; 1 to 2^31 are possible");
    }
    if (desc.max_tokens < 0) return InvalidArgument("a weight's max_tokens is negative");
    if (desc.parts.empty()) return InvalidArgument("a weight needs 1 or more parts");
    if (!desc.linear && !desc.embed) return InvalidArgument("a weight needs a use: linear, embed or both");
    if (!IsFloat(desc.x_type) || !IsFloat(desc.y_type)) {
      return Unimplemented(std::string("activations of type ") + DTypeName(desc.x_type) + " and " +
                           DTypeName(desc.y_type) + " are unknown; f32, f16 and bf16 are possible");
    }
    for (const WeightPart& part : desc.parts) {
      const int64_t row_bytes = GgufRowBytes(part.dtype, desc.columns);
      if (row_bytes == 0) {
        return Unimplemented(std::string("weights of type ") + DTypeName(part.dtype) + " with " +
                             std::to_string(desc.columns) + " columns are not supported");
      }
      if (part.rows < 1 || part.row_stride_bytes < row_bytes || part.rows > (int64_t{1} << 40) / row_bytes) {
        return InvalidArgument("a weight part has " + std::to_string(part.rows) + " rows, " +
                               std::to_string(part.row_stride_bytes) + " bytes apart, of " + std::to_string(row_bytes) +
                               " bytes each");
      }
    }
    return OkStatus();
  }

  static const Part& PartOf(const HostWeight& w, int64_t row) {
    size_t i = w.parts.size() - 1;
    while (w.parts[i].first_row > row) --i;
    return w.parts[i];
  }

  // Columns [first, first + n) of a row; both are multiples of the block, as kChunk and the row's length are.
  static void Expand(const HostWeight& w, int64_t row, int64_t first, int64_t n, float* out) {
    const Part& part = PartOf(w, row);
    const GgufBlock block = GgufBlockOf(part.type);
    const uint8_t* bytes = part.data.data() + (row - part.first_row) * part.row_bytes;
    DequantizeRow(part.type, bytes + first / block.elements * block.bytes, n, out);
    if (part.scale.empty()) return;
    const float scale = part.scale[static_cast<size_t>(row - part.first_row)];
    for (int64_t i = 0; i < n; ++i) out[i] *= scale;
  }

  // y[:, r] = norm(x) . W[r] + bias[r] + residual[:, r]
  static void LinearRow(const HostWeight& w, const LinearArgs& args, const float* inverse_rms, int64_t tokens,
                        int64_t r) {
    const float* gain = inverse_rms != nullptr ? HostData<const float>(*args.norm_gain) : nullptr;
    const Tensor &x = *args.x, &y = *args.y;
    float values[kChunk], converted[kChunk];
    double weights[kChunk];
    for (int64_t first = 0; first < tokens; first += kTile) {
      const int64_t count = std::min(kTile, tokens - first);
      double sum[kTile] = {};
      for (int64_t c = 0; c < w.columns; c += kChunk) {
        const int64_t n = std::min(kChunk, w.columns - c);
        Expand(w, r, c, n, values);
        for (int64_t i = 0; i < n; ++i) weights[i] = values[i] * (gain != nullptr ? double{gain[c + i]} : 1.0);
        for (int64_t t = 0; t < count; ++t) {
          const int64_t at = (first + t) * x.stride[0] + c;
          const float* row = converted;
          if (w.x_type == DType::kF32) {
            row = HostData<const float>(x) + at;
          } else {
            DequantizeRow(w.x_type, HostData<const uint16_t>(x) + at, n, converted);
          }
          double dot = 0.0;
          for (int64_t i = 0; i < n; ++i) dot += weights[i] * row[i];
          sum[t] += dot;
        }
      }
      for (int64_t t = 0; t < count; ++t) {
        double value = sum[t] * (inverse_rms != nullptr ? inverse_rms[first + t] : 1.0f);
        if (args.bias != nullptr) value += HostData<const float>(*args.bias)[r];
        if (args.residual != nullptr) value += Load(*args.residual, (first + t) * args.residual->stride[0] + r);
        Store(y, (first + t) * y.stride[0] + r, static_cast<float>(value));
      }
    }
  }

  static float Curve(Activation kind, float x) {
    switch (kind) {
      case Activation::kSiluGated:
      case Activation::kSilu:
        return x / (1.0f + std::exp(-x));
      case Activation::kGeluTanhGated:
      case Activation::kGeluTanh:
        return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
      default:
        return 0.5f * x * (1.0f + std::erf(x * 0.7071067812f));
    }
  }
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_HOST_DENSE_HPP_
