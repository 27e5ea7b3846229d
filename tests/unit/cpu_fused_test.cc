// The fused append of the CPU backend against its separate operations: bias, norm, rope and append give the same bytes,
// on every instruction set and whatever the number of threads.
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "octet/half.h"
#include "tests/unit/cpu_rig.h"

namespace octet {
namespace {

using testing::Error;
using testing::RandomFloats;
using testing::Rig;

constexpr int kPageTokens = 16, kPages = 5, kPositions = 200;

struct QkvSetup {
  const char* name;
  int q_heads = 6, kv_heads = 2, k_dim = 64, v_dim = 64;
  bool bias = true, norm = true, interleaved = false;
  int pairs = 32, offset_block = 64, tokens = 40;
  octet_dtype type = OCTET_I8;
  int32_t rotation = 64, axis = OCTET_AXIS_TOKEN, scheme = OCTET_SCHEME_SYMMETRIC;
  octet_dtype scale_type = OCTET_F32;
  int32_t group = 0;
};

octet_cache_side SideOf(const QkvSetup& s, int head_dim) {
  octet_cache_side c{};
  c.struct_size = sizeof c;
  c.data_type = s.type;
  c.scheme = s.type == OCTET_I8 ? s.scheme : OCTET_SCHEME_NONE;
  c.axis = s.axis;
  c.group = s.group;
  c.scale_type = s.type == OCTET_I8 ? s.scale_type : 0;
  c.zero_type = c.scheme == OCTET_SCHEME_ASYMMETRIC ? c.scale_type : 0;
  c.head_dim = head_dim;
  c.rotation = s.rotation;
  return c;
}

struct Bytes {
  std::vector<uint8_t> cache, q;
};

// Everything of one call in device memory; `fused` chooses how it is done.
Bytes AppendRows(const QkvSetup& s, const std::string& isa, int threads, bool fused) {
  Rig rig(threads, isa.c_str());
  Error error;
  const auto check = [&](octet_code code) { EXPECT_EQ(code, OCTET_OK) << error.message; };
  octet_cache_side k = SideOf(s, s.k_dim), v = SideOf(s, s.v_dim);
  octet_kv_layout layout{};
  layout.struct_size = sizeof layout;
  layout.page_tokens = kPageTokens;
  layout.kv_heads = s.kv_heads;
  layout.num_pages = kPages;
  layout.offset_block = s.offset_block;
  layout.k = &k;
  layout.v = &v;
  check(rig.table->quant->choose_layout(rig.device, &layout, &k, &v, nullptr, &error));
  octet_kv_layer layer{};
  layer.struct_size = sizeof layer;
  layer.cache = rig.Alloc(layout.layer_bytes);
  const int blocks = s.offset_block > 0 ? kPositions / s.offset_block + 1 : 0;
  const octet_tensor offsets =
      rig.Put(RandomFloats(static_cast<size_t>(blocks * s.kv_heads * s.k_dim), 1), {blocks, s.kv_heads, s.k_dim});
  if (s.offset_block > 0) layer.k_offset = &offsets;
  const octet_tensor scales = rig.Put({0.02f, 0.03f}, {2});
  if (s.type == OCTET_I8 && s.axis == OCTET_AXIS_HEAD) layer.k_scale = layer.v_scale = &scales;

  const int64_t columns = (s.q_heads + s.kv_heads) * s.k_dim + s.kv_heads * s.v_dim, tokens = s.tokens;
  std::vector<float> rows = RandomFloats(static_cast<size_t>(tokens * columns), 2);
  std::vector<float> bias = RandomFloats(static_cast<size_t>(columns), 3);
  std::vector<int64_t> slots;
  std::vector<int32_t> positions;
  for (int t = 0; t < s.tokens; ++t) {
    slots.push_back(t % 7 == 3 ? -1 : (t * 13 + 5) % (kPageTokens * kPages));
    positions.push_back(t * 29 % kPositions);
  }
  const int64_t last = (tokens - 1) * columns;  // a row that is hard
  rows[static_cast<size_t>(last + 1)] = 1e30f;
  rows[static_cast<size_t>(last + s.q_heads * s.k_dim + 1)] = std::numeric_limits<float>::infinity();
  std::vector<float> angles = RandomFloats(static_cast<size_t>(kPositions * s.pairs * 2), 4);
  const octet_tensor cos_sin = rig.Put(angles, {kPositions, s.pairs, 2});
  const octet_tensor slot_tensor = rig.Put(DType::kI64, slots, {tokens});
  const octet_tensor position_tensor = rig.Put(DType::kI32, positions, {tokens});
  const octet_tensor q_gain = rig.Put(RandomFloats(static_cast<size_t>(s.k_dim), 5), {s.k_dim});
  const octet_tensor k_gain = rig.Put(RandomFloats(static_cast<size_t>(s.k_dim), 6), {s.k_dim});
  const octet_tensor bias_tensor = rig.Put(bias, {columns});
  const float eps = 1e-6f;
  if (!fused && s.bias) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += bias[i % bias.size()];
  }
  const octet_tensor qkv = rig.Put(rows, {tokens, columns});
  const auto heads = [&](int64_t first, int64_t count, int64_t dim) {
    octet_tensor t = MakeTensor(qkv.buffer, DType::kF32, {tokens, count, dim}, static_cast<uint64_t>(first) * 4);
    t.stride[0] = columns;
    return t;
  };
  const octet_tensor q = heads(0, s.q_heads, s.k_dim), k_rows = heads(s.q_heads * s.k_dim, s.kv_heads, s.k_dim),
                     v_rows = heads((s.q_heads + s.kv_heads) * s.k_dim, s.kv_heads, s.v_dim);
  if (fused) {
    octet_qkv_append_args a{};
    a.struct_size = sizeof a;
    a.rope_interleaved = s.interleaved ? 1 : 0;
    a.qk_norm_eps = eps;
    a.qkv = &qkv;
    a.bias = s.bias ? &bias_tensor : nullptr;
    a.q_gain = s.norm ? &q_gain : nullptr;
    a.k_gain = s.norm ? &k_gain : nullptr;
    a.cos_sin = &cos_sin;
    a.positions = &position_tensor;
    a.slots = &slot_tensor;
    a.q_out = &q;
    check(rig.table->fused->qkv_append(rig.stream, &layout, &layer, &a, &error));
  } else {
    const octet_dense_ops& dense = *rig.table->dense;
    if (s.norm) {
      check(dense.norm(rig.stream, OCTET_NORM_RMS, &q, &q_gain, nullptr, eps, &q, &error));
      check(dense.norm(rig.stream, OCTET_NORM_RMS, &k_rows, &k_gain, nullptr, eps, &k_rows, &error));
    }
    check(dense.rope(rig.stream, &q, &position_tensor, &cos_sin, s.interleaved ? 1 : 0, &error));
    check(dense.rope(rig.stream, &k_rows, &position_tensor, &cos_sin, s.interleaved ? 1 : 0, &error));
    octet_kv_tokens t{};
    t.struct_size = sizeof t;
    t.k = &k_rows;
    t.v = &v_rows;
    t.slots = &slot_tensor;
    t.positions = &position_tensor;
    check(rig.table->quant->append(rig.stream, &layout, &layer, &t, &error));
  }
  Bytes bytes;
  bytes.cache.assign(rig.Map(layer.cache), rig.Map(layer.cache) + layout.layer_bytes);
  const std::vector<float> q_values = rig.Get(q);
  bytes.q.resize(q_values.size() * sizeof(float));
  std::memcpy(bytes.q.data(), q_values.data(), bytes.q.size());
  return bytes;
}

TEST(CpuFusedTest, GivesTheBytesOfItsParts) {
  const QkvSetup setups[] = {
      {.name = "int8"},
      {.name = "one token", .tokens = 1},
      {.name = "plain", .bias = false, .norm = false, .offset_block = 0, .rotation = 0},
      {.name = "interleaved", .norm = false, .interleaved = true},
      {.name = "a few pairs", .pairs = 9},
      {.name = "no pairs", .pairs = 0},
      {.name = "odd dims", .q_heads = 3, .kv_heads = 3, .k_dim = 40, .v_dim = 24, .pairs = 20, .rotation = 8},
      {.name = "large heads", .q_heads = 2, .kv_heads = 1, .k_dim = 256, .v_dim = 256, .pairs = 128, .rotation = 256},
      {.name = "groups", .rotation = 0, .scheme = OCTET_SCHEME_ASYMMETRIC, .scale_type = OCTET_BF16, .group = 16},
      {.name = "static", .axis = OCTET_AXIS_HEAD},
      {.name = "f32", .type = OCTET_F32, .rotation = 0},
      {.name = "f16", .type = OCTET_F16, .rotation = 0},
      {.name = "bf16", .bias = false, .type = OCTET_BF16, .rotation = 32},
      {.name = "many tokens", .kv_heads = 1, .tokens = 80}};
  int compared = 0;
  for (const char* isa : {"isa=v2", "isa=v3", "isa=v4", "isa=portable"}) {
    octet_device* probe = nullptr;
    const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(2), nullptr);
    if (table->device->open(0, isa, &probe, nullptr) != OCTET_OK) continue;
    table->device->close(probe);
    for (const QkvSetup& s : setups) {
      SCOPED_TRACE(std::string(isa) + " " + s.name);
      const Bytes parts = AppendRows(s, isa, 2, false);
      for (const int threads : {1, 3}) {
        const Bytes fused = AppendRows(s, isa, threads, true);
        EXPECT_TRUE(fused.cache == parts.cache) << "the cache differs";
        EXPECT_TRUE(fused.q == parts.q) << "q differs";
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 0) << "no instruction set runs here";
}

// q in 16 bits is the f32 one, rounded once.
TEST(CpuFusedTest, RoundsQOnce) {
  Rig rig;
  Error error;
  octet_cache_side k = SideOf({}, 64), v = k;
  octet_kv_layout layout{};
  layout.struct_size = sizeof layout;
  layout.page_tokens = 4;
  layout.kv_heads = layout.num_pages = 1;
  layout.k = &k;
  layout.v = &v;
  ASSERT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k, &v, nullptr, &error), OCTET_OK) << error.message;
  octet_kv_layer layer{};
  layer.struct_size = sizeof layer;
  layer.cache = rig.Alloc(layout.layer_bytes);
  const octet_tensor qkv = rig.Put(RandomFloats(3 * 4 * 64, 7), {3, 4 * 64});
  const octet_tensor cos_sin = rig.Put(RandomFloats(3 * 32 * 2, 8), {3, 32, 2});
  const octet_tensor gain = rig.Put(RandomFloats(64, 9), {64});
  const octet_tensor positions = rig.Put(DType::kI32, std::vector<int32_t>{2, 0, 1}, {3});
  const octet_tensor slots = rig.Put(DType::kI64, std::vector<int64_t>{-1, -1, -1}, {3});
  octet_qkv_append_args a{};
  a.struct_size = sizeof a;
  a.qk_norm_eps = 1e-5f;
  a.qkv = &qkv;
  a.q_gain = a.k_gain = &gain;
  a.cos_sin = &cos_sin;
  a.positions = &positions;
  a.slots = &slots;
  const octet_tensor wide = rig.New({3, 2, 64});
  a.q_out = &wide;
  ASSERT_EQ(rig.table->fused->qkv_append(rig.stream, &layout, &layer, &a, &error), OCTET_OK) << error.message;
  const std::vector<float> want = rig.Get(wide);
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const octet_tensor narrow = MakeTensor(rig.Alloc(3 * 2 * 64 * 2), type, {3, 2, 64});
    a.q_out = &narrow;
    ASSERT_EQ(rig.table->fused->qkv_append(rig.stream, &layout, &layer, &a, &error), OCTET_OK) << error.message;
    const auto* got = reinterpret_cast<const uint16_t*>(rig.Map(narrow.buffer));
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i], type == DType::kF16 ? FloatToHalf(want[i]) : FloatToBf16(want[i])) << i;
    }
  }
}

