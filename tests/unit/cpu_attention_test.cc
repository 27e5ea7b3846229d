// The cache and attention of the CPU backend, through its C table, against plain loops.
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "octet/half.h"
#include "octet/kv_cache.h"
#include "tests/unit/cpu_rig.h"

namespace octet {
namespace {

using testing::Error;
using testing::RandomFloats;
using testing::Rig;

struct SideSpec {
  DType data = DType::kI8;
  Scheme scheme = Scheme::kSymmetric;
  Axis axis = Axis::kToken;
  int group = 0;
  DType scale = DType::kF32;
  int dim = 64, rotation = 0;
};

struct Request {
  int queries, kv_len, kv_begin = 0;
};

struct Case {
  std::string name;
  SideSpec k, v;
  int q_heads = 6, kv_heads = 2, page_tokens = 16, offset_block = 0, window = 0;
  bool causal = true, alibi = false, sinks = false, mask = false;
  float softcap = 0;
  std::vector<Request> requests = {{1, 37}, {0, 20}, {21, 40}, {1, 600}, {13, 290}};
  bool scattered = false;     // strides and bases of its own
  bool dense_scales = false;  // then: scales side by side across pages, whose order is wrong inside of fours
};

SideSpec Float(DType type, int dim = 64, int rotation = 0) {
  return {type, Scheme::kNone, Axis::kToken, 0, DType::kNone, dim, rotation};
}

octet_cache_side CSide(const SideSpec& s) {
  octet_cache_side c{};
  c.struct_size = sizeof c;
  c.data_type = static_cast<octet_dtype>(s.data);
  c.scheme = static_cast<int32_t>(s.scheme);
  c.axis = static_cast<int32_t>(s.axis);
  c.group = s.group;
  c.scale_type = static_cast<octet_dtype>(s.scale);
  c.zero_type = s.scheme == Scheme::kAsymmetric ? c.scale_type : 0;
  c.head_dim = s.dim;
  c.rotation = s.rotation;
  return c;
}

// A cache with every token of a case's requests appended, on pages in a shuffled order.
struct World {
  World(Rig& rig_in, const Case& c_in, float poison_request_token = -1) : rig(rig_in), c(c_in) {
    k_side = CSide(c.k);
    v_side = CSide(c.v);
    layout.struct_size = sizeof layout;
    layout.page_tokens = c.page_tokens;
    layout.kv_heads = c.kv_heads;
    layout.offset_block = c.offset_block;
    layout.k = &k_side;
    layout.v = &v_side;
    q_start = page_start = {0};
    for (const Request& r : c.requests) {
      q_start.push_back(q_start.back() + r.queries);
      kv_len.push_back(r.kv_len);
      kv_begin.push_back(r.kv_begin);
      const int n = (r.kv_len - r.kv_begin + c.page_tokens - 1) / c.page_tokens;
      page_start.push_back(page_start.back() + n);
    }
    pages.resize(static_cast<size_t>(page_start.back()));
    std::iota(pages.begin(), pages.end(), 1);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
    if (c.dense_scales) {
      std::iota(pages.begin(), pages.end(), 1);
      for (size_t i = 0; i + 4 <= pages.size(); i += 4) std::swap(pages[i + 1], pages[i + 2]);
    }
    layout.num_pages = page_start.back() + 2;
    Error error;
    EXPECT_EQ(rig.table->quant->choose_layout(rig.device, &layout, &k_side, &v_side, nullptr, &error), OCTET_OK)
        << error.message;
    if (c.scattered) Scatter();

    layer.struct_size = sizeof layer;
    layer.cache = rig.Alloc(layout.layer_bytes + 128);
    layer.cache_offset = 128;
    if (c.offset_block > 0) {
      const int64_t blocks = 1000 / c.offset_block + 2;
      offsets = RandomFloats(static_cast<size_t>(blocks * c.kv_heads * c.k.dim), 3, 4.0f);
      offset_tensor = rig.Put(offsets, {blocks, c.kv_heads, c.k.dim});
      layer.k_offset = &offset_tensor;
    }
    SetStatic(c.k, 0.03f, &k_scale, &k_zero, &layer.k_scale, &layer.k_zero);
    SetStatic(c.v, 0.025f, &v_scale, &v_zero, &layer.v_scale, &layer.v_zero);
    if (c.sinks) {
      sinks = RandomFloats(static_cast<size_t>(c.q_heads), 5);
      sink_tensor = rig.Put(sinks, {c.q_heads});
      layer.sinks = &sink_tensor;
    }

    for (size_t r = 0; r < c.requests.size(); ++r) {
      for (int p = c.requests[r].kv_begin; p < kv_len[r]; ++p) {
        const int i = p - c.requests[r].kv_begin;
        slots.push_back(int64_t{pages[static_cast<size_t>(page_start[r] + i / c.page_tokens)]} * c.page_tokens +
                        i % c.page_tokens);
        positions.push_back(p);
      }
    }
    tokens = static_cast<int64_t>(slots.size());
    k_rows = RandomFloats(static_cast<size_t>(tokens * c.kv_heads * c.k.dim), 1);
    v_rows = RandomFloats(static_cast<size_t>(tokens * c.kv_heads * c.v.dim), 2);
    if (poison_request_token >= 0) k_rows[0] = std::nanf("");
    k_tensor = rig.Put(k_rows, {tokens, c.kv_heads, c.k.dim});
    v_tensor = rig.Put(v_rows, {tokens, c.kv_heads, c.v.dim});
    slot_tensor = rig.Put(DType::kI64, slots, {tokens});
    position_tensor = rig.Put(DType::kI32, positions, {tokens});
    octet_kv_tokens t = Tokens(&k_tensor, &v_tensor);
    EXPECT_EQ(rig.table->quant->append(rig.stream, &layout, &layer, &t, &error), OCTET_OK) << error.message;
  }

