// The plain dense operations that every host backend has, spoken to as core does: through the tables.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/loader/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/gguf_blocks.h"
#include "octet/half.h"
#include "tests/unit/plugins/fake_backend.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class DenseFake final : public fake::Backend {
 public:
  DenseFake() : Backend("dense") {}
};

class HostDenseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::Open(plugin::Query<DenseFake>(nullptr, nullptr), 0, "dense:0", "");
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = *device_->CreateStream();
    arena_ = *device_->Alloc(1 << 20);
    host_ = static_cast<uint8_t*>(*device_->Map(arena_.get()));
  }

  DenseOps& ops() { return *device_->dense(); }
  Stream& stream() { return *stream_.get(); }

  // A tensor of its own, filled with `values`, which are rounded to the type.
  Tensor Make(DType type, std::initializer_list<int64_t> shape, const std::vector<float>& values = {}) {
    const Tensor t = MakeTensor(arena_.get(), type, shape, used_);
    const auto elements = static_cast<size_t>(NumElements(t));
    for (size_t i = 0; i < std::min(elements, values.size()); ++i) {
      uint8_t* at = host_ + used_ + i * static_cast<size_t>(ElementBytes(type));
      const uint16_t half = type == DType::kF16 ? FloatToHalf(values[i]) : FloatToBf16(values[i]);
      const auto integer = static_cast<int32_t>(values[i]);
      if (type == DType::kF32) std::memcpy(at, &values[i], 4);
      if (type == DType::kI32) std::memcpy(at, &integer, 4);
      if (type == DType::kF16 || type == DType::kBF16) std::memcpy(at, &half, 2);
    }
    used_ += (elements * 8 + 63) / 64 * 64;
    return t;
  }

  std::vector<float> Read(const Tensor& t) {
    std::vector<float> out(static_cast<size_t>(NumElements(t)));
    EXPECT_TRUE(DequantizeRow(TypeOf(t), host_ + t.offset, NumElements(t), out.data()));
    return out;
  }

  StatusOr<Weight*> Prepare(const std::vector<WeightPart>& parts, int64_t columns, bool embed = false,
                            DType x = DType::kF32, DType y = DType::kF32) {
    return ops().PrepareWeight(stream(), {.columns = columns,
                                          .parts = parts,
                                          .linear = !embed,
                                          .embed = embed,
                                          .max_tokens = 40,
                                          .x_type = x,
                                          .y_type = y});
  }

  std::unique_ptr<Device> device_;
  OwnedStream stream_;
  OwnedBuffer arena_;
  uint8_t* host_ = nullptr;
  uint64_t used_ = 0;
};

std::vector<float> Random(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& v : out) v = normal(random);
  return out;
}

