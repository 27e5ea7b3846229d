// Weights, linear layers, embeddings and the elementwise operations of the CPU backend, through its C table, against
// double precision; and the choice of the instruction set.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cpu/onednn_linear.h"
#include "gmock/gmock.h"
#include "octet/gguf_blocks.h"
#include "tests/unit/cpu_rig.h"

namespace octet {
namespace {

using testing::Error;
using testing::RandomFloats;
using testing::Rig;

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                            DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// Random bits with scales of ordinary size; the codes of a row all the same, at the ends of their range, where extreme.
std::vector<uint8_t> RandomRows(DType type, int64_t rows, int64_t columns, uint32_t seed, bool extreme = false) {
  std::mt19937 random(seed);
  const GgufBlock block = GgufBlockOf(type);
  const int64_t row_bytes = GgufRowBytes(type, columns);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * row_bytes));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  std::normal_distribution<float> normal(0.0f, 0.05f);
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block.bytes)) {
    const auto half = [&](size_t offset) {
      const uint16_t bits = FloatToHalf(normal(random) / (block.elements == 256 ? 16.0f : 1.0f));
      std::memcpy(&bytes[at + offset], &bits, 2);
    };
    switch (type) {
      case DType::kF32: {
        const float x = normal(random);
        std::memcpy(&bytes[at], &x, 4);
        break;
      }
      case DType::kBF16: {
        const uint16_t bits = FloatToBf16(normal(random));
        std::memcpy(&bytes[at], &bits, 2);
        break;
      }
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K:
        half(0);
        half(2);
        break;
      case DType::kQ6_K:
        half(208);
        break;
      default:
        half(0);
    }
    if (!extreme) continue;
    // Bytes from the first of the codes on; those of Q6_K are followed by its scales.
    const size_t begin = type == DType::kQ6_K                           ? 0
                         : type == DType::kQ4_K || type == DType::kQ5_K ? 16
                         : type == DType::kQ4_1 || type == DType::kQ5_1 ? 4
                                                                        : 2;
    const size_t end = type == DType::kQ6_K ? 192 : static_cast<size_t>(block.bytes);
    constexpr uint8_t kCodes[] = {0x80, 0xff, 0x7f, 0x00};
    const uint8_t code = kCodes[at / static_cast<size_t>(row_bytes) % 4];
    std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(at + begin),
              bytes.begin() + static_cast<std::ptrdiff_t>(at + end), code);
  }
  return bytes;
}

struct Part {
  DType type;
  int64_t rows;
  bool scaled = false, extreme = false;
};

struct Matrix {
  Matrix(Rig& rig_in, std::vector<Part> parts_in, int64_t columns_in, int max_tokens, bool exact = true,
         int32_t x_type = OCTET_F32)
      : rig(rig_in), parts(std::move(parts_in)), columns(columns_in) {
    desc.struct_size = sizeof desc;
    desc.num_parts = static_cast<int32_t>(parts.size());
    desc.columns = columns;
    desc.use = OCTET_WEIGHT_LINEAR | OCTET_WEIGHT_EMBED;
    if (exact) desc.use |= OCTET_WEIGHT_EXACT;
    desc.max_tokens = max_tokens;
    desc.x_type = x_type;
    desc.y_type = OCTET_F32;
    stored.resize(parts.size());
    scales.resize(parts.size());
    c_parts.resize(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      stored[i] = RandomRows(parts[i].type, parts[i].rows, columns, static_cast<uint32_t>(i + 1), parts[i].extreme);
      c_parts[i].struct_size = sizeof(octet_weight_part);
      c_parts[i].dtype = static_cast<octet_dtype>(parts[i].type);
      c_parts[i].rows = parts[i].rows;
      c_parts[i].row_stride_bytes = GgufRowBytes(parts[i].type, columns);
      c_parts[i].data = stored[i].data();
      if (parts[i].scaled) {
        scales[i] = RandomFloats(static_cast<size_t>(parts[i].rows), 3);
        c_parts[i].row_scale = scales[i].data();
      }
      pointers.push_back(&c_parts[i]);
      for (int64_t r = 0; r < parts[i].rows; ++r) {
        std::vector<float> row(static_cast<size_t>(columns));
        EXPECT_TRUE(
            DequantizeRow(parts[i].type, stored[i].data() + r * c_parts[i].row_stride_bytes, columns, row.data()));
        for (float x : row) {
          dense.push_back(x);
          scale.push_back(parts[i].scaled ? scales[i][static_cast<size_t>(r)] : 1.0f);
        }
      }
      rows += parts[i].rows;
    }
    desc.parts = pointers.data();
    support.struct_size = sizeof support;
    Error error;
    EXPECT_EQ(rig.table->dense->supports_weight(rig.device, &desc, &support, &error), OCTET_OK) << error.message;
    EXPECT_EQ(support.level, x_type == OCTET_F32 ? 2 : 1) << support.reason;
    EXPECT_EQ(rig.table->dense->prepare_weight(rig.stream, &desc, &weight, &error), OCTET_OK) << error.message;
    for (auto& bytes : stored) bytes.assign(bytes.size(), 0xff);  // the backend keeps its own copy
  }
  ~Matrix() { rig.table->dense->release_weight(weight); }

  std::vector<float> Linear(const octet_tensor& x, const octet_tensor* bias = nullptr,
                            const octet_tensor* gain = nullptr, const octet_tensor* residual = nullptr) {
    const octet_tensor y = rig.New({x.shape[0], rows});
    octet_linear_args a{};
    a.struct_size = sizeof a;
    a.norm_eps = 1e-5f;
    a.x = &x;
    a.y = &y;
    a.bias = bias;
    a.norm_gain = gain;
    a.residual = residual;
    a.w = weight;
    a.workspace = rig.Alloc(support.workspace_bytes + 4);
    a.workspace_offset = 4;
    Error error;
    EXPECT_EQ(rig.table->dense->linear(rig.stream, &a, &error), OCTET_OK) << error.message;
    return rig.Get(y);
  }