  octet_kv_tokens Tokens(const octet_tensor* k, const octet_tensor* v) const {
    octet_kv_tokens t{};
    t.struct_size = sizeof t;
    t.k = k;
    t.v = v;
    t.slots = &slot_tensor;
    t.positions = &position_tensor;
    return t;
  }

  // Codes of a token inside out, scales and zeros of all in places of their own.
  void Scatter() {
    uint64_t base = 64;
    for (octet_cache_side* s : {&k_side, &v_side}) {
      const int64_t row = s->head_dim * ElementBytes(static_cast<DType>(s->data_type)) + 24;
      s->data_base = base;
      s->data_stride[1] = row;
      s->data_stride[2] = row * layout.kv_heads;
      s->data_stride[0] = s->data_stride[2] * layout.page_tokens + 40;
      base += static_cast<uint64_t>(s->data_stride[0] * layout.num_pages);
      for (auto [b, stride] : {std::pair{&s->scale_base, s->scale_stride}, std::pair{&s->zero_base, s->zero_stride}}) {
        *b = base + 4;
        stride[1] = s->group > 0 ? s->head_dim / s->group * 4 + 4 : 8;
        stride[2] = stride[1] * layout.kv_heads;
        stride[0] = stride[2] * layout.page_tokens + 4;
        if (c.dense_scales) {
          stride[1] = 4 * layout.page_tokens;
          stride[2] = 4;
          stride[0] = stride[1] * layout.kv_heads;
        }
        base += static_cast<uint64_t>(stride[0] * layout.num_pages) + 8;
      }
    }
    layout.layer_bytes = base;
  }

  void SetStatic(const SideSpec& s, float scale, octet_tensor* scale_out, octet_tensor* zero_out,
                 const octet_tensor** scale_field, const octet_tensor** zero_field) {
    if (s.scheme == Scheme::kNone || s.axis == Axis::kToken) return;
    const int64_t n = s.axis == Axis::kTensor ? 1 : s.axis == Axis::kHead ? c.kv_heads : c.kv_heads * s.dim;
    std::vector<float> scales, zeros;
    for (int64_t i = 0; i < n; ++i) {
      scales.push_back(scale * (1.0f + 0.1f * static_cast<float>(i % 3)));
      zeros.push_back(0.01f * static_cast<float>(i % 5));
    }
    const auto put = [&](const std::vector<float>& x) {
      return s.axis == Axis::kChannel ? rig.Put(x, {c.kv_heads, s.dim}) : rig.Put(x, {n});
    };
    *scale_out = put(scales);
    *scale_field = scale_out;
    if (s.scheme != Scheme::kAsymmetric) return;
    *zero_out = put(zeros);
    *zero_field = zero_out;
  }

