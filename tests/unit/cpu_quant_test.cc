// Bytes that the CPU backend writes into a cache, against the steps of docs/numerics.md one by one.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <vector>

#include "octet/half.h"
#include "tests/unit/cpu_rig.h"

namespace octet {
namespace {

using testing::Error;
using testing::RandomFloats;
using testing::Rig;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float RoundBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

std::vector<float> Rotate(std::vector<float> x, size_t block) {
  for (size_t start = 0; block > 1 && start < x.size(); start += block) {
    for (size_t stride = 1; stride < block; stride *= 2) {
      std::vector<float> y = x;
      for (size_t i = 0; i < block; ++i) {
        const float here = x[start + i], there = x[start + (i ^ stride)];
        volatile float sum = (i & stride) == 0 ? here + there : there - here;
        y[start + i] = sum;
      }
      x = y;
    }
    for (size_t i = 0; i < block; ++i) x[start + i] *= static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  }
  return x;
}

struct Encoded {
  std::vector<int8_t> codes;
  float scale = 0, zero = 0;
};

int8_t Code(float x) {
  return std::isnan(x) ? int8_t{0} : static_cast<int8_t>(std::clamp(std::nearbyint(x), -127.0f, 127.0f));
}

Encoded Dynamic(const std::vector<float>& x, bool asymmetric, bool bf16) {
  Encoded e;
  const bool finite = std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
  if (finite && asymmetric) {
    volatile float sum = *std::min_element(x.begin(), x.end()) + *std::max_element(x.begin(), x.end());
    e.zero = sum * 0.5f;
    if (bf16) e.zero = RoundBf16(e.zero);
  }
  float a = 0;
  for (float v : x) a = std::max(a, std::abs(v - e.zero));
  float inverse = 0;
  if (!finite || !std::isfinite(a)) {
    e.scale = kNan;
    e.codes.assign(x.size(), 0);
    return e;
  }
  if (a >= 1e-30f) {
    e.scale = a / 127.0f;
    inverse = 127.0f / a;
    if (bf16) {
      e.scale = RoundBf16(e.scale);
      inverse = 1.0f / e.scale;
    }
  }
  for (float v : x) {
    volatile float shifted = v - e.zero;
    volatile float scaled = shifted * inverse;
    e.codes.push_back(Code(scaled));
  }
  return e;
}

struct RowQuant {
  bool asymmetric = false, bf16 = false;
  int group = 0, rotation = 0;
};

// One KV head, one page; rows of 64 with the shapes that break quantizers.
std::vector<float> HardRows(int* rows) {
  std::vector<float> x = RandomFloats(64 * 20, 11);
  const auto row = [&](float (*f)(int)) {
    for (int i = 0; i < 64; ++i) x.push_back(f(i));
  };
  row([](int) { return 0.0f; });
  row([](int) { return -0.0f; });
  row([](int) { return 1e-31f; });
  row([](int i) { return i == 3 ? 1e-30f : 1e-38f; });
  row([](int i) { return i == 5 ? 3e38f : -1.0f; });
  row([](int i) { return i % 2 == 0 ? 3.4e38f : -3.4e38f; });
  row([](int i) { return static_cast<float>(i) - 31.5f; });
  row([](int i) { return i == 0 ? 127.0f : static_cast<float>(i) + 0.5f; });  // ties
  row([](int i) { return i == 0 ? kNan : 1.0f; });
  row([](int i) { return i == 63 ? kInfinity : 1.0f; });
  row([](int i) { return i == 40 ? -kInfinity : 1.0f; });
  row([](int) { return 7.25f; });
  *rows = static_cast<int>(x.size() / 64);
  return x;
}

octet_cache_side Side(const RowQuant& s) {
  octet_cache_side c{};
  c.struct_size = sizeof c;
  c.data_type = OCTET_I8;
  c.scheme = s.asymmetric ? OCTET_SCHEME_ASYMMETRIC : OCTET_SCHEME_SYMMETRIC;
  c.axis = OCTET_AXIS_TOKEN;
  c.group = s.group;
  c.scale_type = s.bf16 ? OCTET_BF16 : OCTET_F32;
  c.zero_type = s.asymmetric ? c.scale_type : 0;
  c.head_dim = 64;
  c.rotation = s.rotation;
  return c;
}

float LoadScale(const uint8_t* p, bool bf16) {
  if (bf16) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return Bf16ToFloat(bits);
  }
  float x;
  std::memcpy(&x, p, 4);
  return x;
}

void ExpectSame(float got, float want) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got));
  } else {
    EXPECT_EQ(FloatBits(got), FloatBits(want)) << got << " instead of " << want;
  }
}

