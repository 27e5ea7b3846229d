// GGUF blocks and 16-bit floats against vectors from Python's gguf and numpy (tests/data/make_gguf_blocks.py).
#include "octet/gguf_blocks.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "octet/half.h"

namespace octet {
namespace {

std::string ReadData(const std::string& name) {
  std::ifstream file(std::string(OCTET_TEST_DATA) + "/gguf_blocks/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Golden {
  std::vector<uint8_t> blocks;
  std::vector<float> values;
};

Golden ReadGolden(const std::string& type) {
  const std::string bytes = ReadData(type + ".bin");
  int32_t sizes[2] = {};
  if (bytes.size() >= sizeof sizes) std::memcpy(sizes, bytes.data(), sizeof sizes);
  const size_t block_bytes = static_cast<size_t>(sizes[1]);
  const size_t value_bytes = static_cast<size_t>(sizes[0]) * sizeof(float);
  EXPECT_EQ(bytes.size(), sizeof sizes + block_bytes + value_bytes);
  if (bytes.size() != sizeof sizes + block_bytes + value_bytes) return {};
  Golden golden{std::vector<uint8_t>(block_bytes), std::vector<float>(static_cast<size_t>(sizes[0]))};
  std::memcpy(golden.blocks.data(), bytes.data() + sizeof sizes, block_bytes);
  std::memcpy(golden.values.data(), bytes.data() + sizeof sizes + block_bytes, value_bytes);
  return golden;
}

struct Case {
  const char* name;
  DType type;
};

constexpr Case kCases[] = {
    {"F32", DType::kF32},   {"F16", DType::kF16},   {"BF16", DType::kBF16}, {"Q4_0", DType::kQ4_0},
    {"Q4_1", DType::kQ4_1}, {"Q5_0", DType::kQ5_0}, {"Q5_1", DType::kQ5_1}, {"Q8_0", DType::kQ8_0},
    {"Q4_K", DType::kQ4_K}, {"Q5_K", DType::kQ5_K}, {"Q6_K", DType::kQ6_K},
};

class GgufBlocksTest : public ::testing::TestWithParam<Case> {};

TEST_P(GgufBlocksTest, DequantizesToTheSameBitsAsPython) {
  const Golden golden = ReadGolden(GetParam().name);
  const int64_t elements = static_cast<int64_t>(golden.values.size());
  ASSERT_GT(elements, 0);
  ASSERT_EQ(GgufRowBytes(GetParam().type, elements), static_cast<int64_t>(golden.blocks.size()));
  // One float more than needed, to see a write past the end.
  std::vector<float> out(golden.values.size() + 1, -7.0f);
  ASSERT_TRUE(DequantizeRow(GetParam().type, golden.blocks.data(), elements, out.data()));
  EXPECT_EQ(out.back(), -7.0f);
  for (size_t i = 0; i < golden.values.size(); ++i) {
    ASSERT_EQ(FloatBits(out[i]), FloatBits(golden.values[i])) << "element " << i << ": " << out[i];
  }
}

TEST_P(GgufBlocksTest, ReadsRowsAtAnyAddress) {
  const Golden golden = ReadGolden(GetParam().name);
  const int64_t elements = GgufBlockOf(GetParam().type).elements;
  std::vector<uint8_t> shifted(golden.blocks.size() + 1);
  std::memcpy(shifted.data() + 1, golden.blocks.data(), golden.blocks.size());
  std::vector<float> out(static_cast<size_t>(elements));
  ASSERT_TRUE(DequantizeRow(GetParam().type, shifted.data() + 1, elements, out.data()));
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], golden.values[i]);
}

TEST_P(GgufBlocksTest, RefusesToCutABlock) {
  const int32_t block = GgufBlockOf(GetParam().type).elements;
  std::vector<float> out(static_cast<size_t>(2 * block), -7.0f);
  const std::vector<uint8_t> bytes(1024);
  EXPECT_FALSE(DequantizeRow(GetParam().type, bytes.data(), -block, out.data()));
  if (block > 1) {
    EXPECT_FALSE(DequantizeRow(GetParam().type, bytes.data(), block + 1, out.data()));
    EXPECT_EQ(GgufRowBytes(GetParam().type, block - 1), 0);
  }
  EXPECT_EQ(out[0], -7.0f);
}

INSTANTIATE_TEST_SUITE_P(Types, GgufBlocksTest, ::testing::ValuesIn(kCases),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(GgufBlockSizeTest, OtherTypesAreNoWeightBlocks) {
  float out = 0;
  for (DType type : {DType::kI8, DType::kI32, DType::kI64, DType::kOpaque, static_cast<DType>(99)}) {
    EXPECT_EQ(GgufBlockOf(type).elements, 0);
    EXPECT_FALSE(DequantizeRow(type, &out, 1, &out));
  }
}

// The definition of binary16, in double precision.
double HalfValue(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 0x3ff;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
}

TEST(HalfTest, EveryHalfHasItsValueAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float value = HalfToFloat(half);
    if (std::isnan(HalfValue(half))) {
      ASSERT_TRUE(std::isnan(value)) << i;
      ASSERT_EQ(FloatToHalf(value), half | 0x200) << i;  // the payload stays, the NaN becomes quiet
    } else {
      ASSERT_EQ(static_cast<double>(value), HalfValue(half)) << i;
      ASSERT_EQ(std::signbit(value), i >= 0x8000) << i;
      ASSERT_EQ(FloatToHalf(value), half) << i;
    }
  }
}

TEST(HalfTest, EveryBf16ComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bf16 = static_cast<uint16_t>(i);
    const float value = Bf16ToFloat(bf16);
    ASSERT_EQ(FloatBits(value), i << 16);
    ASSERT_EQ(FloatToBf16(value), std::isnan(value) ? bf16 | 0x40 : bf16) << i;
  }
}