  Rig& rig;
  const Case& c;
  octet_kv_layout layout{};
  octet_cache_side k_side{}, v_side{};
  octet_kv_layer layer{};
  octet_tensor offset_tensor{}, k_scale{}, k_zero{}, v_scale{}, v_zero{}, sink_tensor{};
  octet_tensor k_tensor{}, v_tensor{}, slot_tensor{}, position_tensor{};
  std::vector<float> offsets, sinks, k_rows, v_rows;
  std::vector<int32_t> q_start, kv_len, kv_begin, page_start, pages, positions;
  std::vector<int64_t> slots;
  int64_t tokens = 0;
};

struct Output {
  std::vector<float> out, lse;
};

Output Attend(World& w, const std::vector<float>& q, const octet_tensor* mask, const octet_tensor* alibi,
              bool exact = false) {
  Rig& rig = w.rig;
  octet_limits limits{};
  limits.struct_size = sizeof limits;
  limits.requests = static_cast<int32_t>(w.kv_len.size());
  limits.query_tokens = w.q_start.back();
  limits.kv_len = *std::max_element(w.kv_len.begin(), w.kv_len.end());
  limits.pages = w.page_start.back();
  octet_attention_desc d{};
  d.struct_size = sizeof d;
  d.q_heads = w.c.q_heads;
  d.causal = w.c.causal ? 1 : 0;
  d.window = w.c.window;
  d.scale = 1.0f / std::sqrt(static_cast<float>(w.c.k.dim));
  d.softcap = w.c.softcap;
  d.q_type = d.out_type = OCTET_F32;
  d.kv = &w.layout;
  d.limits = &limits;
  d.alibi_slopes = alibi;
  d.compute = exact ? OCTET_COMPUTE_EXACT : OCTET_COMPUTE_BEST;
  octet_support support{};
  support.struct_size = sizeof support;
  Error error;
  EXPECT_EQ(rig.table->attention->supports(rig.device, &d, &support, &error), OCTET_OK) << error.message;
  EXPECT_EQ(support.level, 2) << support.reason;
  octet_plan* plan = nullptr;
  EXPECT_EQ(rig.table->attention->make_plan(rig.device, &d, rig.Alloc(support.workspace_bytes), 0, &plan, &error),
            OCTET_OK)
      << error.message;
  octet_batch b{};
  b.struct_size = sizeof b;
  b.requests = limits.requests;
  b.q_start = w.q_start.data();
  b.kv_len = w.kv_len.data();
  b.kv_begin = w.kv_begin.data();
  b.page_start = w.page_start.data();
  b.pages = w.pages.data();
  EXPECT_EQ(rig.table->attention->refill(rig.stream, plan, &b, &error), OCTET_OK) << error.message;
  const octet_tensor q_tensor = rig.Put(q, {limits.query_tokens, w.c.q_heads, w.c.k.dim});
  const octet_tensor out = rig.New({limits.query_tokens, w.c.q_heads, w.c.v.dim});
  const octet_tensor lse = rig.New({limits.query_tokens, w.c.q_heads});
  octet_attention_args args{};
  args.struct_size = sizeof args;
  args.q = &q_tensor;
  args.out = &out;
  args.lse = &lse;
  args.mask = mask;
  EXPECT_EQ(rig.table->attention->run(rig.stream, plan, &w.layer, &args, &error), OCTET_OK) << error.message;
  rig.table->attention->release_plan(plan);
  return {rig.Get(out), rig.Get(lse)};
}

// Everything a run of a case needs beside the cache.
struct Inputs {
  Inputs(Rig& rig, const World& w)
      : q(RandomFloats(static_cast<size_t>(w.q_start.back() * w.c.q_heads * w.c.k.dim), 9)),
        slopes(RandomFloats(static_cast<size_t>(w.c.q_heads), 4, 0.1f)) {
    for (const Request& r : w.c.requests) columns = std::max(columns, r.queries);
    for (int64_t i = 0; i < int64_t{w.q_start.back()} * columns; ++i) mask.push_back(i % 3 != 1);
    mask_tensor = rig.Put(DType::kI8, mask, {w.q_start.back(), columns});
    slope_tensor = rig.Put(slopes, {w.c.q_heads});
    mask_or_null = w.c.mask ? &mask_tensor : nullptr;
    slopes_or_null = w.c.alibi ? &slope_tensor : nullptr;
  }
  std::vector<float> q, slopes;
  std::vector<int8_t> mask;
  int columns = 0;
  octet_tensor mask_tensor, slope_tensor;
  const octet_tensor *mask_or_null, *slopes_or_null;
};

std::pair<std::vector<float>, std::vector<float>> GatherAll(World& w) {
  const octet_tensor k = w.rig.New({w.tokens, w.c.kv_heads, w.c.k.dim});
  const octet_tensor v = w.rig.New({w.tokens, w.c.kv_heads, w.c.v.dim});
  octet_kv_tokens t = w.Tokens(&k, &v);
  Error error;
  EXPECT_EQ(w.rig.table->quant->gather(w.rig.stream, &w.layout, &w.layer, &t, &error), OCTET_OK) << error.message;
  return {w.rig.Get(k), w.rig.Get(v)};
}

// Queries and weights in 16 bits, where INT8 is summed in integers: a channel of q is off by 2^-17 of the row's largest
// on the average, so a score of 64 channels with K of 4, as the offsets here make it, by 1e-4; the cache's own rounding
// is 200 times that. In f32 only roundings of 2^-24 add up.
constexpr double kBestBound = 6e-4, kExactBound = 2e-5;

// The formula in double on the gathered rows.
void ExpectMatchesFormula(World& w, const Inputs& in, const Output& got, double bound) {
  const Case& c = w.c;
  const auto [k, v] = GatherAll(w);
  int64_t first_token = 0;
  for (size_t r = 0; r < c.requests.size(); ++r) {
    const Request& request = c.requests[r];
    for (int i = 0; i < request.queries; ++i) {
      const int64_t row = w.q_start[r] + i, position = request.kv_len - request.queries + i;
      for (int h = 0; h < c.q_heads; ++h) {
        const int kv_head = h / (c.q_heads / c.kv_heads);
        std::vector<double> scores, out(static_cast<size_t>(c.v.dim));
        std::vector<int64_t> keys;
        for (int64_t p = request.kv_begin; p < request.kv_len; ++p) {
          const int64_t j = p - (request.kv_len - request.queries);
          if (c.window > 0 && p <= position - c.window) continue;
          if (c.mask && j >= 0 ? in.mask[static_cast<size_t>(row * in.columns + j)] == 0 : c.causal && p > position) {
            continue;
          }
          const int64_t token = first_token + p - request.kv_begin;
          double s = 0;
          for (int d = 0; d < c.k.dim; ++d) {
            s += double{in.q[static_cast<size_t>((row * c.q_heads + h) * c.k.dim + d)]} *
                 double{k[static_cast<size_t>((token * c.kv_heads + kv_head) * c.k.dim + d)]};
          }
          s *= double{1.0f / std::sqrt(static_cast<float>(c.k.dim))};
          if (c.softcap > 0) s = double{c.softcap} * std::tanh(s / double{c.softcap});
          if (c.alibi) s += double{in.slopes[static_cast<size_t>(h)]} * static_cast<double>(p - position);
          scores.push_back(s);
          keys.push_back(token);
        }
        double top = c.sinks ? double{w.sinks[static_cast<size_t>(h)]} : -std::numeric_limits<double>::infinity();
        for (double s : scores) top = std::max(top, s);
        double sum = c.sinks ? std::exp(double{w.sinks[static_cast<size_t>(h)]} - top) : 0;
        for (size_t n = 0; n < keys.size(); ++n) {
          const double weight = std::exp(scores[n] - top);
          sum += weight;
          for (int d = 0; d < c.v.dim; ++d) {
            out[static_cast<size_t>(d)] +=
                weight * double{v[static_cast<size_t>((keys[n] * c.kv_heads + kv_head) * c.v.dim + d)]};
          }
        }
        for (int d = 0; d < c.v.dim; ++d) {
          const double want = keys.empty() ? 0 : out[static_cast<size_t>(d)] / sum;
          ASSERT_NEAR(got.out[static_cast<size_t>((row * c.q_heads + h) * c.v.dim + d)], want, bound)
              << c.name << " request " << r << " query " << i << " head " << h << " channel " << d;
        }
        const float lse = got.lse[static_cast<size_t>(row * c.q_heads + h)];
        if (keys.empty() && !c.sinks) {
          ASSERT_EQ(lse, -std::numeric_limits<float>::infinity());
        } else {
          ASSERT_NEAR(lse, top + std::log(sum), bound) << c.name << " request " << r << " query " << i;
        }
      }
    }
    first_token += request.kv_len - request.kv_begin;
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  cases.push_back({.name = "default", .k = {.rotation = 64}, .v = {}});
  cases.push_back({.name = "offsets", .k = {.rotation = 64}, .v = {.rotation = 64}, .offset_block = 64});
  cases.push_back({.name = "offsets_of_one", .k = {.rotation = 8}, .v = {}, .offset_block = 1});
  cases.push_back({.name = "pages out of order inside of a run of scales",
                   .k = {.rotation = 64},
                   .v = {},
                   .q_heads = 3,
                   .kv_heads = 1,
                   .page_tokens = 4,
                   .scattered = true,
                   .dense_scales = true});
  cases.push_back({.name = "scattered", .k = {.rotation = 64}, .v = {.group = 32}, .scattered = true});
  cases.push_back({.name = "f32", .k = Float(DType::kF32), .v = Float(DType::kF32)});
  cases.push_back({.name = "f16_bf16", .k = Float(DType::kF16, 64, 32), .v = Float(DType::kBF16, 40)});
  cases.push_back({.name = "int8_bf16", .k = {.dim = 96, .rotation = 32}, .v = Float(DType::kBF16)});
  cases.push_back({.name = "groups", .k = {.group = 8}, .v = {.group = 16, .scale = DType::kBF16, .rotation = 64}});
  cases.push_back({.name = "asymmetric",
                   .k = {.scheme = Scheme::kAsymmetric, .group = 32},
                   .v = {.scheme = Scheme::kAsymmetric, .scale = DType::kBF16}});
  cases.push_back({.name = "static_tensor", .k = {.axis = Axis::kTensor}, .v = {.axis = Axis::kHead}});
  cases.push_back({.name = "static_channel",
                   .k = {.scheme = Scheme::kAsymmetric, .axis = Axis::kChannel},
                   .v = {.scheme = Scheme::kAsymmetric, .axis = Axis::kChannel}});
  cases.push_back({.name = "window",
                   .k = {},
                   .v = {},
                   .page_tokens = 5,
                   .window = 30,
                   .requests = {{1, 300, 270}, {4, 200, 165}, {40, 64}, {2, 2}}});
  cases.push_back({.name = "not_causal", .k = {}, .v = {}, .page_tokens = 1, .causal = false, .softcap = 2.0f});
  cases.push_back(
      {.name = "mask", .k = {}, .v = {}, .window = 100, .mask = true, .requests = {{7, 20}, {1, 1}, {5, 400}}});
  // Chunks that end where a tile of keys does.
  cases.push_back({.name = "mask of whole tiles", .k = {}, .v = {}, .mask = true, .requests = {{7, 320}, {5, 512}}});
  cases.push_back({.name = "extras", .k = {}, .v = {}, .q_heads = 14, .alibi = true, .sinks = true, .softcap = 30.0f});
  cases.push_back({.name = "wide",
                   .k = {.dim = 576, .rotation = 64},
                   .v = {.dim = 512},
                   .q_heads = 16,
                   .kv_heads = 1,
                   .requests = {{3, 70}, {9, 300}}});
  // Integer sums: panels of 4, 8 and 16 rows, heads of several segments, pages that cut blocks of keys.
  cases.push_back({.name = "group_1", .k = {.dim = 128, .rotation = 128}, .v = {.dim = 128}, .q_heads = 2});
  cases.push_back({.name = "group_7", .k = {.rotation = 64}, .v = {}, .q_heads = 14, .offset_block = 24});
  cases.push_back({.name = "group_8",
                   .k = {.scale = DType::kBF16, .dim = 256, .rotation = 64},
                   .v = {.scale = DType::kBF16, .dim = 192},
                   .q_heads = 8,
                   .kv_heads = 1,
                   .page_tokens = 20});
  cases.push_back({.name = "group_16",
                   .k = {.dim = 72, .rotation = 8},
                   .v = {.dim = 136},
                   .q_heads = 16,
                   .kv_heads = 1,
                   .page_tokens = 32,
                   .window = 70,
                   .scattered = true});
  cases.push_back({.name = "narrow", .k = {.dim = 8}, .v = {.dim = 24}, .q_heads = 1, .kv_heads = 1, .page_tokens = 7});
  return cases;
}

TEST(CpuAttentionTest, MatchesFormulaAndItselfAtOtherThreadCounts) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Output first;
    for (int threads : {2, 1, 3}) {
      Rig rig(threads);
      World w(rig, c);
      const Inputs in(rig, w);
      const Output got = Attend(w, in.q, in.mask_or_null, in.slopes_or_null);
      if (threads == 2) {
        ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, in, got, kBestBound));
        first = got;
        const Output exact = Attend(w, in.q, in.mask_or_null, in.slopes_or_null, true);
        ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, in, exact, kExactBound));
      } else {
        EXPECT_EQ(std::memcmp(got.out.data(), first.out.data(), first.out.size() * 4), 0);
        EXPECT_EQ(std::memcmp(got.lse.data(), first.lse.data(), first.lse.size() * 4), 0);
      }
    }
  }
}

