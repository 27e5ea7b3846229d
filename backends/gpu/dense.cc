#include "backends/gpu/dense.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/kernels/kernels.h"
#include "backends/gpu/quant.h"
#include "octet/bounds.h"
#include "octet/checks.h"
#include "octet/gguf_blocks.h"
#include "octet/weight_checks.h"

namespace octet_gpu {
namespace {

using octet::DType;
using octet::InvalidArgument;
using octet::LinearArgs;
using octet::OkStatus;
using octet::Status;
using octet::StatusOr;
using octet::Support;
using octet::Tensor;
using octet::Unimplemented;
using octet::WeightDesc;
using octet::WeightPart;

constexpr uint64_t kAlign = 256;

std::string Named(const std::string& text) { return std::string(runtime::kName) + ": " + text; }
uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// One allocation: each part's blocks, its row scales, and the parts' table behind them all.
struct GpuWeight : octet::WeightShape {
  using WeightShape::WeightShape;
  std::unique_ptr<GpuBuffer> memory;
  std::vector<WeightRows> parts;
  const WeightRows* device_parts = nullptr;
};

const GpuWeight& WeightOf(const octet::Weight& w) { return reinterpret_cast<const GpuWeight&>(w); }

uint64_t DataBytes(const WeightDesc& d, const WeightPart& part) {
  return Aligned(static_cast<uint64_t>(part.rows * octet::GgufRowBytes(part.dtype, d.columns)));
}
uint64_t ScaleBytes(const WeightPart& part) {
  return part.row_scale != nullptr ? Aligned(static_cast<uint64_t>(part.rows) * sizeof(float)) : 0;
}
uint64_t ResidentBytes(const WeightDesc& d) {
  uint64_t bytes = d.parts.size() * sizeof(WeightRows);
  for (const WeightPart& part : d.parts) bytes += DataBytes(d, part) + ScaleBytes(part);
  return bytes;
}

// x as f32 where it is normalized or has another type.
uint64_t WorkspaceBytes(const WeightDesc& d) {
  return d.linear ? static_cast<uint64_t>(d.columns) * static_cast<uint64_t>(d.max_tokens) * sizeof(float) + kAlign : 0;
}

Status CheckFloatTensor(const char* name, const Tensor& t) {
  const DType type = octet::TypeOf(t);
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return Unimplemented(Named(name) + " of type " + octet::DTypeName(type) +
                         " is not supported here; f32, f16 and bf16 are");
  }
  OCTET_RETURN_IF_ERROR(octet::CheckStrides(name, t));
  return octet::CheckBounds(name, t);
}

Status CheckRowCount(const char* what, int64_t rows) {
  if (rows <= std::numeric_limits<int32_t>::max()) return OkStatus();
  return Unimplemented(Named(what) + ": more than 2^31 - 1 rows in one call are not supported");
}

Status CheckSameShape(const char* names, const Tensor& x, const Tensor& y, int64_t x_last) {
  bool same = x.rank == y.rank;
  for (int i = 0; same && i < x.rank - 1; ++i) same = x.shape[i] == y.shape[i];
  if (same && y.shape[y.rank - 1] == x_last) return OkStatus();
  return InvalidArgument(std::string(names) + " are " + octet::ShapeText(x) + " and " + octet::ShapeText(y) +
                         ", which do not fit");
}

FloatRows RowsOf(const Tensor& t) {
  FloatRows r{};
  r.data = DataOf<void>(t);
  r.element = ElementOf(octet::TypeOf(t));
  r.n = t.shape[t.rank - 1];
  r.rows = 1;
  const int outer = t.rank - 1;
  for (int i = 0; i < 4; ++i) {
    const int from = i - (4 - outer);
    r.shape[i] = from >= 0 ? t.shape[from] : 1;
    r.stride[i] = from >= 0 ? t.stride[from] : 0;
    r.rows *= r.shape[i];
  }
  return r;
}

}  // namespace

Support Dense::SupportsWeight(const WeightDesc& d) const {
  if (const Status s = octet::CheckWeightDesc(d); !s.ok()) return Support::No(s.message());
  Support yes = Support::Yes(1, "linear f32", WorkspaceBytes(d));
  yes.resident_bytes = ResidentBytes(d);
  return yes;
}