  Rig& rig;
  std::vector<Part> parts;
  int64_t columns, rows = 0;
  std::vector<std::vector<uint8_t>> stored;
  std::vector<std::vector<float>> scales;
  std::vector<octet_weight_part> c_parts;
  std::vector<const octet_weight_part*> pointers;
  std::vector<float> dense, scale;  // [rows][columns]
  octet_weight_desc desc{};
  octet_support support{};
  octet_weight* weight = nullptr;
};

// |y - x W| <= bound * sum |x w|; with `block` columns instead of one, of the block's largest |x| times |w|.
void ExpectProduct(const Matrix& m, const std::vector<float>& x, const std::vector<float>& y, double bound = 1e-6,
                   size_t block = 1) {
  for (size_t t = 0; t < x.size() / static_cast<size_t>(m.columns); ++t) {
    for (size_t r = 0; r < static_cast<size_t>(m.rows); ++r) {
      double sum = 0, magnitude = 0;
      float largest = 0;
      for (size_t c = 0; c < static_cast<size_t>(m.columns); ++c) {
        const size_t at = r * static_cast<size_t>(m.columns) + c;
        const double term =
            double{x[t * static_cast<size_t>(m.columns) + c]} * double{m.dense[at]} * double{m.scale[at]};
        sum += term;
        if (c % block == 0) {
          largest = 0;
          for (size_t i = c; i < c + block; ++i) {
            largest = std::max(largest, std::fabs(x[t * static_cast<size_t>(m.columns) + i]));
          }
        }
        magnitude += double{largest} * std::abs(double{m.dense[at]} * double{m.scale[at]});
      }
      ASSERT_NEAR(y[t * static_cast<size_t>(m.rows) + r], sum, bound * magnitude) << "token " << t << " row " << r;
    }
  }
}

// y = m x has the same bytes for the first tokens when they are the only ones.
void ExpectSameRowsAlone(Matrix& m, const octet_tensor& x, const std::vector<float>& y,
                         std::initializer_list<int64_t> counts) {
  for (const int64_t tokens : counts) {
    octet_tensor some = x;
    some.shape[0] = tokens;
    const std::vector<float> few = m.Linear(some);
    EXPECT_EQ(std::memcmp(few.data(), y.data(), few.size() * sizeof(float)), 0) << tokens << " tokens";
  }
}

TEST(CpuDenseTest, LinearOfEveryTypeMatchesDoubleAndDoesNotDependOnTheOtherTokens) {
  for (const char* isa : {"isa=v2", "isa=v3", "isa=avxvnni", "isa=v4", "isa=vnni", "isa=amx"}) {
    const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(2), nullptr);
    octet_device* probe = nullptr;
    if (table->device->open(0, isa, &probe, nullptr) != OCTET_OK) continue;
    table->device->close(probe);
    for (DType type : kTypes) {
      SCOPED_TRACE(std::string(isa) + " " + DTypeName(type));
      const int64_t columns = GgufBlockOf(type).elements == 1 ? 299 : 512;
      Rig rig(2, isa);
      Matrix m(rig, {{type, 45}}, columns, 245);
      const std::vector<float> x = RandomFloats(static_cast<size_t>(245 * columns), 8);
      const octet_tensor all = rig.Put(x, {245, columns});
      const std::vector<float> y = m.Linear(all);
      ExpectSameRowsAlone(m, all, y, {1, 2, 3, 4, 5, 13});
      ASSERT_NO_FATAL_FAILURE(ExpectProduct(m, {x.begin(), x.begin() + 5 * columns}, y));
    }
  }
}

// Fast weights round x and w to bf16 where there are kernels for it, which costs 2^-9 each at most.
TEST(CpuDenseTest, FastLinearStaysNearAndDoesNotDependOnTheOtherTokens) {
  for (DType type : kTypes) {
    SCOPED_TRACE(DTypeName(type));
    const int64_t columns =
        GgufBlockOf(type).elements == 1 ? 1299 : 768;  // more than a panel of the kernels, and no whole steps
    Rig rig(2);
    Matrix m(rig, {{type, 45}, {type, 40, true}}, columns, 261, false);
    const std::vector<float> x = RandomFloats(static_cast<size_t>(261 * columns), 9);
    const octet_tensor all = rig.Put(x, {261, columns});
    const std::vector<float> y = m.Linear(all);
    ExpectSameRowsAlone(m, all, y, {9, 15, 16, 17, 33, 256});
    ASSERT_NO_FATAL_FAILURE(ExpectProduct(m, {x.begin(), x.begin() + 33 * columns}, y, 0x1p-7));
    ASSERT_NO_FATAL_FAILURE(ExpectProduct(m, {x.end() - columns, x.end()}, {y.end() - m.rows, y.end()}, 0x1p-7));
  }
}

// More tokens than one item of a kernel takes, and rows that fill its tiles: sums may go straight to y.
TEST(CpuDenseTest, LongPromptsStayNearAndDoNotDependOnTheOtherTokens) {
  Rig rig(2);
  constexpr int64_t kTokens = 545, kColumns = 64;
  Matrix m(rig, {{DType::kQ8_0, 64}}, kColumns, kTokens, false);
  const std::vector<float> x = RandomFloats(kTokens * kColumns, 11);
  const octet_tensor all = rig.Put(x, {kTokens, kColumns});
  const std::vector<float> y = m.Linear(all);
  ExpectSameRowsAlone(m, all, y, {9, 32, 512, 544});
  ASSERT_NO_FATAL_FAILURE(ExpectProduct(m, x, y, 0x1p-7));
}