TEST(CpuQuantTest, WritesTheCodesAndScalesOfTheContract) {
  const RowQuant setups[] = {{},
                             {.rotation = 64},
                             {.bf16 = true, .rotation = 32},
                             {.group = 32},
                             {.bf16 = true, .group = 8},
                             {.asymmetric = true},
                             {.asymmetric = true, .bf16 = true, .group = 16, .rotation = 8}};
  for (const char* isa : {"isa=v2", "isa=v3", "isa=v4"}) {
    const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(2), nullptr);
    octet_device* probe = nullptr;
    if (table->device->open(0, isa, &probe, nullptr) != OCTET_OK) continue;
    table->device->close(probe);
    for (const RowQuant& s : setups) {
      Rig rig(2, isa);
      int rows = 0;
      const std::vector<float> x = HardRows(&rows);
      octet_cache_side k = Side(s), v = Side(s);
      octet_kv_layout layout{};
      layout.struct_size = sizeof layout;
      layout.page_tokens = rows;
      layout.kv_heads = layout.num_pages = 1;
      layout.k = &k;
      layout.v = &v;
      Error error;
      ASSERT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k, &v, nullptr, &error), OCTET_OK)
          << error.message;
      octet_kv_layer layer{};
      layer.struct_size = sizeof layer;
      layer.cache = rig.Alloc(layout.layer_bytes);
      std::vector<int64_t> slots;
      for (int i = 0; i < rows; ++i) slots.push_back(i == 1 ? -1 : i);
      const octet_tensor rows_in = rig.Put(x, {rows, 1, 64}), slot_tensor = rig.Put(DType::kI64, slots, {rows});
      octet_kv_tokens t{};
      t.struct_size = sizeof t;
      t.k = t.v = &rows_in;
      t.slots = &slot_tensor;
      ASSERT_EQ(rig.table->quant->append(rig.stream, &layout, &layer, &t, &error), OCTET_OK) << error.message;

      const uint8_t* cache = rig.Map(layer.cache);
      const int group = s.group > 0 ? s.group : 64, bytes = s.bf16 ? 2 : 4;
      for (const octet_cache_side* side : {&k, &v}) {
        for (int r = 0; r < rows; ++r) {
          SCOPED_TRACE(std::string(isa) + " row " + std::to_string(r) + " group " + std::to_string(group));
          const uint8_t* codes = cache + side->data_base + r * side->data_stride[2];
          if (r == 1) {  // skipped: as it was
            for (int i = 0; i < 64; ++i) ASSERT_EQ(codes[i], 0xff);
            continue;
          }
          const std::vector<float> row =
              Rotate({x.begin() + r * 64, x.begin() + (r + 1) * 64}, static_cast<size_t>(s.rotation));
          for (int g = 0; g * group < 64; ++g) {
            const Encoded e = Dynamic({row.begin() + g * group, row.begin() + (g + 1) * group}, s.asymmetric, s.bf16);
            for (int i = 0; i < group; ++i) {
              ASSERT_EQ(static_cast<int8_t>(codes[g * group + i]), e.codes[static_cast<size_t>(i)]) << i;
            }
            ExpectSame(LoadScale(cache + side->scale_base + r * side->scale_stride[2] + g * bytes, s.bf16), e.scale);
            if (s.asymmetric) {
              ExpectSame(LoadScale(cache + side->zero_base + r * side->zero_stride[2] + g * bytes, s.bf16), e.zero);
            }
          }
        }
      }
    }
  }
}

// What static scales do to values that have no code: saturate, and NaN is 0.
TEST(CpuQuantTest, StaticScalesSaturate) {
  Rig rig;
  octet_cache_side k = Side({}), v = Side({});
  k.axis = v.axis = OCTET_AXIS_TENSOR;
  octet_kv_layout layout{};
  layout.struct_size = sizeof layout;
  layout.page_tokens = layout.kv_heads = layout.num_pages = 1;
  layout.k = &k;
  layout.v = &v;
  Error error;
  ASSERT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k, &v, nullptr, &error), OCTET_OK) << error.message;
  octet_kv_layer layer{};
  layer.struct_size = sizeof layer;
  layer.cache = rig.Alloc(layout.layer_bytes);
  const octet_tensor scale = rig.Put({0.5f}, {1});
  layer.k_scale = layer.v_scale = &scale;
  std::vector<float> x(64, 0.25f);  // a tie: 0.5 rounds to 0
  const float hard[] = {kInfinity, -kInfinity, kNan, 1e30f, 0.75f, -0.75f, 63.6f, -63.75f};
  const int8_t want[] = {127, -127, 0, 127, 2, -2, 127, -127};
  std::copy(std::begin(hard), std::end(hard), x.begin());
  const octet_tensor rows = rig.Put(x, {1, 1, 64}), slots = rig.Put(DType::kI64, std::vector<int64_t>{0}, {1});
  octet_kv_tokens t{};
  t.struct_size = sizeof t;
  t.k = t.v = &rows;
  t.slots = &slots;
  ASSERT_EQ(rig.table->quant->append(rig.stream, &layout, &layer, &t, &error), OCTET_OK) << error.message;
  const auto* codes = reinterpret_cast<const int8_t*>(rig.Map(layer.cache) + k.data_base);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], want[i]) << i;
  for (int i = 8; i < 64; ++i) EXPECT_EQ(codes[i], 0);
}

