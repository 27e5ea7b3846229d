// The reference against numbers worked out by hand or by an independent program, so that it can judge the others.
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/reference/attention.h"
#include "tests/reference/canonical.h"
#include "tests/reference/dense.h"
#include "tests/reference/float_types.h"
#include "tests/reference/gguf.h"
#include "tests/reference/quantize.h"
#include "tests/reference/random.h"

namespace octet::reference {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<int> Codes(const StoredRow& row) {
  std::vector<int> codes;
  for (uint8_t b : row.data) codes.push_back(static_cast<int8_t>(b));
  return codes;
}

CacheSide Int8Side(int head_dim, int rotation = 0) {
  CacheSide side;
  side.data_type = DType::kI8;
  side.scheme = Scheme::kSymmetric;
  side.axis = Axis::kToken;
  side.scale_type = DType::kF32;
  side.head_dim = head_dim;
  side.rotation = rotation;
  return side;
}

TEST(ReferenceFloatTest, RoundsTiesToEvenAndKeepsSubnormalsAndInfinities) {
  EXPECT_EQ(Encode16(DType::kF16, 1.0f), 0x3c00);
  EXPECT_EQ(Encode16(DType::kF16, 1.0f + 0x1p-11f), 0x3c00);      // halfway, down to even
  EXPECT_EQ(Encode16(DType::kF16, 1.0f + 3 * 0x1p-11f), 0x3c02);  // halfway, up to even
  EXPECT_EQ(Encode16(DType::kF16, 65504.0f), 0x7bff);
  EXPECT_EQ(Encode16(DType::kF16, 65520.0f), 0x7c00);
  EXPECT_EQ(Encode16(DType::kF16, -0x1p-24f), 0x8001);
  EXPECT_EQ(Encode16(DType::kF16, 0x1p-25f), 0x0000);
  EXPECT_EQ(Encode16(DType::kBF16, -1.5f), 0xbfc0);
  EXPECT_EQ(Encode16(DType::kBF16, 1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(Encode16(DType::kBF16, 1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(Encode16(DType::kBF16, 3.4e38f), 0x7f80);
  EXPECT_EQ(Encode16(DType::kBF16, kInf), 0x7f80);
  EXPECT_TRUE(std::isnan(Decode16(DType::kF16, Encode16(DType::kF16, kNan))));
}

TEST(ReferenceFloatTest, EveryBitPatternSurvivesTheRoundTrip) {
  for (DType type : {DType::kF16, DType::kBF16}) {
    for (int bits = 0; bits < 0x10000; ++bits) {
      const float x = Decode16(type, static_cast<uint16_t>(bits));
      if (!std::isnan(x)) {
        ASSERT_EQ(Encode16(type, x), bits) << DTypeName(type);
      }
    }
  }
}

TEST(ReferenceHadamardTest, MatchesTheMatrixOfFour) {
  std::vector<float> x = {1, 2, 3, 4};
  Hadamard<float>(x, 4);
  EXPECT_THAT(x, ElementsAre(5, -1, -2, 0));
  std::vector<float> unit(16);
  unit[5] = 1;
  Hadamard<float>(unit, 16);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(unit[static_cast<size_t>(i)], __builtin_popcount(i & 5) % 2 == 0 ? 0.25f : -0.25f);
  }
}

TEST(ReferenceHadamardTest, BlocksAreIndependentAndTheTransformIsItsOwnInverse) {
  std::vector<float> x = {1, 2, 3, 4, 8, 0, 0, 0};
  Hadamard<float>(x, 4);
  EXPECT_THAT(x, ElementsAre(5, -1, -2, 0, 4, 4, 4, 4));
  Hadamard<float>(x, 4);
  EXPECT_THAT(x, ElementsAre(1, 2, 3, 4, 8, 0, 0, 0));
}

TEST(ReferenceQuantizeTest, SymmetricRoundsHalfToEvenAndNeverWritesMinus128) {
  // The largest is 127, so codes are the values themselves, rounded.
  const std::vector<float> x = {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.6f};
  const StoredRow row = EncodeRow(Int8Side(8), x, {}, 0);
  EXPECT_THAT(Codes(row), ElementsAre(127, -127, 0, 2, 2, 0, -2, 127));
  EXPECT_THAT(row.scale, ElementsAre(1.0f));
  EXPECT_THAT(DecodeRow<float>(Int8Side(8), row, {}, 0), ElementsAre(127, -127, 0, 2, 2, 0, -2, 127));
}

TEST(ReferenceQuantizeTest, ZeroTinyAndNonFiniteRows) {
  const std::vector<float> zero(8), tiny(8, 9e-31f), nan = {1, 2, kNan, 4, 5, 6, 7, 8},
                                                     inf = {1, 2, 3, 4, 5, 6, 7, kInf};
  for (const auto& x : {zero, tiny}) {
    const StoredRow row = EncodeRow(Int8Side(8), x, {}, 0);
    EXPECT_EQ(row.scale[0], 0.0f);
    EXPECT_THAT(Codes(row), Each(0));
  }
  for (const auto& x : {nan, inf}) {
    const StoredRow row = EncodeRow(Int8Side(8), x, {}, 0);
    EXPECT_TRUE(std::isnan(row.scale[0]));
    EXPECT_THAT(Codes(row), Each(0));
  }
}

TEST(ReferenceQuantizeTest, GroupsHaveTheirOwnScale) {
  CacheSide side = Int8Side(8);
  side.group = 4;
  const std::vector<float> x = {127, 1, 2, 3, 254, -254, 2, 4};
  const StoredRow row = EncodeRow(side, x, {}, 0);
  EXPECT_THAT(row.scale, ElementsAre(1.0f, 2.0f));
  EXPECT_THAT(Codes(row), ElementsAre(127, 1, 2, 3, 127, -127, 1, 2));
}

TEST(ReferenceQuantizeTest, CodesUseTheRoundedBF16Scale) {
  CacheSide side = Int8Side(8);
  side.scale_type = DType::kBF16;
  // 1/127 = 0.00787402 rounds to bf16 0.00787354 = 129 * 2^-14, so 0.496 takes 62.996 / 62.99 -> 63.
  const std::vector<float> x = {1, 0.496f, 0, 0, 0, 0, 0, -1};
  const StoredRow row = EncodeRow(side, x, {}, 0);
  EXPECT_THAT(row.scale, ElementsAre(129 * 0x1p-14f));
  EXPECT_THAT(Codes(row), ElementsAre(127, 63, 0, 0, 0, 0, 0, -127));
}

TEST(ReferenceQuantizeTest, AsymmetricCentresTheRange) {
  CacheSide side = Int8Side(8);
  side.scheme = Scheme::kAsymmetric;
  side.zero_type = DType::kF32;
  const std::vector<float> x = {0, 254, 127, 128, 0, 0, 0, 100};
  const StoredRow row = EncodeRow(side, x, {}, 0);
  EXPECT_THAT(row.zero, ElementsAre(127.0f));
  EXPECT_THAT(row.scale, ElementsAre(1.0f));
  EXPECT_THAT(Codes(row), ElementsAre(-127, 127, 0, 1, -127, -127, -127, -27));
  EXPECT_THAT(DecodeRow<float>(side, row, {}, 0), ElementsAre(0, 254, 127, 128, 0, 0, 0, 100));
}

TEST(ReferenceQuantizeTest, StaticScalesFollowTheirAxisAndSaturate) {
  CacheSide side = Int8Side(8);
  side.axis = Axis::kChannel;
  StaticQuant statics;
  for (int i = 0; i < 16; ++i) statics.scale.push_back(i < 8 ? 100.0f : static_cast<float>(1 << (i - 8)));
  const std::vector<float> x = {1, 2, 4, 8, kInf, -kInf, kNan, 128 * 1000};
  EXPECT_THAT(Codes(EncodeRow(side, x, statics, 1)), ElementsAre(1, 1, 1, 1, 127, -127, 0, 127));
  side.axis = Axis::kHead;
  EXPECT_THAT(Codes(EncodeRow(side, x, {{7.0f, 0.5f}, {}}, 1)), ElementsAre(2, 4, 8, 16, 127, -127, 0, 127));
  side.axis = Axis::kTensor;
  side.scheme = Scheme::kAsymmetric;
  EXPECT_THAT(Codes(EncodeRow(side, x, {{2.0f}, {4.0f}}, 1)), ElementsAre(-2, -1, 0, 2, 127, -127, 0, 127));
}

TEST(ReferenceQuantizeTest, RotationComesBeforeTheScale) {
  const std::vector<float> x = {8, 0, 0, 0, 0, 0, 0, 0};
  CacheSide side = Int8Side(8, 4);
  const StoredRow row = EncodeRow(side, x, {}, 0);
  EXPECT_THAT(Codes(row), ElementsAre(127, 127, 127, 127, 0, 0, 0, 0));
  EXPECT_EQ(row.scale[0], 4.0f / 127.0f);
  const auto back = DecodeRow<double>(side, row, {}, 0);
  EXPECT_NEAR(back[0], 8, 1e-6);
  EXPECT_EQ(back[1], 0);
}

TEST(ReferenceCanonicalTest, RunsAreAlignedAndInOrder) {
  KvLayout layout;
  layout.page_tokens = 16;
  layout.kv_heads = 2;
  layout.k = Int8Side(72);
  layout.v = Int8Side(8);
  layout.v.group = 4;
  const PieceMap map = MapPiece(layout);
  EXPECT_EQ(map.codes[kSideK].offset, 0);
  EXPECT_EQ(map.codes[kSideV].offset, 16 * 72);            // 1152 is a multiple of 128
  EXPECT_EQ(map.scales[kSideK].offset, 1152 + 128);        // 16 * 8 codes of V
  EXPECT_EQ(map.scales[kSideV].offset, 1152 + 128 + 128);  // 64 bytes of scales, padded
  EXPECT_EQ(map.bytes, 1152 + 128 + 128 + 128);
  EXPECT_EQ(CanonicalPageBytes(layout), 2 * map.bytes);

  std::vector<uint8_t> page(static_cast<size_t>(CanonicalPageBytes(layout)), 0xee);
  StoredRow row;
  row.data = {1, 2, 3, 4, 5, 6, 7, 8};
  row.scale = {1.0f, 2.0f};
  PutRow(layout, kSideV, page, 1, 3, row);
  EXPECT_EQ(page[static_cast<size_t>(map.bytes + 1152 + 3 * 8)], 1);
  EXPECT_EQ(page[static_cast<size_t>(map.bytes + 1408 + 3 * 8 + 7)], 0x40);  // the top byte of 2.0f
  EXPECT_EQ(std::count(page.begin(), page.end(), 0xee), CanonicalPageBytes(layout) - 16);
  const StoredRow back = GetRow(layout, kSideV, page, 1, 3);
  EXPECT_EQ(back.data, row.data);
  EXPECT_EQ(back.scale, row.scale);
}

// Two tokens of eight channels, one head: the second query sees scores ln 3 and 0.
struct TwoTokens {
  AttentionSpec spec;
  AttentionInput in;
  TwoTokens() {
    spec.k_dim = spec.v_dim = 8;
    in.queries = in.kv_len = 2;
    in.q.assign(16, 0.0);
    in.k.assign(16, 0.0);
    in.v.assign(16, 0.0);
    in.q[0] = in.q[8] = 2.0;
    in.k[0] = std::log(3.0);
    in.v[0] = 4.0;
    in.v[8 + 1] = 8.0;
    spec.scale = 0.5;
  }
};

TEST(ReferenceAttentionTest, TwoTokensByHand) {
  TwoTokens t;
  const AttentionOutput y = Attend(t.spec, t.in);
  EXPECT_NEAR(y.out[0], 4.0, 1e-12);
  EXPECT_NEAR(y.lse[0], std::log(3.0), 1e-12);
  EXPECT_NEAR(y.out[8], 3.0, 1e-12);  // weights 3/4 and 1/4
  EXPECT_NEAR(y.out[8 + 1], 2.0, 1e-12);
  EXPECT_NEAR(y.lse[1], std::log(4.0), 1e-12);
}

TEST(ReferenceAttentionTest, NonCausalMaskAndWindowChooseTheKeys) {
  TwoTokens t;
  t.spec.causal = false;
  EXPECT_NEAR(Attend(t.spec, t.in).out[1], 2.0, 1e-12);  // the first query sees the second key
  t.spec.causal = true;
  t.in.mask = {1, 1, 0, 1};
  const AttentionOutput masked = Attend(t.spec, t.in);
  EXPECT_NEAR(masked.out[1], 2.0, 1e-12);
  EXPECT_NEAR(masked.out[8], 0.0, 1e-12);
  EXPECT_NEAR(masked.out[9], 8.0, 1e-12);
  t.in.mask.clear();
  t.spec.window = 1;
  EXPECT_NEAR(Attend(t.spec, t.in).out[9], 8.0, 1e-12);
  t.spec.window = 2;
  EXPECT_NEAR(Attend(t.spec, t.in).out[9], 2.0, 1e-12);
}

TEST(ReferenceAttentionTest, SoftcapAlibiAndSinks) {
  TwoTokens t;
  t.spec.softcap = 1.0;
  const double weight = std::exp(std::tanh(std::log(3.0)));
  EXPECT_NEAR(Attend(t.spec, t.in).out[8], 4 * weight / (weight + 1), 1e-12);
  t.spec.softcap = 0.0;
  t.spec.alibi_slopes = {static_cast<float>(std::log(3.0))};  // takes ln 3 from the key one back: both count the same
  EXPECT_NEAR(Attend(t.spec, t.in).out[8], 2.0, 1e-6);
  t.spec.alibi_slopes.clear();
  t.spec.sinks = {static_cast<float>(std::log(4.0))};
  const AttentionOutput y = Attend(t.spec, t.in);
  EXPECT_NEAR(y.out[8], 4.0 * 3 / 8, 1e-6);
  EXPECT_NEAR(y.lse[1], std::log(8.0), 1e-6);
}

TEST(ReferenceAttentionTest, NoVisibleKeyGivesZerosAndNanSpreadsToItsRow) {
  TwoTokens t;
  t.in.mask = {0, 0, 1, 1};
  AttentionOutput y = Attend(t.spec, t.in);
  EXPECT_EQ(y.out[0], 0.0);
  EXPECT_EQ(y.lse[0], -kInf);
  t.in.mask.clear();
  t.in.k[8] = kNan;
  y = Attend(t.spec, t.in);
  EXPECT_FALSE(std::isnan(y.out[0]));
  for (int c = 0; c < 8; ++c) EXPECT_TRUE(std::isnan(y.out[static_cast<size_t>(8 + c)]));
}

TEST(ReferenceAttentionTest, GroupedHeadsAndDroppedPages) {
  AttentionSpec spec;
  spec.q_heads = 4;
  spec.kv_heads = 2;
  spec.k_dim = spec.v_dim = 1;
  AttentionInput in;
  in.queries = 1;
  in.kv_len = 5;
  in.kv_begin = 3;
  in.q.assign(4, 0.0);
  in.k.assign(4, 0.0);
  in.v = {1, 10, 3, 30};  // [2 keys][2 heads]
  EXPECT_THAT(Attend(spec, in).out, ElementsAre(2, 2, 20, 20));
  spec.window = 1;
  EXPECT_THAT(Attend(spec, in).out, ElementsAre(3, 3, 30, 30));
}

TEST(ReferenceGgufTest, EveryTypeMatchesAnIndependentReader) {
  // Blocks of bytes 37 i + 11 with d = 0.5 and, where there is one, m or dmin = -0.25; values by gguf-py 0.19.0:
  // elements 0, 1, 15, 16, 31 (blocks of 32) or 0, 1, 31, 32, 100, 130, 177, 255, and the sum of (index + 1) * element.
  struct Case {
    DType type;
    std::vector<double> elements;
    double weighted_sum;
  };
  const std::vector<Case> cases = {
      {DType::kQ4_0, {-1.5, 1.0, -4.0, -1.5, 0.0}, -259.0},
      {DType::kQ4_1, {7.25, 1.75, 4.75, 4.25, 5.75}, 1859.5},
      {DType::kQ5_0, {4.5, -1.0, -6.0, 7.0, 0.5}, 56.0},
      {DType::kQ5_1, {9.25, 11.75, 14.75, 9.25, 2.25}, 3818.5},
      {DType::kQ8_0, {42.5, 61.0, -64.0, -45.5, -24.0}, -4040.0},
      {DType::kQ4_K, {183.25, 12.75, 105.75, 16.0, 64.5, 100.5, 37.5, 41.75}, 4262132.0},
      {DType::kQ5_K, {431.25, 12.75, 105.75, 68.0, 134.5, 100.5, 337.5, 71.75}, 8489436.0},
      {DType::kQ6_K, {-715.5, 848.0, -48.0, 115.5, 1261.5, 71.5, -1568.0, -30.0}, 392210.0},
  };
  for (const Case& c : cases) {
    const BlockShape shape = BlockOf(c.type);
    std::vector<uint8_t> block;
    for (int i = 0; i < shape.bytes; ++i) block.push_back(static_cast<uint8_t>(37 * i + 11));
    StoreFloat(DType::kF16, 0.5f, &block[c.type == DType::kQ6_K ? 208 : 0]);
    const bool has_minimum =
        c.type == DType::kQ4_1 || c.type == DType::kQ5_1 || c.type == DType::kQ4_K || c.type == DType::kQ5_K;
    if (has_minimum) StoreFloat(DType::kF16, -0.25f, &block[2]);
    const std::vector<int> at =
        shape.elements == 32 ? std::vector<int>{0, 1, 15, 16, 31} : std::vector<int>{0, 1, 31, 32, 100, 130, 177, 255};
    for (size_t i = 0; i < at.size(); ++i) {
      EXPECT_EQ(WeightElement(c.type, block.data(), at[i]), c.elements[i]) << DTypeName(c.type) << " " << at[i];
    }
    double sum = 0;
    for (int i = 0; i < shape.elements; ++i) sum += (i + 1) * WeightElement(c.type, block.data(), i);
    EXPECT_EQ(sum, c.weighted_sum) << DTypeName(c.type);
  }
}

TEST(ReferenceGgufTest, RandomRowsHaveTheAskedSize) {
  Random random(1);
  for (int type : {1, 2, 3, 16, 17, 18, 19, 20, 24, 25, 26}) {
    const auto row = RandomWeightRow(static_cast<DType>(type), 512, 0.1, random);
    double squares = 0;
    for (int i = 0; i < 512; ++i) squares += std::pow(WeightElement(static_cast<DType>(type), row.data(), i), 2);
    EXPECT_GT(std::sqrt(squares / 512), 0.01) << type;
    EXPECT_LT(std::sqrt(squares / 512), 0.5) << type;
  }
}

TEST(ReferenceDenseTest, LinearStacksPartsAndScalesRows) {
  const std::vector<float> a = {1, 2, 3, 4}, b = {5, 6}, row_scale = {1, 10};
  const std::vector<WeightPart> parts = {{DType::kF32, 2, 8, a.data(), row_scale.data()},
                                         {DType::kF32, 1, 8, b.data(), nullptr}};
  WeightDesc desc;
  desc.columns = 2;
  desc.parts = parts;
  const Vector w = WeightMatrix(desc);
  EXPECT_THAT(w, ElementsAre(1, 2, 30, 40, 5, 6));
  const Sums y = Linear({1, -1}, w, 2, {100, 0, 0}, {0, 0, 7});
  EXPECT_THAT(y.value, ElementsAre(99, -10, 6));
  EXPECT_THAT(y.magnitude, ElementsAre(103, 70, 18));
}

TEST(ReferenceDenseTest, Norms) {
  EXPECT_THAT(Norm(NormKind::kRms, {3, 4, 0, 0}, {1, 1, 1, 2}, {}, 0.0).value,
              ElementsAre(DoubleEq(1.2), DoubleEq(1.6), 0, 0));
  EXPECT_THAT(Norm(NormKind::kLayer, {1, 3}, {1, 10}, {0, 5}, 0.0).value, ElementsAre(-1, 15));
  EXPECT_THAT(Norm(NormKind::kRms, {2, 2}, {1, 1}, {}, 12.0).value, ElementsAre(0.5, 0.5));
}

TEST(ReferenceDenseTest, RopeTurnsPairsOfBothOrders) {
  const std::vector<float> quarter_turn_at_1 = {1, 0, 1, 0, 0, 1, 0, 1};  // [2 positions][2 pairs][cos, sin]
  const Vector x = {1, 2, 3, 4, 5};
  EXPECT_THAT(Rope(x, 1, 5, {1}, quarter_turn_at_1, 2, false).value, ElementsAre(-3, -4, 1, 2, 5));
  EXPECT_THAT(Rope(x, 1, 5, {1}, quarter_turn_at_1, 2, true).value, ElementsAre(-2, 1, -4, 3, 5));
  EXPECT_THAT(Rope(x, 1, 5, {0}, quarter_turn_at_1, 2, true).value, ElementsAre(1, 2, 3, 4, 5));
}

TEST(ReferenceDenseTest, Activations) {
  EXPECT_NEAR(Activate(Activation::kSilu, {1}, 1).value[0], 0.7310585786300049, 1e-15);
  EXPECT_NEAR(Activate(Activation::kGelu, {1}, 1).value[0], 0.8413447460685429, 1e-15);
  EXPECT_NEAR(Activate(Activation::kGeluTanh, {1}, 1).value[0], 0.8411919906082768, 1e-12);
  EXPECT_THAT(Activate(Activation::kSiluGated, {0, 1000, 5, 3}, 4).value, ElementsAre(0, 3000));
}

}  // namespace
}  // namespace octet::reference