StatusOr<octet::Weight*> Dense::PrepareWeight(octet::Stream& stream, const WeightDesc& d) {
  OCTET_RETURN_IF_ERROR(octet::CheckWeightDesc(d));
  OCTET_RETURN_IF_ERROR(octet::CheckWeightData(d));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  const runtime::Stream native = NativeOf(stream);
  auto w = std::make_unique<GpuWeight>(d);
  const uint64_t bytes = ResidentBytes(d);
  void* memory = nullptr;
  const std::string what = "prepare_weight: alloc of " + std::to_string(bytes) + " bytes";
  OCTET_RETURN_IF_ERROR(context_.Check(runtime::Alloc(&memory, bytes), what.c_str()));
  w->memory = std::make_unique<GpuBuffer>(context_, memory, bytes, false);
  uint8_t* at = w->memory->data();
  int64_t first_row = 0;
  for (const WeightPart& part : d.parts) {
    WeightRows rows{};
    rows.data = at;
    rows.row_bytes = octet::GgufRowBytes(part.dtype, d.columns);
    rows.first_row = first_row;
    rows.rows = part.rows;
    rows.type = static_cast<int32_t>(part.dtype);
    const auto row_bytes = static_cast<size_t>(rows.row_bytes), count = static_cast<size_t>(part.rows);
    const size_t pitch = part.rows > 1 ? static_cast<size_t>(part.row_stride_bytes) : row_bytes;
    OCTET_RETURN_IF_ERROR(context_.Check(
        pitch == row_bytes ? runtime::CopyAsync(at, part.data, row_bytes * count, native)
                           : runtime::Copy2DAsync(at, row_bytes, part.data, pitch, row_bytes, count, native),
        "prepare_weight"));
    at += DataBytes(d, part);
    if (part.row_scale != nullptr) {
      rows.row_scale = reinterpret_cast<const float*>(at);
      OCTET_RETURN_IF_ERROR(
          context_.Check(runtime::CopyAsync(at, part.row_scale, count * sizeof(float), native), "prepare_weight"));
      at += ScaleBytes(part);
    }
    w->parts.push_back(rows);
    first_row += part.rows;
  }
  w->device_parts = reinterpret_cast<const WeightRows*>(at);
  OCTET_RETURN_IF_ERROR(context_.Check(
      runtime::CopyAsync(at, w->parts.data(), w->parts.size() * sizeof(WeightRows), native), "prepare_weight"));
  // The caller may unmap its data.
  OCTET_RETURN_IF_ERROR(context_.Check(runtime::Synchronize(native), "prepare_weight"));
  return reinterpret_cast<octet::Weight*>(w.release());
}

void Dense::ReleaseWeight(octet::Weight* weight) { delete reinterpret_cast<GpuWeight*>(weight); }

Status Dense::Linear(octet::Stream& stream, const LinearArgs& a) {
  const GpuWeight& w = WeightOf(*a.w);
  if (!w.linear) return octet::FailedPrecondition("linear: the weight was prepared for embedding only");
  if (a.x == nullptr) return InvalidArgument("x is NULL");
  const int64_t tokens = a.x->shape[0];
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("x", a.x, w.x_type, {tokens, w.columns}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("y", a.y, w.y_type, {tokens, w.rows}));
  if (a.bias != nullptr) OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("bias", a.bias, DType::kF32, {w.rows}));
  if (a.norm_gain != nullptr) {
    OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("norm_gain", a.norm_gain, DType::kF32, {w.columns}));
  }
  if (a.residual != nullptr) {
    OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("residual", a.residual, w.y_type, {tokens, w.rows}));
  }
  if (tokens > w.max_tokens) {
    return InvalidArgument("linear: x has " + std::to_string(tokens) + " rows; the weight was prepared for at most " +
                           std::to_string(w.max_tokens));
  }
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (tokens == 0) return OkStatus();
  const runtime::Stream native = NativeOf(stream);
  LinearParams p{};
  p.columns = w.columns;
  p.tokens = tokens;
  p.x = DataOf<const float>(*a.x);
  p.x_stride = a.x->stride[0];
  if (a.norm_gain != nullptr || w.x_type != DType::kF32) {
    const auto bytes = static_cast<uint64_t>(w.columns * tokens) * sizeof(float);
    if (a.workspace == nullptr) {
      return InvalidArgument("linear: norm_gain and 16-bit x need the workspace that supports_weight asks for");
    }
    GpuBuffer& workspace = GpuBufferOf(*a.workspace);
    OCTET_RETURN_IF_ERROR(workspace.CheckRange("linear workspace", a.workspace_offset, bytes + kAlign));
    const Tensor packed = octet::MakeTensor(a.workspace, DType::kF32, {tokens, w.columns}, Aligned(a.workspace_offset));
    const FloatRows from = RowsOf(*a.x), to = RowsOf(packed);
    if (a.norm_gain != nullptr) {
      LaunchNorm({from, to, DataOf<const float>(*a.norm_gain), nullptr, a.norm_eps, false}, native);
    } else {
      LaunchConvert(from, to, native);
    }
    p.x = DataOf<const float>(packed);
    p.x_stride = w.columns;
  }
  p.y = DataOf<void>(*a.y);
  p.y_stride = a.y->stride[0];
  p.y_element = ElementOf(w.y_type);
  if (a.bias != nullptr) p.bias = DataOf<const float>(*a.bias);
  if (a.residual != nullptr) {
    p.residual = DataOf<const void>(*a.residual);
    p.residual_stride = a.residual->stride[0];
  }
  for (const WeightRows& part : w.parts) {
    p.w = part;
    LaunchLinear(p, native);
  }
  return context_.CheckLaunch("linear");
}

