// Weights of every type, linear layers over them and embeddings, against double precision. Bounds: dense_common.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/dense_common.h"
#include "tests/conformance/harness.h"
#include "tests/reference/gguf.h"

namespace octet::conformance {
namespace {

struct WeightCase {
  std::vector<DType> parts;  // one stored tensor each
  int64_t columns = 256, rows = 24;
  int tokens = 5;
  DType x_type = DType::kF32, y_type = DType::kF32;
  bool exact = false, row_scale = false, bias = false, norm = false, residual = false, in_place = false;
};

std::string NameOf(const WeightCase& c) {
  std::string name;
  for (DType type : c.parts) name += std::string(name.empty() ? "" : "+") + DTypeName(type);
  name += "_t" + std::to_string(c.tokens) + "_c" + std::to_string(c.columns) + "_r" + std::to_string(c.rows);
  if (c.x_type != DType::kF32 || c.y_type != DType::kF32) {
    name += std::string("_") + DTypeName(c.x_type) + "to" + DTypeName(c.y_type);
  }
  for (const auto& [on, text] : {std::pair{c.exact, "_exact"},
                                 {c.row_scale, "_rowscale"},
                                 {c.bias, "_bias"},
                                 {c.norm, "_norm"},
                                 {c.residual, "_residual"},
                                 {c.in_place, "_inplace"}}) {
    if (on) name += text;
  }
  return name;
}

// Host data of a weight, padded rows, and its desc. Prepared weights must not need it any more.
struct HostWeight {
  explicit HostWeight(const WeightCase& c) : random(5) {
    for (DType type : c.parts) {
      std::vector<uint8_t> rows;
      for (int64_t r = 0; r < c.rows; ++r) {
        const auto row = reference::RandomWeightRow(type, c.columns, 0.5, random);
        stride = static_cast<int64_t>(row.size()) + 16;
        rows.insert(rows.end(), row.begin(), row.end());
        rows.insert(rows.end(), 16, 0xff);
      }
      data.push_back(std::move(rows));
      std::vector<float> scale;
      for (int64_t r = 0; r < c.rows; ++r) scale.push_back(random.Uniform(0.25, 4.0));
      scales.push_back(std::move(scale));
    }
    for (size_t i = 0; i < data.size(); ++i) {
      parts.push_back({c.parts[i], c.rows, static_cast<int64_t>(data[i].size()) / c.rows, data[i].data(),
                       c.row_scale ? scales[i].data() : nullptr});
    }
    desc.columns = c.columns;
    desc.parts = parts;
    desc.exact = c.exact;
    desc.max_tokens = c.tokens;
    desc.x_type = c.x_type;
    desc.y_type = c.y_type;
  }
  void Forget() {
    for (auto& rows : data) std::fill(rows.begin(), rows.end(), uint8_t{0xff});
    for (auto& scale : scales) std::fill(scale.begin(), scale.end(), std::numeric_limits<float>::quiet_NaN());
  }