// Device options of the instruction sets among `isas` that this processor runs.
std::vector<std::string> Runnable(const std::vector<std::string>& isas) {
  std::vector<std::string> options;
  for (const std::string& isa : isas) {
    Error error;
    const octet_backend_v1* table = octet_backend_query_v1(testing::SharedHost(2), &error);
    octet_device* probe = nullptr;
    const octet_code code = table->device->open(0, ("isa=" + isa).c_str(), &probe, &error);
    if (code == OCTET_UNAVAILABLE || code == OCTET_INVALID_ARGUMENT) continue;  // a build for another processor
    EXPECT_EQ(code, OCTET_OK) << error.message;
    table->device->close(probe);
    options.push_back("isa=" + isa);
  }
  return options;
}

// Those that attend INT8 in integers.
std::vector<std::string> InIntegers() { return Runnable({"v3", "avxvnni", "v4", "vnni", "amx"}); }

TEST(CpuAttentionTest, EveryInstructionSetMatchesTheFormula) {
  for (const std::string& isa : InIntegers()) {
    SCOPED_TRACE(isa);
    for (const Case& c : Cases()) {
      if (c.name == "wide" || c.name == "groups" || c.name == "asymmetric") continue;
      Rig rig(2, isa.c_str());
      World w(rig, c);
      const Inputs in(rig, w);
      const Output got = Attend(w, in.q, in.mask_or_null, in.slopes_or_null);
      ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, in, got, kBestBound));
    }
  }
  for (const std::string& isa : Runnable({"v2", "v3", "v4", "portable"})) {
    SCOPED_TRACE(isa);
    for (const Case& c : Cases()) {
      if (c.name != "offsets" && c.name != "f16_bf16" && c.name != "extras") continue;
      Rig rig(2, isa.c_str());
      World w(rig, c);
      const Inputs in(rig, w);
      const Output got = Attend(w, in.q, in.mask_or_null, in.slopes_or_null, true);
      ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, in, got, kExactBound));
    }
  }
}