// The kernels of this processor that multiply codes as integers.
std::vector<std::string> IntegerKernels() {
  std::vector<std::string> kernels;
  const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(2), nullptr);
  for (const char* isa : {"isa=v3", "isa=avxvnni", "isa=v4", "isa=vnni", "isa=amx"}) {
    octet_device* probe = nullptr;
    if (table->device->open(0, isa, &probe, nullptr) != OCTET_OK) continue;
    table->device->close(probe);
    kernels.emplace_back(isa);
  }
  return kernels;
}

// Up to eight tokens of fast weights are rounded to 16 bits by block of 32 where there are kernels for integers.
TEST(CpuDenseTest, FewTokensInIntegersAreNearDoubleAndAlone) {
  for (DType type : kTypes) {
    if (GgufBlockOf(type).elements == 1) continue;
    std::vector<float> first;
    for (const std::string& isa : IntegerKernels()) {
      SCOPED_TRACE(isa + " " + DTypeName(type));
      constexpr int64_t kColumns = 768;
      Rig rig(2, isa.c_str());
      Matrix m(rig, {{type, 45}, {DType::kBF16, 20}, {type, 40, true}}, kColumns, 8, false);
      EXPECT_THAT(m.support.kernel, ::testing::StartsWith("linear int8"));
      std::vector<float> x = RandomFloats(8 * kColumns, 10);
      x[kColumns + 40] = 1e4f;                                                   // one far from its block
      std::fill(x.begin() + 2 * kColumns, x.begin() + 2 * kColumns + 64, 0.0f);  // blocks of nothing
      for (int64_t i = 2 * kColumns + 64; i < 2 * kColumns + 96; ++i) x[static_cast<size_t>(i)] *= 1e-33f;
      const octet_tensor all = rig.Put(x, {8, kColumns});
      const std::vector<float> y = m.Linear(all);
      ASSERT_NO_FATAL_FAILURE(ExpectProduct(m, x, y, 1.02 / 65024, 32));
      if (first.empty()) first = y;
      EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0)
          << "other bytes than the first kernel";
      ExpectSameRowsAlone(m, all, y, {1, 2, 3, 4, 5, 6, 7});
      for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        std::vector<float> hostile = x;
        hostile[7 * kColumns + 100] = bad;
        const std::vector<float> got = m.Linear(rig.Put(hostile, {8, kColumns}));
        const size_t before = static_cast<size_t>(7 * m.rows);
        EXPECT_EQ(std::memcmp(got.data(), y.data(), before * sizeof(float)), 0);
        for (size_t i = before; i < got.size(); ++i) ASSERT_FALSE(std::isfinite(got[i])) << i - before;
      }
    }
  }
}

// Where sums of products could pass 16 bits: every code of a row the same, at an end of its range or beside it, and x
// of the largest numbers that each plane holds, of one sign and of both.
TEST(CpuDenseTest, IntegersHoldCodesAndXAtTheirExtremes) {
  constexpr int64_t kColumns = 512;
  constexpr float kTop = 1.0f, kLow = 32384.0f / 32512.0f;  // 127 and 0, 127 and -128 in planes of 8 bits
  std::vector<float> x(8 * kColumns);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t token = i / kColumns, column = i % kColumns;
    const float size = column % 32 == 0 || token % 2 == 0 ? kTop : kLow;
    const bool negative =
        token / 2 == 1 || (token / 2 == 2 && column % 2 == 1) || (token / 2 == 3 && column / 2 % 2 == 1);
    x[i] = negative ? -size : size;
  }
  for (DType type : kTypes) {
    if (GgufBlockOf(type).elements == 1) continue;
    for (const std::string& isa : IntegerKernels()) {
      SCOPED_TRACE(isa + " " + DTypeName(type));
      Rig rig(1, isa.c_str());
      Matrix m(rig, {{type, 32, false, true}}, kColumns, 8, false);
      const octet_tensor all = rig.Put(x, {8, kColumns});
      const std::vector<float> y = m.Linear(all);
      ASSERT_NO_FATAL_FAILURE(ExpectProduct(m, x, y, 1.02 / 65024, 32));
      ExpectSameRowsAlone(m, all, y, {1, 2, 4, 5});
    }
  }
}

TEST(CpuDenseTest, IntegersTakeXInBf16AsItIs) {
  constexpr int64_t kColumns = 256;
  std::vector<uint16_t> half;
  std::vector<float> x;
  for (const float value : RandomFloats(8 * kColumns, 12)) {
    half.push_back(FloatToBf16(value));
    x.push_back(Bf16ToFloat(half.back()));
  }
  for (const std::string& isa : IntegerKernels()) {
    SCOPED_TRACE(isa);
    Rig rig(2, isa.c_str());
    Matrix wide(rig, {{DType::kQ4_0, 33}, {DType::kQ6_K, 7}}, kColumns, 8, false);
    Matrix narrow(rig, {{DType::kQ4_0, 33}, {DType::kQ6_K, 7}}, kColumns, 8, false, OCTET_BF16);
    for (const int64_t tokens : {1, 3, 8}) {
      octet_tensor x_wide = rig.Put(x, {8, kColumns}), x_narrow = rig.Put(DType::kBF16, half, {8, kColumns});
      x_wide.shape[0] = x_narrow.shape[0] = tokens;
      const std::vector<float> y = narrow.Linear(x_narrow);
      ASSERT_NO_FATAL_FAILURE(ExpectProduct(narrow, {x.begin(), x.begin() + tokens * kColumns}, y, 1.02 / 65024, 32));
      EXPECT_EQ(y, wide.Linear(x_wide)) << tokens << " tokens";
    }
  }
}