TEST_F(HostDenseTest, LinearStacksPartsOfMixedTypesAndAddsEverythingOptional) {
  constexpr int64_t kColumns = 512, kTokens = 37;  // more than two tiles of tokens, two chunks of columns
  // Three rows of f32, two of Q8_0 with a gap between them and row scales, one of Q4_K.
  const std::vector<float> plain = Random(3 * kColumns, 1);
  std::vector<uint8_t> q8(2 * 600), q4k(GgufRowBytes(DType::kQ4_K, kColumns));
  std::mt19937 random(2);
  for (auto* bytes : {&q8, &q4k}) {
    for (uint8_t& b : *bytes) b = static_cast<uint8_t>(random());
  }
  for (size_t block = 0; block < q8.size(); block += block == 510 ? 90 : 34)
    std::memcpy(&q8[block], "\x00\x20", 2);  // d = 2^-7
  for (size_t block = 0; block < q4k.size(); block += 144) std::memcpy(&q4k[block], "\x00\x10\x00\x14", 4);
  const float row_scale[2] = {2.0f, -0.5f};
  const std::vector<WeightPart> parts = {
      {.dtype = DType::kF32, .rows = 3, .row_stride_bytes = kColumns * 4, .data = plain.data()},
      {.dtype = DType::kQ8_0, .rows = 2, .row_stride_bytes = 600, .data = q8.data(), .row_scale = row_scale},
      {.dtype = DType::kQ4_K, .rows = 1, .row_stride_bytes = static_cast<int64_t>(q4k.size()), .data = q4k.data()}};
  std::vector<float> matrix = plain;  // [6][kColumns], what the parts stand for
  matrix.resize(6 * kColumns);
  for (int64_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(DequantizeRow(DType::kQ8_0, &q8[static_cast<size_t>(600 * r)], kColumns,
                              &matrix[static_cast<size_t>((3 + r) * kColumns)]));
    for (int64_t c = 0; c < kColumns; ++c) matrix[static_cast<size_t>((3 + r) * kColumns + c)] *= row_scale[r];
  }
  ASSERT_TRUE(DequantizeRow(DType::kQ4_K, q4k.data(), kColumns, &matrix[5 * kColumns]));

  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (bool optional : {false, true}) {
      used_ = 0;
      const auto weight = Prepare(parts, kColumns, false, type, type);
      ASSERT_TRUE(weight.ok()) << weight.status().message();
      const Tensor x = Make(type, {kTokens, kColumns}, Random(kTokens * kColumns, 3));
      const Tensor y = Make(type, {kTokens, 6}), bias = Make(DType::kF32, {6}, Random(6, 4));
      const Tensor gain = Make(DType::kF32, {kColumns}, Random(kColumns, 5));
      const Tensor residual = Make(type, {kTokens, 6}, Random(kTokens * 6, 6)), work = Make(DType::kF32, {kTokens});
      const std::vector<float> xs = Read(x), bs = Read(bias), gs = Read(gain), rs = Read(residual);
      LinearArgs args{.x = &x, .y = &y, .w = *weight};
      if (optional) {
        args.bias = &bias;
        args.norm_gain = &gain;
        args.norm_eps = 1e-5f;
        args.residual = &residual;
        args.workspace = arena_.get();
        args.workspace_offset = work.offset;
      }
      const Status status = ops().Linear(stream(), args);
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<float> got = Read(y);
      const double ulp = type == DType::kF32 ? 1e-6 : type == DType::kF16 ? 1e-3 : 8e-3;
      for (size_t t = 0; t < kTokens; ++t) {
        double squares = 0;
        for (size_t c = 0; c < kColumns; ++c) squares += double{xs[t * kColumns + c]} * xs[t * kColumns + c];
        const double factor = optional ? 1 / std::sqrt(squares / kColumns + 1e-5) : 1.0;
        for (size_t r = 0; r < 6; ++r) {
          double want = 0, size = 0;
          for (size_t c = 0; c < kColumns; ++c) {
            const double product = xs[t * kColumns + c] * factor * (optional ? gs[c] : 1.0f) * matrix[r * kColumns + c];
            want += product;
            size += std::abs(product);
          }
          if (optional) want += bs[r] + rs[t * 6 + r];
          EXPECT_NEAR(got[t * 6 + r], want, ulp * std::abs(want) + 1e-6 * size)
              << DTypeName(type) << " token " << t << " row " << r;
        }
      }
      ops().ReleaseWeight(*weight);
    }
  }
}

TEST_F(HostDenseTest, EmbedScalesRowsAndMarksUnknownIds) {
  const std::vector<float> table = {1, 2, 3, 4, 5, 6};
  const auto weight =
      Prepare({{.dtype = DType::kF32, .rows = 3, .row_stride_bytes = 8, .data = table.data()}}, 2, true);
  ASSERT_TRUE(weight.ok());
  const Tensor ids = Make(DType::kI32, {4}, {2, 0, 3, -1}), y = Make(DType::kF32, {4, 2});
  ASSERT_TRUE(ops().Embed(stream(), **weight, ids, 10.0f, y).ok());
  const std::vector<float> got = Read(y);
  EXPECT_THAT(std::vector<float>(got.begin(), got.begin() + 4), ElementsAre(50, 60, 10, 20));
  for (size_t i = 4; i < 8; ++i) EXPECT_TRUE(std::isnan(got[i]));
  const LinearArgs args{.x = &y, .y = &y, .w = *weight};
  EXPECT_THAT(ops().Linear(stream(), args).message(), HasSubstr("prepared without this use"));
  ops().ReleaseWeight(*weight);
}