// The longest rows with queries, codes and weights at the ends of their ranges, codes of -128 among them, which no
// append writes: sums are the largest that there are.
TEST(CpuAttentionTest, TheLargestSumsDoNotOverflow) {
  for (const std::string& isa : InIntegers()) {
    SCOPED_TRACE(isa);
    Case c{.name = "largest",
           .k = {.dim = 256},
           .v = {.dim = 256},
           .q_heads = 7,
           .kv_heads = 1,
           .requests = {{1, 512}, {3, 300}}};
    Rig rig(2, isa.c_str());
    World w(rig, c);
    Inputs in(rig, w);
    for (size_t i = 0; i < in.q.size(); ++i) in.q[i] = i % 1792 < 1024 ? 0.25f : -0.25f;
    const auto fill = [&](const octet_cache_side& s, int8_t code) {
      uint8_t* const layer = rig.Map(w.layer.cache) + w.layer.cache_offset;
      for (int page = 0; page < w.layout.num_pages; ++page) {
        for (int t = 0; t < c.page_tokens; ++t) {
          const auto page_at = static_cast<uint64_t>(page), token_at = static_cast<uint64_t>(t);
          const auto offset = [&](const int64_t* stride) {
            return page_at * static_cast<uint64_t>(stride[0]) + token_at * static_cast<uint64_t>(stride[2]);
          };
          std::memset(layer + s.data_base + offset(s.data_stride), code, 256);
          const float scale = 0.01f;
          std::memcpy(layer + s.scale_base + offset(s.scale_stride), &scale, sizeof scale);
        }
      }
    };
    for (const int code : {127, -128}) {
      fill(w.k_side, static_cast<int8_t>(code));
      fill(w.v_side, static_cast<int8_t>(code));
      ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, in, Attend(w, in.q, nullptr, nullptr), kBestBound)) << code;
    }
  }
}