TEST(CpuFusedTest, SaysWhatItCannotDo) {
  Rig rig;
  Error error;
  octet_cache_side k = SideOf({}, 64), v = SideOf({}, 64), extra = SideOf({}, 64);
  octet_limits limits{};
  limits.struct_size = sizeof limits;
  limits.requests = limits.query_tokens = 1;
  limits.kv_len = limits.pages = 1;
  octet_kv_layout layout{};
  layout.struct_size = sizeof layout;
  layout.page_tokens = layout.kv_heads = layout.num_pages = 1;
  layout.k = &k;
  layout.v = &v;
  octet_attention_desc d{};
  d.struct_size = sizeof d;
  d.q_heads = 1;
  d.q_type = d.out_type = OCTET_F32;
  d.kv = &layout;
  d.limits = &limits;
  const auto answer = [&](int32_t entry) {
    octet_support support{};
    support.struct_size = sizeof support;
    EXPECT_EQ(rig.table->fused->supports(rig.device, entry, &d, &support, &error), OCTET_OK) << error.message;
    return support.level > 0 ? std::string("yes") : std::string(support.reason);
  };
  ASSERT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k, &v, nullptr, &error), OCTET_OK) << error.message;
  EXPECT_EQ(answer(OCTET_FUSED_QKV_APPEND), "yes");
  EXPECT_EQ(answer(OCTET_FUSED_SAMPLE), "cpu: sampling is not fused; the logits are sampled by the host");
  EXPECT_EQ(answer(9), "cpu: fused operation 9 is unknown; known is 1 (QKV append)");
  d.q_type = OCTET_OPAQUE;
  EXPECT_EQ(answer(OCTET_FUSED_QKV_APPEND), "cpu: the fused append writes q as f32, f16 or bf16, not as opaque");
  d.q_type = OCTET_F32;
  const std::string latent = "cpu: the fused append has no latent cache, where V is K's row or K has an extra part";
  layout.v = &k;
  ASSERT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k, &k, nullptr, &error), OCTET_OK) << error.message;
  EXPECT_EQ(answer(OCTET_FUSED_QKV_APPEND), latent);
  layout.v = &v;
  layout.k_extra = &extra;
  ASSERT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k, &v, &extra, &error), OCTET_OK) << error.message;
  EXPECT_EQ(answer(OCTET_FUSED_QKV_APPEND), latent);
  octet_sample_args sample{};
  sample.struct_size = sizeof sample;
  EXPECT_EQ(rig.table->fused->sample(rig.stream, &sample, &error), OCTET_UNIMPLEMENTED);
}

}  // namespace
}  // namespace octet