TEST_F(HostDenseTest, NormsWorkInPlaceAndOnStridedRows) {
  Tensor x = Make(DType::kF32, {2, 4}, {3, 4, 99, 99, 0, 0, 99, 99});
  x.shape[1] = 2;  // rows of 2, 4 apart
  const Tensor gain = Make(DType::kF32, {2}, {2, 1}), bias = Make(DType::kF32, {2}, {10, 20});
  ASSERT_TRUE(ops().Norm(stream(), NormKind::kRms, x, gain, nullptr, 0.5f, x).ok());
  const float* host = reinterpret_cast<const float*>(host_ + x.offset);
  EXPECT_FLOAT_EQ(host[0], 3 * 2 / std::sqrt(13.0f));
  EXPECT_FLOAT_EQ(host[1], 4 / std::sqrt(13.0f));
  EXPECT_EQ(host[2], 99);
  EXPECT_EQ(host[4], 0);
  const Tensor z = Make(DType::kF32, {1, 2}, {1, 5}), y = Make(DType::kF32, {1, 2});
  ASSERT_TRUE(ops().Norm(stream(), NormKind::kLayer, z, gain, &bias, 0.0f, y).ok());
  EXPECT_THAT(Read(y), ElementsAre(10 - 2, 20 + 1));
  EXPECT_EQ(ops().Norm(stream(), NormKind::kRms, z, gain, &bias, 0.0f, y).code(), Code::kInvalidArgument);
  EXPECT_EQ(ops().Norm(stream(), static_cast<NormKind>(9), z, gain, nullptr, 0.0f, y).code(), Code::kUnimplemented);
}

TEST_F(HostDenseTest, RopeTurnsPairsAndLeavesTheRest) {
  // Position 1 turns pair 0 by 90 degrees and pair 1 by 180; channel 4 is beyond the pairs.
  const Tensor table = Make(DType::kF32, {2, 2, 2}, {1, 0, 1, 0, 0, 1, -1, 0}), positions = Make(DType::kI32, {1}, {1});
  Tensor x = Make(DType::kF32, {1, 1, 5}, {1, 2, 3, 4, 5});
  ASSERT_TRUE(ops().Rope(stream(), x, positions, table, false).ok());
  EXPECT_THAT(Read(x), ElementsAre(-3, -2, 1, -4, 5));
  x = Make(DType::kF32, {1, 1, 5}, {1, 2, 3, 4, 5});
  ASSERT_TRUE(ops().Rope(stream(), x, positions, table, true).ok());
  EXPECT_THAT(Read(x), ElementsAre(-2, 1, -3, -4, 5));
  const Tensor beyond = Make(DType::kI32, {1}, {2});
  EXPECT_THAT(ops().Rope(stream(), x, beyond, table, true).message(),
              HasSubstr("positions[0] is 2; cos_sin has 2 positions"));
}