// A query gives the same bytes in a prefill, in a decode step, and beside other requests.
void ExpectTheSameInAnyBatch(const std::string& isa, int q_heads) {
  Case c{.name = "batch",
         .k = {.rotation = 64},
         .v = {},
         .q_heads = q_heads,
         .offset_block = 64,
         .requests = {{700, 700}}};
  Rig rig(2, isa.c_str());
  World w(rig, c);
  const Inputs in(rig, w);
  const Output whole = Attend(w, in.q, nullptr, nullptr);
  const size_t row = static_cast<size_t>(c.q_heads * c.v.dim), q_row = static_cast<size_t>(c.q_heads * c.k.dim);
  for (int position : {0, 255, 256, 699}) {
    const auto p = static_cast<size_t>(position);
    w.q_start = {0, 1};
    w.kv_len = {position + 1};
    const std::vector<float> q(in.q.begin() + static_cast<int64_t>(p * q_row),
                               in.q.begin() + static_cast<int64_t>((p + 1) * q_row));
    const Output one = Attend(w, q, nullptr, nullptr);
    EXPECT_EQ(std::memcmp(one.out.data(), whole.out.data() + p * row, row * 4), 0) << position;
    w.q_start = {0, 1, 2};
    w.kv_len = {position + 1, 600};
    w.kv_begin = {0, 0};
    w.page_start = {0, w.page_start[1], w.page_start[1] * 2};
    std::vector<int32_t> pages = w.pages;
    w.pages.insert(w.pages.end(), pages.begin(), pages.end());
    std::vector<float> two = q;
    two.insert(two.end(), in.q.begin(), in.q.begin() + static_cast<int64_t>(q_row));
    const Output pair = Attend(w, two, nullptr, nullptr);
    EXPECT_EQ(std::memcmp(pair.out.data(), one.out.data(), row * 4), 0) << position;
    w.pages = pages;
    w.page_start.pop_back();
    w.kv_begin.pop_back();
  }
}

TEST(CpuAttentionTest, ResultDoesNotDependOnTheBatch) {
  for (const std::string& isa : Runnable({"v2", "v3", "avxvnni", "v4", "vnni", "amx", "portable"})) {
    SCOPED_TRACE(isa);
    for (const int q_heads : {6, 14}) ExpectTheSameInAnyBatch(isa, q_heads);
  }
}