TEST(CpuDenseTest, FastWeightsUseAmxWhereItIs) {
  Error error;
  const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(2), &error);
  octet_device* probe = nullptr;
  if (table->device->open(0, "isa=amx", &probe, &error) == OCTET_UNAVAILABLE) GTEST_SKIP() << error.message;
  table->device->close(probe);
  Rig rig(2, "isa=amx");
  EXPECT_THAT(Matrix(rig, {{DType::kQ4_0, 16}}, 64, 8, false).support.kernel,
              ::testing::StartsWith("linear int8 and bf16 "));
  EXPECT_THAT(Matrix(rig, {{DType::kQ4_0, 16}}, 64, 8, true).support.kernel, ::testing::StartsWith("linear f32 "));
}

// Why a device cannot be opened so; empty: it can.
std::string WhyNot(const std::string& options) {
  Error error;
  const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(2), &error);
  octet_device* probe = nullptr;
  const octet_code code = table->device->open(0, options.c_str(), &probe, &error);
  if (code == OCTET_OK) {
    table->device->close(probe);
    return "";
  }
  EXPECT_EQ(code, OCTET_UNAVAILABLE) << error.message;
  return error.message;
}

struct OneDnnWay {
  const char* prompts;
  double bound;  // of ExpectProduct; 0: ExpectProductIn8Bits
};
constexpr OneDnnWay kOneDnn[] = {
    {"prompts=onednn-f32", 1e-6}, {"prompts=onednn-bf16", 0x1p-7}, {"prompts=onednn-u8s8", 0}};

// w rounded to 1/127 of its row's largest element, or of the largest in a panel, which is at most that; x to 1/127 of
// half of that.
void ExpectProductIn8Bits(const Matrix& m, const std::vector<float>& x, const std::vector<float>& y) {
  const auto columns = static_cast<size_t>(m.columns), rows = static_cast<size_t>(m.rows);
  for (size_t t = 0; t < x.size() / columns; ++t) {
    for (size_t r = 0; r < rows; ++r) {
      double sum = 0, x_sum = 0, w_sum = 0, x_top = 0, w_top = 0;
      for (size_t c = 0; c < columns; ++c) {
        const double a = double{x[t * columns + c]},
                     w = double{m.dense[r * columns + c]} * double{m.scale[r * columns + c]};
        sum += a * w;
        x_sum += std::abs(a);
        w_sum += std::abs(w);
        x_top = std::max(x_top, std::abs(a));
        w_top = std::max(w_top, std::abs(w));
      }
      ASSERT_NEAR(y[t * rows + r], sum, 1.02 / 254 * (x_top / 254 * w_sum + w_top * x_sum))
          << "token " << t << " row " << r;
    }
  }
}

void ExpectOneDnn(const OneDnnWay& way, const Matrix& m, const std::vector<float>& x, const std::vector<float>& y) {
  if (way.bound == 0) {
    ExpectProductIn8Bits(m, x, y);
  } else {
    ExpectProduct(m, x, y, way.bound);
  }
}

TEST(CpuOneDnnTest, LinearOfEveryTypeStaysNearAndDoesNotDependOnTheOtherTokens) {
  bool any = false;
  for (const OneDnnWay& way : kOneDnn) {
    const std::string reason = WhyNot(way.prompts);
    if (!reason.empty()) continue;
    any = true;
    for (DType type : kTypes) {
      SCOPED_TRACE(std::string(way.prompts) + " " + DTypeName(type));
      const int64_t columns = GgufBlockOf(type).elements == 1 ? 1299 : 768;  // more than a panel, and no whole steps
      constexpr int64_t kTokens = 161;
      Rig rig(2, way.prompts);
      Matrix m(rig, {{type, 45}, {type, 40, true}}, columns, kTokens, false);
      EXPECT_THAT(m.support.kernel, ::testing::HasSubstr(", oneDNN "));
      const std::vector<float> x = RandomFloats(static_cast<size_t>(kTokens * columns), 9);
      const octet_tensor all = rig.Put(x, {kTokens, columns});
      const std::vector<float> y = m.Linear(all);
      ExpectSameRowsAlone(m, all, y, {9, 31, 32, 33, 128, 160});
      ASSERT_NO_FATAL_FAILURE(ExpectOneDnn(way, m, {x.begin(), x.begin() + 33 * columns}, y));
      ASSERT_NO_FATAL_FAILURE(ExpectOneDnn(way, m, {x.end() - columns, x.end()}, {y.end() - m.rows, y.end()}));
    }
  }
  if (!any) GTEST_SKIP() << WhyNot("prompts=onednn");
}

// With every set of kernels: they expand the panels.
TEST(CpuOneDnnTest, EverySetOfKernelsExpandsPanels) {
  if (const std::string reason = WhyNot("prompts=onednn"); !reason.empty()) GTEST_SKIP() << reason;
  for (const char* isa : {"v2", "v3", "v4", "vnni", "amx"}) {
    for (const OneDnnWay& way : kOneDnn) {
      const std::string options = "isa=" + std::string(isa) + "," + way.prompts;
      if (!WhyNot(options).empty()) continue;
      SCOPED_TRACE(options);
      Rig rig(2, options.c_str());
      Matrix m(rig, {{DType::kQ4_1, 70}, {DType::kF16, 30}}, 96, 40, false);
      const std::vector<float> x = RandomFloats(40 * 96, 9);
      ASSERT_NO_FATAL_FAILURE(ExpectOneDnn(way, m, x, m.Linear(rig.Put(x, {40, 96}))));
    }
  }
}