Status Dense::Embed(octet::Stream& stream, const octet::Weight& weight, const Tensor& ids, float scale,
                    const Tensor& y) {
  const GpuWeight& w = WeightOf(weight);
  if (!w.embed) return octet::FailedPrecondition("embed: the weight was prepared for linear layers only");
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("ids", &ids, DType::kI32, {-1}));
  const int64_t tokens = ids.shape[0];
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("y", &y, w.y_type, {tokens, w.columns}));
  OCTET_RETURN_IF_ERROR(CheckRowCount("embed", tokens));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (tokens == 0) return OkStatus();
  EmbedParams p{};
  p.parts = w.device_parts;
  p.num_parts = static_cast<int32_t>(w.parts.size());
  p.columns = w.columns;
  p.tokens = tokens;
  p.ids = DataOf<const int32_t>(ids);
  p.scale = scale;
  p.y = DataOf<void>(y);
  p.y_stride = y.stride[0];
  p.y_element = ElementOf(w.y_type);
  LaunchEmbed(p, NativeOf(stream));
  return context_.CheckLaunch("embed");
}

Status Dense::Norm(octet::Stream& stream, octet::NormKind kind, const Tensor& x, const Tensor& gain, const Tensor* bias,
                   float eps, const Tensor& y) {
  if (kind != octet::NormKind::kRms && kind != octet::NormKind::kLayer) {
    return Unimplemented("norm: kind " + std::to_string(static_cast<int32_t>(kind)) +
                         " is unknown; known are 1 (RMS) and 2 (layer)");
  }
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("x", x));
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("y", y));
  const int64_t n = x.shape[x.rank - 1];
  OCTET_RETURN_IF_ERROR(CheckSameShape("x and y", x, y, n));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("gain", &gain, DType::kF32, {n}));
  if (bias != nullptr) {
    if (kind == octet::NormKind::kRms) return InvalidArgument("norm: RMS norm has no bias");
    OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("bias", bias, DType::kF32, {n}));
  }
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (octet::NumElements(x) == 0) return OkStatus();
  const NormParams p = {RowsOf(x),
                        RowsOf(y),
                        DataOf<const float>(gain),
                        bias != nullptr ? DataOf<const float>(*bias) : nullptr,
                        eps,
                        kind == octet::NormKind::kLayer};
  OCTET_RETURN_IF_ERROR(CheckRowCount("norm", p.x.rows));
  LaunchNorm(p, NativeOf(stream));
  return context_.CheckLaunch("norm");
}