// What 16 bits cannot hold takes the f32 form, and leaves the other rows' bytes alone.
void ExpectHostileRowsRightAndAlone(const std::string& isa) {
  for (const int q_heads : {6, 14, 32}) {
    Case c{.name = "hostile", .k = {.rotation = 64}, .v = {}, .q_heads = q_heads, .requests = {{20, 600}}};
    Rig rig(2, isa.c_str());
    World w(rig, c);
    const Inputs in(rig, w);
    const Output clean = Attend(w, in.q, nullptr, nullptr);
    const auto row_of = [&](int query, int head) { return static_cast<size_t>((query * q_heads + head) * 64); };
    const auto expect_same = [&](const Output& got, auto&& changed) {
      for (int query = 0; query < 20; ++query) {
        for (int head = 0; head < q_heads; ++head) {
          if (changed(query, head)) continue;
          const size_t at = row_of(query, head);
          ASSERT_EQ(std::memcmp(&got.out[at], &clean.out[at], 64 * sizeof(float)), 0) << query << " " << head;
        }
      }
    };
    Inputs small = in;
    for (size_t d = 0; d < 64; ++d) small.q[row_of(5, 2) + d] *= 1e-36f;
    const Output with_small = Attend(w, small.q, nullptr, nullptr);
    ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, small, with_small, kBestBound));
    expect_same(with_small, [](int query, int head) { return query == 5 && head == 2; });

    std::vector<float> q = in.q;
    q[row_of(7, 1) + 3] = std::nanf("");
    const Output with_nan = Attend(w, q, nullptr, nullptr);
    EXPECT_TRUE(std::isnan(with_nan.out[row_of(7, 1)]));
    expect_same(with_nan, [](int query, int head) { return query == 7 && head == 1; });

    const auto v_scale_at = [&](int position) {
      const int64_t page = w.pages[static_cast<size_t>(position / 16)];
      return rig.Map(w.layer.cache) + w.layer.cache_offset + w.v_side.scale_base +
             static_cast<uint64_t>(page * w.v_side.scale_stride[0] + position % 16 * w.v_side.scale_stride[2]);
    };
    uint8_t* const scale = v_scale_at(590);  // which queries from 10 on see
    float kept;
    std::memcpy(&kept, scale, sizeof kept);
    const auto sees = [&](int query, int head) { return query >= 10 && head < q_heads / 2; };
    for (const float value : {-kept, std::nanf(""), std::numeric_limits<float>::infinity(), 1e36f}) {
      std::memcpy(scale, &value, sizeof value);
      const Output got = Attend(w, in.q, nullptr, nullptr);
      expect_same(got, sees);
      if (value == -kept) {
        ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, in, got, kBestBound));
      }
      EXPECT_NE(std::memcmp(&got.out[row_of(10, 0)], &clean.out[row_of(10, 0)], 64 * sizeof(float)), 0) << value;
    }
    // All scales so small that their inverse is not a number of f32.
    for (int position = 0; position < 600; ++position) {
      const float tiny = 1e-35f;
      std::memcpy(v_scale_at(position), &tiny, sizeof tiny);
    }
    const Output tiny = Attend(w, in.q, nullptr, nullptr);
    EXPECT_GT(std::fabs(tiny.out[0]), 0.0f);
    ASSERT_NO_FATAL_FAILURE(ExpectMatchesFormula(w, in, tiny, kBestBound));
  }
}

TEST(CpuAttentionTest, RowsThatIntegersCannotHoldAreRightAndAlone) {
  for (const std::string& isa : InIntegers()) {
    SCOPED_TRACE(isa);
    ExpectHostileRowsRightAndAlone(isa);
  }
}

// Token 0 of the first request holds a NaN.
TEST(CpuAttentionTest, NotFiniteKeySurfacesWhereItIsVisibleOnly) {
  for (const std::string& isa : InIntegers()) {
    SCOPED_TRACE(isa);
    for (const SideSpec& k :
         {SideSpec{.rotation = 64}, Float(DType::kF32), Float(DType::kBF16), SideSpec{.group = 32}}) {
      for (int window : {0, 4}) {
        Case c{.name = "nan", .k = k, .v = {}, .window = window, .requests = {{12, 12}, {3, 40}}};
        Rig rig(2, isa.c_str());
        World w(rig, c, 0);
        const Inputs in(rig, w);
        const Output got = Attend(w, in.q, nullptr, nullptr);
        for (int t = 0; t < 15; ++t) {
          const bool sees = t < 12 && (window == 0 || t < window);
          for (int h = 0; h < 3; ++h) {  // the heads of KV head 0
            for (int d = 0; d < 64; ++d) {
              ASSERT_EQ(std::isnan(got.out[static_cast<size_t>((t * 6 + h) * 64 + d)]), sees) << t << " " << window;
            }
          }
          ASSERT_FALSE(std::isnan(got.out[static_cast<size_t>((t * 6 + 3) * 64)]));
        }
      }
    }
  }
}

TEST(CpuAttentionTest, NotFiniteValueSurfacesWhereItIsVisibleOnly) {
  for (const std::string& isa : InIntegers()) {
    SCOPED_TRACE(isa);
    for (const SideSpec& v : {SideSpec{}, Float(DType::kF16), SideSpec{.scheme = Scheme::kAsymmetric, .group = 8}}) {
      Case c{.name = "nan", .k = {}, .v = v, .window = 4, .requests = {{12, 12}}};
      Rig rig(2, isa.c_str());
      World w(rig, c);
      w.v_rows[0] = std::numeric_limits<float>::infinity();
      const octet_tensor bad = rig.Put(w.v_rows, {w.tokens, c.kv_heads, c.v.dim});
      octet_kv_tokens t = w.Tokens(&w.k_tensor, &bad);
      Error error;
      ASSERT_EQ(rig.table->quant->append(rig.stream, &w.layout, &w.layer, &t, &error), OCTET_OK) << error.message;
      const Inputs in(rig, w);
      const Output got = Attend(w, in.q, nullptr, nullptr);
      for (int row = 0; row < 12; ++row) {
        EXPECT_EQ(std::isfinite(got.out[static_cast<size_t>(row * 6 * 64)]), row >= 4) << row;
      }
    }
  }
}