TEST(CpuOneDnnTest, ExactWeightsKeepFloats) {
  if (const std::string reason = WhyNot("prompts=onednn"); !reason.empty()) GTEST_SKIP() << reason;
  Rig with(2, "prompts=onednn"), without(2, "prompts=own");
  const std::vector<float> x = RandomFloats(40 * 96, 9);
  Matrix a(with, {{DType::kQ4_1, 70}}, 96, 40, true), b(without, {{DType::kQ4_1, 70}}, 96, 40, true);
  EXPECT_THAT(a.support.kernel, ::testing::Not(::testing::HasSubstr("oneDNN")));
  EXPECT_EQ(a.Linear(with.Put(x, {40, 96})), b.Linear(without.Put(x, {40, 96})));
}

// Damage to one token or one row of weights stays there.
TEST(CpuOneDnnTest, NonFiniteTokensHarmNoOther) {
  for (const OneDnnWay& way : kOneDnn) {
    if (!WhyNot(way.prompts).empty()) continue;
    SCOPED_TRACE(way.prompts);
    Rig rig(2, way.prompts);
    Matrix m(rig, {{DType::kQ8_0, 70}}, 96, 40, false);
    std::vector<float> x = RandomFloats(40 * 96, 9);
    const std::vector<float> y = m.Linear(rig.Put(x, {40, 96}));
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> hostile = x;
      hostile[7 * 96 + 5] = bad;
      const std::vector<float> got = m.Linear(rig.Put(hostile, {40, 96}));
      for (size_t i = 0; i < got.size(); ++i) {
        if (i / 70 == 7) {
          ASSERT_FALSE(std::isfinite(got[i])) << i % 70;
        } else {
          ASSERT_EQ(got[i], y[i]) << i / 70 << " " << i % 70;
        }
      }
    }
  }
}

size_t ThreadsOfThisProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// oneDNN's OpenMP would otherwise bring a thread per processor for each thread that calls it.
TEST(CpuOneDnnTest, NoThreadAppearsBesideThePool) {
  if (const std::string reason = WhyNot("prompts=onednn"); !reason.empty()) GTEST_SKIP() << reason;
  testing::SharedHost(3);  // its pools' threads are there before
  const size_t before = ThreadsOfThisProcess();
  for (const OneDnnWay& way : kOneDnn) {
    if (!WhyNot(way.prompts).empty()) continue;
    for (int threads : {1, 3}) {
      Rig rig(threads, way.prompts);
      Matrix m(rig, {{DType::kF32, 512}}, 1024, 300, false);
      const std::vector<float> x = RandomFloats(300 * 1024, 9);
      m.Linear(rig.Put(x, {300, 1024}));
      EXPECT_EQ(ThreadsOfThisProcess(), before) << way.prompts << " " << threads;
    }
  }
}