Status Dense::Rope(octet::Stream& stream, const Tensor& x, const Tensor& positions, const Tensor& cos_sin,
                   bool interleaved) {
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("x", x));
  OCTET_RETURN_IF_ERROR(octet::CheckTensor("x", &x, octet::TypeOf(x), {-1, -1, -1}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("positions", &positions, DType::kI32, {x.shape[0]}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("cos_sin", &cos_sin, DType::kF32, {-1, -1, 2}));
  RopeParams p{};
  p.pairs = cos_sin.shape[1];
  if (2 * p.pairs > x.shape[2]) {
    return InvalidArgument("rope: " + std::to_string(p.pairs) + " pairs do not fit into head_dim " +
                           std::to_string(x.shape[2]));
  }
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (octet::NumElements(x) == 0 || p.pairs == 0) return OkStatus();
  OCTET_RETURN_IF_ERROR(CheckRowCount("rope", octet::NumElements(x) / 64));
  p.x = DataOf<void>(x);
  p.element = ElementOf(octet::TypeOf(x));
  p.tokens = x.shape[0];
  p.heads = x.shape[1];
  p.token_stride = x.stride[0];
  p.head_stride = x.stride[1];
  p.positions = DataOf<const int32_t>(positions);
  p.cos_sin = DataOf<const float>(cos_sin);
  p.table = cos_sin.shape[0];
  p.position_stride = cos_sin.stride[0];
  p.pair_stride = cos_sin.stride[1];
  p.interleaved = interleaved;
  LaunchRope(p, NativeOf(stream));
  return context_.CheckLaunch("rope");
}

Status Dense::Activate(octet::Stream& stream, octet::Activation kind, const Tensor& x, const Tensor& y) {
  const auto number = static_cast<int32_t>(kind);
  if (number < OCTET_ACT_SILU_GATED || number > OCTET_ACT_GELU) {
    return Unimplemented("activation: kind " + std::to_string(number) + " is unknown; known are 1 to 6");
  }
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("x", x));
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("y", y));
  const bool gated = number <= OCTET_ACT_GELU_GATED;
  const int64_t width = x.shape[x.rank - 1];
  if (gated && width % 2 != 0) return InvalidArgument("activation: a gated kind needs an even last dimension");
  OCTET_RETURN_IF_ERROR(CheckSameShape("x and y", x, y, gated ? width / 2 : width));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (octet::NumElements(y) == 0) return OkStatus();
  OCTET_RETURN_IF_ERROR(CheckRowCount("activation", RowsOf(y).rows));
  LaunchActivation(number, RowsOf(x), RowsOf(y), NativeOf(stream));
  return context_.CheckLaunch("activation");
}

Status Dense::Add(octet::Stream& stream, const Tensor& x, const Tensor& y) {
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("x", x));
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("y", y));
  OCTET_RETURN_IF_ERROR(CheckSameShape("x and y", x, y, x.shape[x.rank - 1]));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (octet::NumElements(y) == 0) return OkStatus();
  OCTET_RETURN_IF_ERROR(CheckRowCount("add", RowsOf(y).rows));
  LaunchAdd(RowsOf(x), RowsOf(y), NativeOf(stream));
  return context_.CheckLaunch("add");
}

Status Dense::GatherRows(octet::Stream& stream, const Tensor& x, const Tensor& rows, const Tensor& y) {
  OCTET_RETURN_IF_ERROR(CheckFloatTensor("x", x));
  const DType type = octet::TypeOf(x);
  OCTET_RETURN_IF_ERROR(octet::CheckTensor("x", &x, type, {-1, -1}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("rows", &rows, DType::kI32, {-1}));
  OCTET_RETURN_IF_ERROR(octet::CheckTensorInside("y", &y, type, {rows.shape[0], x.shape[1]}));
  OCTET_RETURN_IF_ERROR(CheckRowCount("gather_rows", rows.shape[0]));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  if (octet::NumElements(y) == 0) return OkStatus();
  const int64_t element = octet::ElementBytes(type);
  GatherRowsParams p{};
  p.x = DataOf<const uint8_t>(x);
  p.y = DataOf<uint8_t>(y);
  p.x_stride = x.stride[0] * element;
  p.y_stride = y.stride[0] * element;
  p.row_bytes = x.shape[1] * element;
  p.rows = rows.shape[0];
  p.count = x.shape[0];
  p.index = DataOf<const int32_t>(rows);
  const uint64_t all = reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.y) |
                       static_cast<uint64_t>(p.x_stride | p.y_stride | p.row_bytes) | 16;
  p.word = static_cast<int32_t>(all & ~(all - 1));
  LaunchGatherRows(p, NativeOf(stream));
  return context_.CheckLaunch("gather_rows");
}

}  // namespace octet_gpu