  Random random;
  int64_t stride = 0;
  std::vector<std::vector<uint8_t>> data;
  std::vector<std::vector<float>> scales;
  std::vector<WeightPart> parts;
  WeightDesc desc;
};

Status PrepareWeight(HostWeight& host, OwnedWeight* weight, Support* support) {
  const StatusOr<DenseOps*> dense = Dense();
  OCTET_RETURN_IF_ERROR(dense.status());
  *support = (*dense)->SupportsWeight(host.desc);
  if (support->level == 0) return Unimplemented(support->reason);
  auto prepared = TheSubject().device->PrepareWeight(&TheSubject().s(), host.desc);
  OCTET_RETURN_IF_ERROR(Promised("prepare_weight", prepared.status()));
  *weight = *std::move(prepared);
  host.Forget();
  return OkStatus();
}

Status RunLinear(const WeightCase& c) {
  HostWeight host(c);
  const Vector w = reference::WeightMatrix(host.desc);
  const int64_t rows = host.desc.rows();
  OwnedWeight weight;
  Support support;
  OCTET_RETURN_IF_ERROR(PrepareWeight(host, &weight, &support));

  const std::vector<float> x = Rounded(c.x_type, host.random.Normals(static_cast<size_t>(c.tokens * c.columns)));
  const std::vector<float> bias = host.random.Normals(static_cast<size_t>(rows)),
                           gain = host.random.Normals(static_cast<size_t>(c.columns));
  const std::vector<float> residual = Rounded(c.y_type, host.random.Normals(static_cast<size_t>(c.tokens * rows)));
  const Block x_block(c.x_type, x), bias_block(bias), gain_block(gain), residual_block(c.y_type, residual);
  Block y(static_cast<uint64_t>(c.tokens * rows * ElementBytes(c.y_type)));
  if (c.in_place) y.Write(residual_block.Bytes());
  const Workspace workspace(support.workspace_bytes);

  const Tensor xt = x_block.View(c.x_type, {c.tokens, c.columns}), yt = y.View(c.y_type, {c.tokens, rows});
  const Tensor bt = bias_block.View(DType::kF32, {rows}), gt = gain_block.View(DType::kF32, {c.columns});
  const Tensor rt = residual_block.View(c.y_type, {c.tokens, rows});
  LinearArgs args = ArgsOf(xt, yt, weight.get(), workspace);
  if (c.bias) args.bias = &bt;
  if (c.norm) args.norm_gain = &gt, args.norm_eps = 1e-5f;
  if (c.residual) args.residual = c.in_place ? &yt : &rt;
  const Status status = (*Dense())->Linear(TheSubject().s(), args);
  Sync();
  OCTET_RETURN_IF_ERROR(Promised("linear", status));

  Vector input = Doubles(x);
  if (c.norm) input = reference::Norm(NormKind::kRms, input, Doubles(gain), {}, static_cast<double>(1e-5f)).value;
  const reference::Sums want = reference::Linear(input, w, c.columns, c.bias ? Doubles(bias) : Vector{},
                                                 c.residual ? Doubles(residual) : Vector{});
  Compare(y, c.y_type, want.value, [&](size_t i) {
    const size_t n = static_cast<size_t>(c.columns), t = i / static_cast<size_t>(rows),
                 r = i % static_cast<size_t>(rows);
    const double sums = (static_cast<double>(c.columns) * (c.norm ? 2 : 1) + 16) * kUnit * want.magnitude[i];
    if (c.exact) return sums;
    double largest = 0, w_squares = 0, products = 0;
    for (size_t k = 0; k < n; ++k) {
      largest = std::max(largest, std::abs(input[t * n + k]));
      w_squares += w[r * n + k] * w[r * n + k];
      products += input[t * n + k] * input[t * n + k] * w[r * n + k] * w[r * n + k];
    }
    return sums + 6 / std::sqrt(3.0) * (largest / 254 * std::sqrt(w_squares) + 0x1p-8 * std::sqrt(products));
  });
  return OkStatus();
}

Status RunEmbed(WeightCase c, float scale) {
  HostWeight host(c);
  host.desc.linear = false;
  host.desc.embed = true;
  const Vector w = reference::WeightMatrix(host.desc);
  const int64_t rows = host.desc.rows();
  OwnedWeight weight;
  Support support;
  OCTET_RETURN_IF_ERROR(PrepareWeight(host, &weight, &support));
  const int32_t last = static_cast<int32_t>(rows) - 1;
  const std::vector<int32_t> ids = {
      0, last, 3, 3, -1, last + 1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min(), 1};
  const int64_t tokens = static_cast<int64_t>(ids.size());
  const Block id_block(ids);
  const Block y(static_cast<uint64_t>(tokens * c.columns * ElementBytes(c.y_type)));
  const Tensor it = id_block.View(DType::kI32, {tokens}), yt = y.View(c.y_type, {tokens, c.columns});
  const Status status = (*Dense())->Embed(TheSubject().s(), *weight.get(), it, scale, yt);
  Sync();
  OCTET_RETURN_IF_ERROR(Promised("embed", status));
  const std::vector<float> got = y.Floats(c.y_type);
  for (size_t t = 0; t < ids.size(); ++t) {
    const bool inside = ids[t] >= 0 && ids[t] <= last;
    double largest = 0;
    for (int64_t i = 0; i < c.columns && inside; ++i)
      largest = std::max(largest, std::abs(w[static_cast<size_t>(ids[t] * c.columns + i)]));
    for (int64_t i = 0; i < c.columns; ++i) {
      const float value = got[t * static_cast<size_t>(c.columns) + static_cast<size_t>(i)];
      if (!inside) {
        EXPECT_TRUE(std::isnan(value)) << "id " << ids[t] << " of " << rows << " rows gives " << value << ", want NaN";
        if (!std::isnan(value)) return OkStatus();
        continue;
      }
      // scale * code + minimum in f32, times the row's and the call's scale.
      const double want = scale * w[static_cast<size_t>(ids[t] * c.columns + i)];
      const double bound = 8 * kUnit * std::abs(scale) * largest + 2 * reference::Ulp(c.y_type, want);
      EXPECT_LE(std::abs(value - want), bound)
          << "id " << ids[t] << " column " << i << ": got " << value << ", want " << want;
      if (std::abs(value - want) > bound) return OkStatus();
    }
  }
  return OkStatus();
}

void AddLinear(const WeightCase& c) {
  AddCase("Dense.Linear/" + NameOf(c), [c] { return RunLinear(c); });
}

}  // namespace

void AddWeightCases() {
  for (int type : {1, 2, 3, 16, 17, 18, 19, 20, 24, 25, 26}) {
    WeightCase c;
    c.parts = {static_cast<DType>(type)};
    for (bool exact : {false, true}) {
      c.exact = exact;
      for (int tokens : {1, 5, 33}) {
        c.tokens = tokens;
        AddLinear(c);
      }
    }
    c.exact = false;
    c.tokens = 5;
    c.columns = reference::BlockOf(c.parts[0]).elements == 256 ? 768 : 160;
    c.rows = 7;
    AddLinear(c);
    c.row_scale = true;
    AddLinear(c);
    for (float scale : {1.0f, 25.3f}) {
      AddCase("Dense.Embed/" + NameOf(c) + (scale == 1.0f ? "" : "_scaled"), [c, scale] { return RunEmbed(c, scale); });
    }
    c.row_scale = false;
    c.y_type = DType::kBF16;
    AddCase("Dense.Embed/" + NameOf(c), [c] { return RunEmbed(c, 1.0f); });
  }
  for (DType type : {DType::kF32, DType::kQ4_0, DType::kQ4_K}) {
    for (bool exact : {false, true}) {
      WeightCase c;
      c.parts = {type};
      c.exact = exact;
      c.bias = true;
      AddLinear(c);
      c.norm = true;
      AddLinear(c);
      c.residual = true;
      AddLinear(c);
      c.in_place = true;
      c.tokens = 1;
      AddLinear(c);
      for (DType x_type : kFloats) {
        for (DType y_type : kFloats) {
          WeightCase mixed;
          mixed.parts = {type};
          mixed.exact = exact;
          mixed.x_type = x_type;
          mixed.y_type = y_type;
          if (x_type != DType::kF32 || y_type != DType::kF32) AddLinear(mixed);
        }
      }
    }
  }
  WeightCase packed;
  packed.parts = {DType::kQ4_K, DType::kQ4_K, DType::kQ6_K};
  AddLinear(packed);
  packed.parts = {DType::kQ5_0, DType::kQ8_0, DType::kF32};
  packed.bias = packed.norm = true;
  AddLinear(packed);
  WeightCase shape;
  shape.parts = {DType::kF32};
  for (const auto& [columns, rows] : {std::pair<int64_t, int64_t>{8, 1}, {40, 3}, {1000, 65}, {64, 130}}) {
    shape.columns = columns;
    shape.rows = rows;
    AddLinear(shape);
  }
}

}  // namespace octet::conformance