// Two streams at once have the same worker numbers.
TEST(CpuOneDnnTest, CallsOnSeveralStreamsAtOnceDoNotMix) {
  if (const std::string reason = WhyNot("prompts=onednn"); !reason.empty()) GTEST_SKIP() << reason;
  Rig rig(1, "prompts=onednn");
  Matrix m(rig, {{DType::kQ4_0, 128}}, 256, 64, false);
  std::vector<std::vector<float>> want;
  std::vector<octet_tensor> x, y;
  std::vector<octet_buffer*> workspaces;
  constexpr size_t kCallers = 6;  // more than there are slots for one worker
  for (uint32_t i = 0; i < kCallers; ++i) {
    x.push_back(rig.Put(RandomFloats(64 * 256, i), {64, 256}));
    want.push_back(m.Linear(x[i]));
    y.push_back(rig.New({64, 128}));
    workspaces.push_back(rig.Alloc(m.support.workspace_bytes));
  }
  std::vector<const uint8_t*> got;
  for (const octet_tensor& out : y) got.push_back(rig.Map(out.buffer));
  std::vector<int> wrong(kCallers);
  std::vector<std::thread> callers;
  for (size_t i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      Error error;
      octet_stream* stream = nullptr;
      ASSERT_EQ(rig.table->stream->create(rig.device, &stream, &error), OCTET_OK) << error.message;
      octet_linear_args a{};
      a.struct_size = sizeof a;
      a.x = &x[i];
      a.y = &y[i];
      a.w = m.weight;
      a.workspace = workspaces[i];
      for (int round = 0; round < 300; ++round) {  // so long that callers meet
        ASSERT_EQ(rig.table->dense->linear(stream, &a, &error), OCTET_OK) << error.message;
        wrong[i] += std::memcmp(got[i], want[i].data(), want[i].size() * sizeof(float)) != 0 ? 1 : 0;
      }
      rig.table->stream->destroy(stream);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST(CpuOneDnnTest, AMissingLibraryIsNamed) {
  const auto onednn = octet_cpu::OneDnn::Open(octet_cpu::OneDnn::Type::kF32, 1, "libdnnl-absent.so.2");
  ASSERT_EQ(onednn.status().code(), Code::kUnavailable);
  EXPECT_THAT(onednn.status().message(),
              ::testing::AnyOf(::testing::HasSubstr("libdnnl-absent.so.2"), ::testing::HasSubstr("OCTET_CPU_ONEDNN")));
  // A library, but not this one.
  const auto other = octet_cpu::OneDnn::Open(octet_cpu::OneDnn::Type::kF32, 1, "libm.so.6");
  ASSERT_EQ(other.status().code(), Code::kUnavailable);
}

TEST(CpuDenseTest, StackedPartsRowScalesBiasNormAndResidualInPlace) {
  // Own kernels exactly and fast, and oneDNN in its types: each with the same bytes whatever the number of threads.
  struct Way {
    const char* options;
    int threads;
    bool exact;
  };
  std::map<std::pair<std::string, bool>, std::vector<float>> firsts;
  std::vector<Way> ways = {
      {"prompts=own", 1, true}, {"prompts=own", 3, true}, {"prompts=own", 1, false}, {"prompts=own", 3, false}};
  for (const OneDnnWay& way : kOneDnn) {
    if (!WhyNot(way.prompts).empty()) continue;
    ways.push_back({way.prompts, 1, false});
    ways.push_back({way.prompts, 3, false});
  }
  for (const auto& [options, threads, exact] : ways) {
    SCOPED_TRACE(options);
    Rig rig(threads, options);
    Matrix m(rig, {{DType::kQ4_K, 40}, {DType::kF16, 9, true}, {DType::kQ8_0, 64, true}}, 256, 20, exact);
    const std::vector<float> x = RandomFloats(20 * 256, 1), gain = RandomFloats(256, 2), bias = RandomFloats(113, 3),
                             residual = RandomFloats(20 * 113, 4);
    octet_tensor x_tensor = rig.Put(x, {20, 256});
    const octet_tensor gain_tensor = rig.Put(gain, {256}), bias_tensor = rig.Put(bias, {113}),
                       residual_tensor = rig.Put(residual, {20, 113});
    for (int64_t tokens : {20, 2}) {
      x_tensor.shape[0] = tokens;
      octet_tensor r = residual_tensor;
      r.shape[0] = tokens;
      const std::vector<float> y = m.Linear(x_tensor, &bias_tensor, &gain_tensor, &r);
      for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
        double squares = 0;
        for (size_t c = 0; c < 256; ++c) squares += double{x[t * 256 + c]} * double{x[t * 256 + c]};
        const double inverse = 1 / std::sqrt(squares / 256 + 1e-5);
        for (size_t row = 0; row < 113; ++row) {
          double sum = double{bias[row]} + double{residual[t * 113 + row]}, magnitude = 0;
          double x_sum = 0, w_sum = 0, x_top = 0, w_top = 0;
          for (size_t c = 0; c < 256; ++c) {
            const double a = double{x[t * 256 + c]} * inverse * double{gain[c]},
                         w = double{m.dense[row * 256 + c]} * double{m.scale[row * 256 + c]};
            sum += a * w;
            magnitude += std::abs(a * w);
            x_sum += std::abs(a);
            w_sum += std::abs(w);
            x_top = std::max(x_top, std::abs(a));
            w_top = std::max(w_top, std::abs(w));
          }
          double rounded = exact ? 0 : 0x1p-7 * magnitude;
          if (std::string_view(options) == "prompts=onednn-u8s8" && tokens == 20) {
            rounded = 1.02 / 254 * (x_top / 254 * w_sum + w_top * x_sum);
          }
          ASSERT_NEAR(y[t * 113 + row], sum, 2e-4 * (1 + std::abs(sum)) + rounded) << t << " " << row;
        }
      }
      if (tokens != 20) continue;
      std::vector<float>& first = firsts[{options, exact}];
      if (first.empty()) first = y;
      EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * 4), 0) << threads << " threads";
    }
    EXPECT_GE(m.support.resident_bytes, 113u * 256u / 2);
  }
}

TEST(CpuDenseTest, StridedRowsOfXAndYAreRespected) {
  Rig rig;
  Matrix m(rig, {{DType::kF32, 10}}, 16, 9);
  const std::vector<float> x = RandomFloats(9 * 40, 1);
  octet_tensor wide = rig.Put(x, {9, 40});
  wide.shape[1] = 16;
  wide.offset = 8 * 4;
  std::vector<float> packed;
  for (size_t t = 0; t < 9; ++t)
    packed.insert(packed.end(), x.begin() + static_cast<int64_t>(t * 40 + 8),
                  x.begin() + static_cast<int64_t>(t * 40 + 24));
  octet_tensor y = rig.Put(std::vector<float>(9 * 30, 5.0f), {9, 30});
  y.shape[1] = 10;
  y.offset = 4 * 4;
  octet_linear_args a{};
  a.struct_size = sizeof a;
  a.x = &wide;
  a.y = &y;
  a.w = m.weight;
  Error error;
  ASSERT_EQ(rig.table->dense->linear(rig.stream, &a, &error), OCTET_OK) << error.message;
  ExpectProduct(m, packed, rig.Get(y));
  const auto* whole = reinterpret_cast<const float*>(rig.Map(y.buffer));
  for (int i = 0; i < 9 * 30; ++i) {
    if (i % 30 < 4 || i % 30 >= 14) {
      ASSERT_EQ(whole[i], 5.0f) << i;
    }
  }
}

TEST(CpuDenseTest, EmbedGivesTheRowsAndNanForUnknownIds) {
  Rig rig;
  for (DType type : kTypes) {
    Matrix m(rig, {{type, 21}, {DType::kQ8_0, 3, true}}, 256, 1);
    const octet_tensor ids = rig.Put(DType::kI32, std::vector<int32_t>{20, 0, 23, -1, 24, 7}, {6});
    const octet_tensor y = rig.New({6, 256});
    Error error;
    ASSERT_EQ(rig.table->dense->embed(rig.stream, m.weight, &ids, 2.0f, &y, &error), OCTET_OK) << error.message;
    const std::vector<float> got = rig.Get(y);
    for (size_t i = 0; i < 6; ++i) {
      const int id[] = {20, 0, 23, -1, -1, 7};
      for (size_t c = 0; c < 256; ++c) {
        if (id[i] < 0) {
          ASSERT_TRUE(std::isnan(got[i * 256 + c]));
        } else {
          const size_t at = static_cast<size_t>(id[i]) * 256 + c;
          ASSERT_FLOAT_EQ(got[i * 256 + c], m.dense[at] * m.scale[at] * 2.0f) << DTypeName(type);
        }
      }
    }
  }
}