#if !OCTET_TEST_SANITIZED  // which makes frames larger
// The contract promises threads no larger stack; rows that take the f32 form need most of it.
TEST(CpuAttentionTest, TheSmallestStackIsEnough) {
  for (const std::string& isa : InIntegers()) {
    SCOPED_TRACE(isa);
    Case c{.name = "stack",
           .k = {.dim = 256, .rotation = 256},
           .v = {.dim = 256},
           .q_heads = 12,
           .offset_block = 64,
           .requests = {{20, 300}}};
    Rig rig(1, isa.c_str());
    World w(rig, c);
    const Inputs in(rig, w);
    std::vector<float> q = in.q;
    q[3] = std::nanf("");
    struct Call {
      World& w;
      const std::vector<float>& q;
      Output got;
    } call{w, q, {}};
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    constexpr size_t kOfTheTest = 64 << 10;
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, OCTET_MIN_STACK_BYTES + kOfTheTest), 0);
    pthread_t thread;
    ASSERT_EQ(pthread_create(
                  &thread, &attributes,
                  [](void* arg) -> void* {
                    auto& work = *static_cast<Call*>(arg);
                    work.got = Attend(work.w, work.q, nullptr, nullptr);
                    return nullptr;
                  },
                  &call),
              0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    EXPECT_TRUE(std::isnan(call.got.out[0]));
    EXPECT_TRUE(std::isfinite(call.got.out[static_cast<size_t>(c.q_heads * c.v.dim)]));
  }
}
#endif

TEST(CpuAttentionTest, RefusesWhatItCannotDoWithAReason) {
  Rig rig;
  Case c{.name = "refused", .k = {}, .v = {}, .requests = {{1, 1}}};
  World w(rig, c);
  octet_support support{};
  support.struct_size = sizeof support;
  octet_kv_layout mla = w.layout;
  mla.v = mla.k;
  ASSERT_EQ(rig.table->quant->supports(rig.device, &mla, OCTET_F32, &support, nullptr), OCTET_OK);
  EXPECT_EQ(support.level, 2);
  mla.offset_block = 64;
  ASSERT_EQ(rig.table->quant->supports(rig.device, &mla, OCTET_F32, &support, nullptr), OCTET_OK);
  EXPECT_EQ(support.level, 0);
  EXPECT_THAT(support.reason, ::testing::HasSubstr("offset_block 0"));
  octet_cache_side extra = w.k_side;
  extra.data_type = OCTET_I8;
  extra.scheme = OCTET_SCHEME_SYMMETRIC;
  extra.axis = OCTET_AXIS_HEAD;
  extra.group = 0;
  extra.scale_type = OCTET_F32;
  extra.zero_type = 0;
  octet_kv_layout static_extra = w.layout;
  static_extra.k_extra = &extra;
  ASSERT_EQ(rig.table->quant->supports(rig.device, &static_extra, OCTET_F32, &support, nullptr), OCTET_OK);
  EXPECT_EQ(support.level, 0);
  EXPECT_THAT(support.reason, ::testing::HasSubstr("extra K cache: static scales"));
  octet_kv_layout small = w.layout;
  small.layer_bytes /= 2;
  ASSERT_EQ(rig.table->quant->supports(rig.device, &small, OCTET_F32, &support, nullptr), OCTET_OK);
  EXPECT_EQ(support.level, 0);
  Error error;
  octet_kv_tokens t = w.Tokens(&w.k_tensor, &w.v_tensor);
  EXPECT_EQ(rig.table->quant->append(rig.stream, &small, &w.layer, &t, &error), OCTET_INVALID_ARGUMENT);
  octet_limits limits{};
  limits.struct_size = sizeof limits;
  limits.requests = 1;
  limits.query_tokens = 1 << 30;
  limits.kv_len = 1 << 30;
  limits.pages = 1 << 20;
  octet_attention_desc d{};
  d.struct_size = sizeof d;
  d.q_heads = 4 * w.layout.kv_heads;
  d.q_type = d.out_type = OCTET_F32;
  d.kv = &w.layout;
  d.limits = &limits;
  ASSERT_EQ(rig.table->attention->supports(rig.device, &d, &support, nullptr), OCTET_OK);
  EXPECT_EQ(support.level, 0);
  EXPECT_THAT(support.reason, ::testing::HasSubstr("query rows per KV head"));
}

}  // namespace
}  // namespace octet
