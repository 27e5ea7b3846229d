// Norms, RoPE, activations and the small operations of a model against double precision. Bounds: dense_common.h.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/dense_common.h"
#include "tests/conformance/harness.h"

namespace octet::conformance {
namespace {

// A call without a supports of its own: it may refuse, with a reason and before it touches the output.
Status Optional(const char* call, const Status& status, const Block& y) {
  Sync();
  if (status.code() != Code::kUnimplemented) return Promised(call, status);
  EXPECT_FALSE(status.message().empty()) << call << " refused without a reason (rule A9)";
  Untouched(y, "the output");
  return status;
}

Status RunNorm(NormKind kind, DType type, int64_t n, bool in_place, bool with_bias) {
  const StatusOr<DenseOps*> dense = Dense();
  OCTET_RETURN_IF_ERROR(dense.status());
  Random random(6);
  std::vector<float> x = random.Normals(static_cast<size_t>(6 * n));
  for (int64_t i = 0; i < n; ++i) {
    x[static_cast<size_t>(n + i)] = 0.0f;                                           // a row of zeros
    x[static_cast<size_t>(2 * n + i)] *= 1e-4f;                                     // eps counts
    x[static_cast<size_t>(3 * n + i)] = 50.0f + x[static_cast<size_t>(3 * n + i)];  // far from its mean
  }
  x[static_cast<size_t>(4 * n)] = 1000.0f;
  x = Rounded(type, x);
  const std::vector<float> gain = random.Normals(static_cast<size_t>(n)), bias = random.Normals(static_cast<size_t>(n));
  const Block gain_block(gain), bias_block(bias);
  Block x_block(type, x), y_block(x.size() * static_cast<size_t>(ElementBytes(type)));
  if (in_place) x_block.Write(x_block.Bytes());
  const Block& y = in_place ? x_block : y_block;
  const Tensor xt = x_block.View(type, {2, 3, n}), yt = y.View(type, {2, 3, n});
  const Tensor gt = gain_block.View(DType::kF32, {n}), bt = bias_block.View(DType::kF32, {n});
  const float eps = 1e-6f;
  OCTET_RETURN_IF_ERROR(
      Optional("norm", (*dense)->Norm(TheSubject().s(), kind, xt, gt, with_bias ? &bt : nullptr, eps, yt), y_block));
  const reference::Sums want =
      reference::Norm(kind, Doubles(x), Doubles(gain), with_bias ? Doubles(bias) : Vector{}, eps);
  Compare(y, type, want.value, [&](size_t i) { return (static_cast<double>(n) + 16) * kUnit * want.magnitude[i]; });
  return OkStatus();
}

Status RunRope(DType type, int64_t head_dim, int64_t pairs, bool interleaved) {
  const StatusOr<DenseOps*> dense = Dense();
  OCTET_RETURN_IF_ERROR(dense.status());
  Random random(7);
  const std::vector<int32_t> positions = {0, 1, 5, 99, 2};
  const int64_t heads = 3, tokens = static_cast<int64_t>(positions.size());
  std::vector<float> cos_sin;
  for (int p = 0; p < 100; ++p) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = p * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
      cos_sin.push_back(static_cast<float>(std::cos(angle)));
      cos_sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  const std::vector<float> x = Rounded(type, random.Normals(static_cast<size_t>(tokens * heads * head_dim)));
  const Block table(cos_sin), position_block(positions), source(type, x);
  Block in_out(source.size());
  in_out.Write(source.Bytes());
  const Tensor xt = in_out.View(type, {tokens, heads, head_dim}), pt = position_block.View(DType::kI32, {tokens});
  const Tensor ct = table.View(DType::kF32, {100, pairs, 2});
  const Status status = (*dense)->Rope(TheSubject().s(), xt, pt, ct, interleaved);
  Sync();
  if (status.code() == Code::kUnimplemented) {
    EXPECT_EQ(in_out.Bytes(), source.Bytes()) << "a call that refused wrote to x";
    return status;
  }
  OCTET_RETURN_IF_ERROR(Promised("rope", status));
  const reference::Sums want = reference::Rope(Doubles(x), heads, head_dim, positions, cos_sin, pairs, interleaved);
  Compare(in_out, type, want.value, [&](size_t i) { return 4 * kUnit * want.magnitude[i]; });
  return OkStatus();
}

Status RunActivation(Activation kind, DType type) {
  const StatusOr<DenseOps*> dense = Dense();
  OCTET_RETURN_IF_ERROR(dense.status());
  const bool gated =
      kind == Activation::kSiluGated || kind == Activation::kGeluGated || kind == Activation::kGeluTanhGated;
  const int64_t tokens = 4, columns = 74;
  Random random(8);
  std::vector<float> x = random.Normals(static_cast<size_t>(tokens * columns), 2.0f);
  const float edges[] = {0.0f,   -0.0f, 1e-30f, -1e-6f,  5.0f,     -5.0f, 12.0f,
                         -12.0f, 90.0f, -90.0f, 1000.0f, -1000.0f, 3e4f,  -3e4f};
  std::copy(std::begin(edges), std::end(edges), x.begin());
  if (type == DType::kF16) {
    for (float& v : x) v = std::clamp(v, -1000.0f, 1000.0f);  // a product must not overflow
  }
  x = Rounded(type, x);
  const int64_t out_columns = gated ? columns / 2 : columns;
  const Block x_block(type, x), y(static_cast<uint64_t>(tokens * out_columns * ElementBytes(type)));
  const Tensor xt = x_block.View(type, {tokens, columns}), yt = y.View(type, {tokens, out_columns});
  OCTET_RETURN_IF_ERROR(Optional("activation", (*dense)->Activate(TheSubject().s(), kind, xt, yt), y));
  const reference::Sums want = reference::Activate(kind, Doubles(x), columns);
  // |f(x)| <= |x|; exp, tanh and erf of a library are good to a few ulp of 1 where f cancels.
  Compare(y, type, want.value, [&](size_t i) { return 16 * kUnit * want.magnitude[i]; });
  return OkStatus();
}

Status RunAdd(DType type) {
  const StatusOr<DenseOps*> dense = Dense();
  OCTET_RETURN_IF_ERROR(dense.status());
  Random random(9);
  const std::vector<float> x = Rounded(type, random.Normals(3 * 77)), y0 = Rounded(type, random.Normals(3 * 77));
  const Block x_block(type, x), source(type, y0);
  Block y(source.size());
  y.Write(source.Bytes());
  const Tensor xt = x_block.View(type, {3, 77}), yt = y.View(type, {3, 77});
  const Status status = (*dense)->Add(TheSubject().s(), xt, yt);
  Sync();
  if (status.code() == Code::kUnimplemented) {
    EXPECT_EQ(y.Bytes(), source.Bytes()) << "a call that refused wrote to y";
    return status;
  }
  OCTET_RETURN_IF_ERROR(Promised("add", status));
  Vector want = Doubles(x);
  for (size_t i = 0; i < want.size(); ++i) want[i] += y0[i];
  Compare(y, type, want, [](size_t) { return 0.0; });
  return OkStatus();
}

Status RunGatherRows(DType type) {
  const StatusOr<DenseOps*> dense = Dense();
  OCTET_RETURN_IF_ERROR(dense.status());
  Random random(10);
  const std::vector<float> x = Rounded(type, random.Normals(9 * 77));
  const std::vector<int32_t> rows = {8, 0, 3, 3};
  const Block x_block(type, x), row_block(rows), y(static_cast<uint64_t>(4 * 77 * ElementBytes(type)));
  const Tensor xt = x_block.View(type, {9, 77}), rt = row_block.View(DType::kI32, {4}), yt = y.View(type, {4, 77});
  OCTET_RETURN_IF_ERROR(Optional("gather_rows", (*dense)->GatherRows(TheSubject().s(), xt, rt, yt), y));
  std::vector<float> want;
  for (int32_t r : rows) want.insert(want.end(), x.begin() + r * 77, x.begin() + (r + 1) * 77);
  EXPECT_EQ(y.Floats(type), want);
  return OkStatus();
}

}  // namespace

void AddDenseCases() {
  for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const std::string name = kind == NormKind::kRms ? "rms" : "layer";
    for (DType type : kFloats) {
      for (int64_t n : {8, 64, 100, 896}) {
        for (bool in_place : {false, true}) {
          const bool bias = kind == NormKind::kLayer && n != 64;
          AddCase("Dense.Norm/" + name + "_" + DTypeName(type) + "_n" + std::to_string(n) +
                      (in_place ? "_inplace" : "") + (bias ? "_bias" : ""),
                  [=] { return RunNorm(kind, type, n, in_place, bias); });
        }
      }
    }
  }
  for (DType type : kFloats) {
    for (bool interleaved : {false, true}) {
      for (const auto& [dim, pairs] : {std::pair<int64_t, int64_t>{64, 32}, {64, 8}, {40, 20}, {128, 64}}) {
        AddCase(std::string("Dense.Rope/") + DTypeName(type) + "_d" + std::to_string(dim) + "_pairs" +
                    std::to_string(pairs) + (interleaved ? "_interleaved" : ""),
                [=, dim = dim, pairs = pairs] { return RunRope(type, dim, pairs, interleaved); });
      }
    }
    for (int kind = OCTET_ACT_SILU_GATED; kind <= OCTET_ACT_GELU; ++kind) {
      const char* names[] = {"", "silu_gated", "gelu_tanh_gated", "gelu_gated", "silu", "gelu_tanh", "gelu"};
      AddCase(std::string("Dense.Activation/") + names[kind] + "_" + DTypeName(type),
              [=] { return RunActivation(static_cast<Activation>(kind), type); });
    }
    AddCase(std::string("Dense.Add/") + DTypeName(type), [=] { return RunAdd(type); });
    AddCase(std::string("Dense.GatherRows/") + DTypeName(type), [=] { return RunGatherRows(type); });
  }
}

}  // namespace octet::conformance