TEST(CpuDenseTest, NormsMatchDoubleOnStridedRowsAndInPlace) {
  Rig rig;
  for (int32_t kind : {OCTET_NORM_RMS, OCTET_NORM_LAYER}) {
    const std::vector<float> x = RandomFloats(4 * 3 * 50, 1, 30.0f), gain = RandomFloats(43, 2),
                             bias = RandomFloats(43, 3);
    octet_tensor view = rig.Put(x, {4, 3, 50});
    view.shape[2] = 43;
    const octet_tensor g = rig.Put(gain, {43}), b = rig.Put(bias, {43});
    Error error;
    ASSERT_EQ(rig.table->dense->norm(rig.stream, kind, &view, &g, kind == OCTET_NORM_LAYER ? &b : nullptr, 1e-6f, &view,
                                     &error),
              OCTET_OK)
        << error.message;
    const std::vector<float> y = rig.Get(view);
    for (size_t row = 0; row < 12; ++row) {
      double mean = 0, squares = 0;
      for (size_t c = 0; c < 43 && kind == OCTET_NORM_LAYER; ++c) mean += double{x[row * 50 + c]} / 43;
      for (size_t c = 0; c < 43; ++c) squares += std::pow(double{x[row * 50 + c]} - mean, 2) / 43;
      for (size_t c = 0; c < 43; ++c) {
        const double want = (double{x[row * 50 + c]} - mean) / std::sqrt(squares + 1e-6) * double{gain[c]} +
                            (kind == OCTET_NORM_LAYER ? double{bias[c]} : 0.0);
        ASSERT_NEAR(y[row * 43 + c], want, 1e-6 * (1 + std::abs(want)));
      }
    }
  }
}

TEST(CpuDenseTest, RopeTurnsBothKindsOfPairs) {
  Rig rig;
  for (int32_t interleaved : {0, 1}) {
    const std::vector<float> x = RandomFloats(3 * 2 * 20, 1);
    std::vector<float> table;
    for (int i = 0; i < 9 * 8; ++i) {
      table.push_back(std::cos(static_cast<float>(i)));
      table.push_back(std::sin(static_cast<float>(i)));
    }
    octet_tensor view = rig.Put(x, {3, 2, 20});
    view.shape[2] = 18;
    const octet_tensor positions = rig.Put(DType::kI32, std::vector<int32_t>{8, 0, 3}, {3});
    const octet_tensor cos_sin = rig.Put(table, {9, 8, 2});
    Error error;
    ASSERT_EQ(rig.table->dense->rope(rig.stream, &view, &positions, &cos_sin, interleaved, &error), OCTET_OK)
        << error.message;
    const std::vector<float> y = rig.Get(view);
    const int position[] = {8, 0, 3};
    for (size_t row = 0; row < 6; ++row) {
      for (size_t p = 0; p < 8; ++p) {
        const double angle = position[row / 2] * 8 + static_cast<int>(p);
        const size_t a = interleaved != 0 ? 2 * p : p, b = interleaved != 0 ? 2 * p + 1 : p + 8;
        const double u = double{x[row * 20 + a]}, v = double{x[row * 20 + b]};
        ASSERT_NEAR(y[row * 18 + a], u * std::cos(angle) - v * std::sin(angle), 1e-6);
        ASSERT_NEAR(y[row * 18 + b], u * std::sin(angle) + v * std::cos(angle), 1e-6);
      }
      ASSERT_EQ(y[row * 18 + 16], x[row * 20 + 16]);
    }
    const octet_tensor far = rig.Put(DType::kI32, std::vector<int32_t>{0, 9, 0}, {3});
    EXPECT_EQ(rig.table->dense->rope(rig.stream, &view, &far, &cos_sin, 0, &error), OCTET_INVALID_ARGUMENT);
  }
}