TEST(HalfTest, RoundsToNearestEvenBetweenEveryTwoHalves) {
  for (uint32_t i = 0; i < 0x7c00; ++i) {
    const float low = HalfToFloat(static_cast<uint16_t>(i));
    const float high = i + 1 < 0x7c00 ? HalfToFloat(static_cast<uint16_t>(i + 1)) : 65536.0f;
    const float middle = low + (high - low) / 2;  // exact: half has 11 bits of 24
    ASSERT_EQ(FloatToHalf(middle), i + (i & 1)) << i;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), i) << i;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, INFINITY)), i + 1) << i;
    ASSERT_EQ(FloatToHalf(-middle), 0x8000 | (i + (i & 1))) << i;
  }
}

TEST(HalfTest, RoundsLikeNumpy) {
  struct Record {
    float x;
    uint16_t half, bf16;
  };
  const std::string bytes = ReadData("half.bin");
  int32_t count = 0;
  ASSERT_GE(bytes.size(), sizeof count);
  std::memcpy(&count, bytes.data(), sizeof count);
  ASSERT_EQ(bytes.size(), sizeof count + static_cast<size_t>(count) * sizeof(Record));
  ASSERT_GT(count, 1000);
  for (int32_t i = 0; i < count; ++i) {
    Record record;
    std::memcpy(&record, bytes.data() + sizeof count + static_cast<size_t>(i) * sizeof record, sizeof record);
    EXPECT_EQ(FloatToHalf(record.x), record.half) << record.x;
    EXPECT_EQ(FloatToBf16(record.x), record.bf16) << record.x;
  }
}

TEST(HalfTest, NanStaysNan) {
  for (uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7f80ffffu}) {
    const uint16_t half = FloatToHalf(FloatFromBits(bits));
    const uint16_t bf16 = FloatToBf16(FloatFromBits(bits));
    EXPECT_GT(half & 0x7fff, 0x7c00) << bits;
    EXPECT_GT(bf16 & 0x7fff, 0x7f80) << bits;
    EXPECT_EQ(half >> 15, bits >> 31);
    EXPECT_EQ(bf16 >> 15, bits >> 31);
  }
}

}  // namespace
}  // namespace octet