TEST(CpuQuantTest, PagesSurviveExportImportAndCopy) {
  Rig rig;
  octet_cache_side k = Side({.group = 32}), v = Side({.asymmetric = true});
  octet_kv_layout layout{};
  layout.struct_size = sizeof layout;
  layout.page_tokens = 5;
  layout.kv_heads = 2;
  layout.num_pages = 4;
  layout.k = &k;
  layout.v = &v;
  Error error;
  ASSERT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k, &v, nullptr, &error), OCTET_OK) << error.message;
  // Rows 8 bytes longer than the canonical ones.
  octet_cache_side wide_k = k, wide_v = v;
  wide_k.data_stride[2] = wide_v.data_stride[2] = 72;
  wide_k.data_base = 0;
  wide_v.data_base = 64 * 72;
  for (octet_cache_side* s : {&wide_k, &wide_v}) {
    s->data_stride[0] = 16 * 72;
    s->data_stride[1] = 5 * 72;
    s->scale_base += 128 * 72;
    s->zero_base += 128 * 72;
  }
  octet_kv_layout wide = layout;
  wide.k = &wide_k;
  wide.v = &wide_v;
  wide.layer_bytes += 128 * 72;

  octet_kv_layer a{}, b{};
  a.struct_size = b.struct_size = sizeof a;
  a.cache = rig.Alloc(layout.layer_bytes);
  b.cache = rig.Alloc(wide.layer_bytes);
  const octet_tensor x = rig.Put(RandomFloats(20 * 2 * 64, 5), {20, 2, 64});
  std::vector<int64_t> all(20);
  for (int i = 0; i < 20; ++i) all[static_cast<size_t>(i)] = i;
  const octet_tensor slots = rig.Put(DType::kI64, all, {20});
  octet_kv_tokens t{};
  t.struct_size = sizeof t;
  t.k = t.v = &x;
  t.slots = &slots;
  ASSERT_EQ(rig.table->quant->append(rig.stream, &layout, &a, &t, &error), OCTET_OK) << error.message;

  octet_buffer* pages = rig.Alloc(layout.layer_bytes);
  const octet_tensor from = rig.Put(DType::kI32, std::vector<int32_t>{2, 0, 3, 1}, {4});
  const octet_tensor to = rig.Put(DType::kI32, std::vector<int32_t>{1, 3, 0, 2}, {4});
  ASSERT_EQ(rig.table->quant->export_pages(rig.stream, &layout, &a, &from, pages, 0, &error), OCTET_OK)
      << error.message;
  ASSERT_EQ(rig.table->quant->import_pages(rig.stream, &wide, &b, &to, pages, 0, &error), OCTET_OK) << error.message;
  const octet_tensor pairs = rig.Put(DType::kI32, std::vector<int32_t>{1, 0}, {1, 2});
  ASSERT_EQ(rig.table->quant->copy_pages(rig.stream, &wide, &b, &pairs, &error), OCTET_OK) << error.message;

  const octet_tensor k_a = rig.New({20, 2, 64}), v_a = rig.New({20, 2, 64}), k_b = rig.New({20, 2, 64}),
                     v_b = rig.New({20, 2, 64});
  t.k = &k_a;
  t.v = &v_a;
  ASSERT_EQ(rig.table->quant->gather(rig.stream, &layout, &a, &t, &error), OCTET_OK) << error.message;
  t.k = &k_b;
  t.v = &v_b;
  ASSERT_EQ(rig.table->quant->gather(rig.stream, &wide, &b, &t, &error), OCTET_OK) << error.message;
  const int page_of[] = {2, 2, 1, 0};  // where page i of b came from: 2 -> 1, 0 -> 3, 1 -> 2, then 1 -> 0
  const size_t page = 5 * 2 * 64;
  for (size_t i = 0; i < 4; ++i) {
    const size_t source = static_cast<size_t>(page_of[i]) * page;
    EXPECT_EQ(std::memcmp(&rig.Get(k_a)[source], &rig.Get(k_b)[i * page], page * 4), 0) << i;
    EXPECT_EQ(std::memcmp(&rig.Get(v_a)[source], &rig.Get(v_b)[i * page], page * 4), 0) << i;
  }
}

}  // namespace
}  // namespace octet