double Activation(int32_t kind, double x) {
  switch (kind) {
    case OCTET_ACT_SILU:
    case OCTET_ACT_SILU_GATED:
      return x / (1 + std::exp(-x));
    case OCTET_ACT_GELU:
    case OCTET_ACT_GELU_GATED:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    default:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
}

TEST(CpuDenseTest, ActivationsMatchDouble) {
  Rig rig;
  for (int32_t kind = OCTET_ACT_SILU_GATED; kind <= OCTET_ACT_GELU; ++kind) {
    const bool gated = kind <= OCTET_ACT_GELU_GATED;
    std::vector<float> x = RandomFloats(5 * 70, 1, 4.0f);
    x[0] = 0;
    x[1] = 40;
    x[2] = -40;
    x[3] = -1e-20f;
    const octet_tensor in = rig.Put(x, {5, 70});
    const int64_t n = gated ? 35 : 70;
    const octet_tensor out = rig.New({5, n});
    Error error;
    ASSERT_EQ(rig.table->dense->activation(rig.stream, kind, &in, &out, &error), OCTET_OK) << error.message;
    const std::vector<float> y = rig.Get(out);
    for (size_t row = 0; row < 5; ++row) {
      for (size_t c = 0; c < static_cast<size_t>(n); ++c) {
        const double up = gated ? double{x[row * 70 + 35 + c]} : 1.0;
        const double want = Activation(kind, double{x[row * 70 + c]}) * up;
        ASSERT_NEAR(y[row * static_cast<size_t>(n) + c], want, 3e-6 * std::abs(want) + 1e-10)
            << kind << " " << x[row * 70 + c];
      }
    }
  }
}

TEST(CpuDenseTest, AddAndGatherRows) {
  Rig rig;
  const std::vector<float> x = RandomFloats(6 * 9, 1), y = RandomFloats(6 * 9, 2);
  const octet_tensor a = rig.Put(x, {6, 9}), b = rig.Put(y, {6, 9});
  Error error;
  ASSERT_EQ(rig.table->dense->add(rig.stream, &a, &b, &error), OCTET_OK) << error.message;
  const std::vector<float> sum = rig.Get(b);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], x[i] + y[i]);
  const octet_tensor rows = rig.Put(DType::kI32, std::vector<int32_t>{5, 1, 5}, {3}), out = rig.New({3, 9});
  ASSERT_EQ(rig.table->dense->gather_rows(rig.stream, &a, &rows, &out, &error), OCTET_OK) << error.message;
  const std::vector<float> got = rig.Get(out);
  for (size_t c = 0; c < 9; ++c) {
    EXPECT_EQ(got[c], x[45 + c]);
    EXPECT_EQ(got[9 + c], x[9 + c]);
    EXPECT_EQ(got[18 + c], x[45 + c]);
  }
  const octet_tensor bad = rig.Put(DType::kI32, std::vector<int32_t>{0, 6, 0}, {3});
  EXPECT_EQ(rig.table->dense->gather_rows(rig.stream, &a, &bad, &out, &error), OCTET_INVALID_ARGUMENT);
}

TEST(CpuDenseTest, WeightsThatCannotBeAreRefusedWithAReason) {
  Rig rig;
  octet_weight_part part{};
  part.struct_size = sizeof part;
  part.dtype = OCTET_Q4_K;
  part.rows = 4;
  part.row_stride_bytes = 1000;
  const octet_weight_part* parts[] = {&part};
  octet_weight_desc d{};
  d.struct_size = sizeof d;
  d.num_parts = 1;
  d.columns = 512;
  d.parts = parts;
  d.use = OCTET_WEIGHT_LINEAR;
  d.max_tokens = 1;
  d.x_type = d.y_type = OCTET_F32;
  octet_support support{};
  support.struct_size = sizeof support;
  const auto level = [&] {
    EXPECT_EQ(rig.table->dense->supports_weight(rig.device, &d, &support, nullptr), OCTET_OK);
    return support.level;
  };
  EXPECT_EQ(level(), 2);
  d.columns = 500;
  EXPECT_EQ(level(), 0);
  EXPECT_THAT(support.reason, ::testing::HasSubstr("500 columns"));
  d.columns = 512;
  d.x_type = OCTET_BF16;
  EXPECT_EQ(level(), 1);
  d.x_type = OCTET_I8;
  EXPECT_EQ(level(), 0);
  EXPECT_THAT(support.reason, ::testing::HasSubstr("int8"));
  d.x_type = OCTET_F32;
  // Sizes that would overflow.
  part.dtype = OCTET_F32;
  part.rows = d.columns = int64_t{1} << 31;
  part.row_stride_bytes = int64_t{1} << 33;
  EXPECT_EQ(level(), 0);
  EXPECT_THAT(support.reason, ::testing::HasSubstr("more than 2^48 bytes"));
  part.rows = 1;
  d.max_tokens = INT32_MAX;
  EXPECT_EQ(level(), 0);
  EXPECT_THAT(support.reason, ::testing::HasSubstr("more than 2^48 elements"));
  d.columns = 512;
  d.max_tokens = 1;
  part.dtype = 99;
  EXPECT_EQ(level(), 0);
  octet_weight* weight = nullptr;
  EXPECT_EQ(rig.table->dense->prepare_weight(rig.stream, &d, &weight, nullptr), OCTET_UNIMPLEMENTED);
  EXPECT_EQ(weight, nullptr);
}

TEST(CpuDispatchTest, UnknownInstructionSetsAndOptionsAreErrors) {
  const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(1), nullptr);
  octet_device* device = nullptr;
  Error error;
  EXPECT_EQ(table->device->open(0, "isa=v9", &device, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, ::testing::HasSubstr("v9"));
  EXPECT_EQ(table->device->open(0, "speed=fast", &device, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_EQ(table->device->open(1, nullptr, &device, &error), OCTET_NOT_FOUND);
  ASSERT_EQ(setenv("OCTET_CPU_ISA", "sse", 1), 0);
  EXPECT_EQ(table->device->open(0, nullptr, &device, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, ::testing::HasSubstr("OCTET_CPU_ISA"));
  ASSERT_EQ(unsetenv("OCTET_CPU_ISA"), 0);
  EXPECT_EQ(table->device->open(0, "prompts=fast", &device, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, ::testing::HasSubstr("onednn-bf16"));
  EXPECT_EQ(table->device->open(0, "prompts=", &device, &error), OCTET_INVALID_ARGUMENT);
  ASSERT_EQ(setenv("OCTET_CPU_PROMPTS", "fast", 1), 0);
  EXPECT_EQ(table->device->open(0, nullptr, &device, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, ::testing::HasSubstr("OCTET_CPU_PROMPTS"));
  ASSERT_EQ(unsetenv("OCTET_CPU_PROMPTS"), 0);
  EXPECT_EQ(device, nullptr);
}

}  // namespace
}  // namespace octet