TEST_F(HostDenseTest, ActivationsFollowTheirFormulas) {
  const std::vector<float> values = {-3, -0.5f, 0, 1, 2, 40};
  const Tensor x = Make(DType::kF32, {1, 6}, values), y = Make(DType::kF32, {1, 6}), gated = Make(DType::kF32, {1, 3});
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  const auto gelu = [](double v) { return 0.5 * v * std::erfc(-v / std::sqrt(2.0)); };
  const auto gelu_tanh = [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  const std::pair<Activation, std::function<double(double)>> kinds[] = {
      {Activation::kSilu, silu}, {Activation::kGelu, gelu}, {Activation::kGeluTanh, gelu_tanh}};
  for (const auto& [kind, f] : kinds) {
    ASSERT_TRUE(ops().Activate(stream(), kind, x, y).ok());
    std::vector<float> want;
    for (float v : values) want.push_back(static_cast<float>(f(v)));
    EXPECT_THAT(Read(y), Pointwise(FloatNear(1e-5f), want));
  }
  const std::pair<Activation, std::function<double(double)>> gates[] = {
      {Activation::kSiluGated, silu}, {Activation::kGeluGated, gelu}, {Activation::kGeluTanhGated, gelu_tanh}};
  for (const auto& [kind, f] : gates) {
    ASSERT_TRUE(ops().Activate(stream(), kind, x, gated).ok());
    const std::vector<float> want = {static_cast<float>(f(-3)), static_cast<float>(f(-0.5) * 2), 0};
    EXPECT_THAT(Read(gated), Pointwise(FloatNear(1e-5f), want));
  }
  EXPECT_EQ(ops().Activate(stream(), Activation::kSiluGated, x, y).code(), Code::kInvalidArgument);
  EXPECT_EQ(ops().Activate(stream(), static_cast<Activation>(0), x, y).code(), Code::kUnimplemented);
}

TEST_F(HostDenseTest, AddAndGatherRows) {
  const Tensor x = Make(DType::kBF16, {3, 2}, {1, 2, 3, 4, 5, 6}), rows = Make(DType::kI32, {2}, {2, 0});
  const Tensor y = Make(DType::kBF16, {2, 2}), z = Make(DType::kF32, {2, 2}, {10, 20, 30, 40});
  ASSERT_TRUE(ops().GatherRows(stream(), x, rows, y).ok());
  EXPECT_THAT(Read(y), ElementsAre(5, 6, 1, 2));
  ASSERT_TRUE(ops().Add(stream(), y, z).ok());
  EXPECT_THAT(Read(z), ElementsAre(15, 26, 31, 42));
  EXPECT_EQ(ops().Add(stream(), x, z).message(), "dense:0: add: x is [3, 2] and y is [2, 2]; they must be equal");
  const Tensor bad = Make(DType::kI32, {2}, {3, 0});
  EXPECT_THAT(ops().GatherRows(stream(), x, bad, y).message(), HasSubstr("row 3 does not exist; x has 3"));
}

TEST_F(HostDenseTest, WeightsThatCannotBeAreRefusedWithTheReason) {
  const float data[64] = {};
  const auto refusal = [&](const WeightPart& part, int64_t columns) {
    const WeightDesc desc{.columns = columns, .parts = {&part, 1}, .max_tokens = 4};
    const auto weight = ops().PrepareWeight(stream(), desc);
    EXPECT_FALSE(weight.ok());
    return weight.status().message();
  };
  EXPECT_THAT(refusal({.dtype = DType::kQ4_K, .rows = 1, .row_stride_bytes = 144, .data = data}, 100),
              HasSubstr("weights of type q4_K with 100 columns are not supported"));
  EXPECT_THAT(refusal({.dtype = static_cast<DType>(99), .rows = 1, .row_stride_bytes = 144, .data = data}, 256),
              HasSubstr("not supported"));
  EXPECT_THAT(refusal({.dtype = DType::kF32, .rows = 2, .row_stride_bytes = 8, .data = data}, 4),
              HasSubstr("2 rows, 8 bytes apart, of 16 bytes each"));
  EXPECT_THAT(refusal({.dtype = DType::kF32, .rows = 1, .row_stride_bytes = 16, .data = nullptr}, 4),
              HasSubstr("has no data"));
  EXPECT_THAT(refusal({.dtype = DType::kF32, .rows = 1, .row_stride_bytes = 16, .data = data}, int64_t{1} << 62),
              HasSubstr("1 to 2^31 are possible"));
  const WeightPart part{.dtype = DType::kF32, .rows = 2, .row_stride_bytes = 16, .data = data};
  const Support support = ops().SupportsWeight({.columns = 4, .parts = {&part, 1}, .max_tokens = 3});
  EXPECT_EQ(support.level, 1);
  EXPECT_EQ(support.workspace_bytes, 12u);
  EXPECT_EQ(support.resident_bytes, 32u);
}

}  // namespace
}  // namespace octet
