// The fused append of a packed QKV: against double precision, and against the same backend's bias, norm, rope and
// append one after the other. Unsupported where a backend has no such table: core then composes the same results.
//
// Bounds, with u = 2^-24: a norm over n channels may lose (n + 32) u of a value with all that follows, without one
// bias and RoPE 8 u of the terms that they add up; a cache half a step of its codes on top. Two ways to the same row
// both keep these bounds, so their codes differ by at most one, and only where a value lies that near to a tie.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "octet/convert.h"
#include "octet/fused_ops.h"
#include "tests/conformance/dense_common.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/test_cache.h"
#include "tests/reference/canonical.h"

namespace octet::conformance {
namespace {

constexpr int kFusedPages = 6, kPositions = 500;
constexpr float kEps = 1e-6f;

struct FusedCase {
  CacheSpec cache;
  int group = 2;  // query heads per KV head
  bool bias = true, norm = true, interleaved = false;
  int pairs = -1;  // of RoPE; -1: all of head_dim
  int tokens = 24;
  DType q_type = DType::kF32;
  bool q_in_place = false;  // q_out: the columns of Q in qkv

  int q_heads() const { return group * cache.kv_heads; }
  int rope_pairs() const { return pairs >= 0 ? pairs : cache.k_dim / 2; }
  int columns() const { return (q_heads() + cache.kv_heads) * cache.k_dim + cache.kv_heads * cache.v_dim; }
  int first_k() const { return q_heads() * cache.k_dim; }
  int first_v() const { return first_k() + cache.kv_heads * cache.k_dim; }
};

std::string NameOf(const FusedCase& c) {
  std::string name = NameOf(c.cache) + "_g" + std::to_string(c.group) + "_t" + std::to_string(c.tokens);
  if (c.bias) name += "_bias";
  if (c.norm) name += "_norm";
  if (c.pairs >= 0) name += "_pairs" + std::to_string(c.pairs);
  if (c.interleaved) name += "_interleaved";
  if (c.q_type != DType::kF32) name += std::string("_q") + DTypeName(c.q_type);
  if (c.q_in_place) name += "_inplace";
  return name;
}

struct Inputs {
  std::vector<float> qkv, bias, q_gain, k_gain, cos_sin;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

// Rows small enough for the static scales of a TestCache; slots all over the cache, one of them -1.
Inputs InputsOf(const FusedCase& c) {
  Random random(41);
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  Inputs in;
  in.qkv = random.Normals(size(c.tokens * c.columns()), 0.4f);
  in.bias = random.Normals(size(c.columns()), 0.3f);
  for (auto* gain : {&in.q_gain, &in.k_gain}) {
    for (int i = 0; i < c.cache.k_dim; ++i) gain->push_back(random.Uniform(0.3, 0.7));
  }
  for (int p = 0; p < kPositions; ++p) {
    for (int i = 0; i < c.rope_pairs(); ++i) {
      const double angle = p * std::pow(10000.0, -static_cast<double>(i) / c.rope_pairs());
      in.cos_sin.push_back(static_cast<float>(std::cos(angle)));
      in.cos_sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  const std::vector<int32_t> order = random.Permutation(kFusedPages * c.cache.page_tokens);
  for (int t = 0; t < c.tokens; ++t) {
    in.positions.push_back((t * 37 + 5) % kPositions);
    in.slots.push_back(t == 2 ? -1 : order[size(t)]);
  }
  return in;
}

StatusOr<FusedOps*> FusedOf(const FusedCase& c, const KvLayout& layout) {
  FusedOps* fused = TheSubject().device->fused();
  if (fused == nullptr) return Unimplemented("the backend has no fused table");
  AttentionDesc desc;
  desc.q_heads = c.q_heads();
  desc.q_type = c.q_type;
  desc.kv = &layout;
  desc.limits = {1, 512, kPositions, kFusedPages};
  const Support support = fused->Supports(FusedEntry::kQkvAppend, desc);
  if (support.level == 0) return Unimplemented(support.reason);
  return fused;
}

// `heads` heads of `dim` channels from column `first` of packed rows on.
Tensor Heads(const Tensor& rows, int64_t first, int64_t heads, int64_t dim) {
  Tensor t =
      MakeTensor(rows.buffer, DType::kF32, {rows.shape[0], heads, dim}, rows.offset + static_cast<uint64_t>(first) * 4);
  t.stride[0] = rows.stride[0];
  return t;
}

// Columns [begin, end) of packed rows.
std::vector<float> Columns(const FusedCase& c, const std::vector<float>& rows, int begin, int end) {
  std::vector<float> some;
  for (int t = 0; t < c.tokens; ++t) {
    const auto row = rows.begin() + t * c.columns();
    some.insert(some.end(), row + begin, row + end);
  }
  return some;
}

// NaN equals NaN.
bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Everything of a call in device memory, qkv as an input that must not change unless q goes there.
class Call {
 public:
  Call(const FusedCase& c, const Inputs& in)
      : c_(c),
        qkv_(in.qkv.size() * 4),
        bias_(in.bias),
        q_gain_(in.q_gain),
        k_gain_(in.k_gain),
        cos_sin_(in.cos_sin),
        positions_(in.positions),
        slots_(in.slots),
        q_(in.qkv.size() / static_cast<size_t>(c.columns()) * static_cast<size_t>(c.first_k()) *
           static_cast<size_t>(ElementBytes(c.q_type))) {
    const int64_t tokens = c.tokens, dim = c.cache.k_dim;
    const auto* bytes = reinterpret_cast<const uint8_t*>(in.qkv.data());
    qkv_.Write({bytes, bytes + in.qkv.size() * 4});
    qkv = qkv_.View(DType::kF32, {tokens, c.columns()});
    bias = bias_.View(DType::kF32, {c.columns()});
    q_gain = q_gain_.View(DType::kF32, {dim});
    k_gain = k_gain_.View(DType::kF32, {dim});
    cos_sin = cos_sin_.View(DType::kF32, {kPositions, c.rope_pairs(), 2});
    positions = positions_.View(DType::kI32, {tokens});
    slots = slots_.View(DType::kI64, {tokens});
    q = c.q_in_place ? Heads(qkv, 0, c.q_heads(), dim) : q_.View(c.q_type, {tokens, c.q_heads(), dim});
  }

  QkvAppendArgs args() const {
    return {.rope_interleaved = c_.interleaved,
            .qk_norm_eps = kEps,
            .qkv = &qkv,
            .bias = c_.bias ? &bias : nullptr,
            .q_gain = c_.norm ? &q_gain : nullptr,
            .k_gain = c_.norm ? &k_gain : nullptr,
            .cos_sin = &cos_sin,
            .positions = &positions,
            .slots = &slots,
            .q_out = &q};
  }

  std::vector<float> Qkv() const { return qkv_.Floats(DType::kF32); }
  std::vector<float> Q() const { return c_.q_in_place ? Columns(c_, Qkv(), 0, c_.first_k()) : q_.Floats(c_.q_type); }
  const Block& q_memory() const { return q_; }

  Tensor qkv, bias, q_gain, k_gain, cos_sin, positions, slots, q;

 private:
  const FusedCase c_;
  Block qkv_;
  const Block bias_, q_gain_, k_gain_, cos_sin_, positions_, slots_, q_;
};

std::vector<int32_t> FusedPages() {
  std::vector<int32_t> pages;
  for (int i = 0; i < kFusedPages; ++i) pages.push_back(i);
  return pages;
}

// What a call left: q, and the pages in canonical order.
struct Result {
  std::vector<float> q;
  std::vector<uint8_t> pages;

  reference::StoredRow Row(const TestCache& cache, reference::SideIndex which, int64_t slot, int head) const {
    const auto page_bytes = static_cast<size_t>(reference::CanonicalPageBytes(cache.layout()));
    const std::span<const uint8_t> all(pages);
    const auto page = static_cast<size_t>(slot / cache.layout().page_tokens);
    return reference::GetRow(cache.layout(), which, all.subspan(page * page_bytes, page_bytes), head,
                             static_cast<int>(slot % cache.layout().page_tokens));
  }
};

Status RunFused(const FusedCase& c, const Inputs& in, TestCache& cache, Result* result) {
  OCTET_RETURN_IF_ERROR(cache.Init(c.cache, kFusedPages));
  const StatusOr<FusedOps*> fused = FusedOf(c, cache.layout());
  OCTET_RETURN_IF_ERROR(fused.status());
  const Call call(c, in);
  const Status status = (*fused)->QkvAppend(TheSubject().s(), cache.layout(), cache.layer(), call.args());
  Sync();
  OCTET_RETURN_IF_ERROR(Promised("qkv_append", status));
  const int kept = c.q_in_place ? c.first_k() : 0;  // the first column that may not change
  EXPECT_TRUE(SameBytes(Columns(c, call.Qkv(), kept, c.columns()), Columns(c, in.qkv, kept, c.columns())))
      << "qkv, an input, was written to";
  result->q = call.Q();
  return cache.Export(FusedPages(), &result->pages);
}

// The same through the operations that every backend with a dense table has.
Status RunParts(const FusedCase& c, const Inputs& in, TestCache& cache, Result* result) {
  OCTET_RETURN_IF_ERROR(cache.Init(c.cache, kFusedPages));
  const StatusOr<DenseOps*> dense = Dense();
  OCTET_RETURN_IF_ERROR(dense.status());
  FusedCase in_place = c;
  in_place.q_in_place = true;
  const Call call(in_place, in);
  Stream& s = TheSubject().s();
  std::vector<float> biases;
  for (int t = 0; t < c.tokens; ++t) biases.insert(biases.end(), in.bias.begin(), in.bias.end());
  const Block bias_block(biases);
  const Tensor bias = bias_block.View(DType::kF32, {c.tokens, c.columns()});
  const Tensor k = Heads(call.qkv, c.first_k(), c.cache.kv_heads, c.cache.k_dim);
  const Tensor v = Heads(call.qkv, c.first_v(), c.cache.kv_heads, c.cache.v_dim);
  if (c.bias) OCTET_RETURN_IF_ERROR(Promised("add", (*dense)->Add(s, bias, call.qkv)));
  for (const auto& [x, gain] : {std::pair{&call.q, &call.q_gain}, {&k, &call.k_gain}}) {
    if (c.norm)
      OCTET_RETURN_IF_ERROR(Promised("norm", (*dense)->Norm(s, NormKind::kRms, *x, *gain, nullptr, kEps, *x)));
    if (c.rope_pairs() == 0) continue;
    OCTET_RETURN_IF_ERROR(Promised("rope", (*dense)->Rope(s, *x, call.positions, call.cos_sin, c.interleaved)));
  }
  const Status status =
      TheSubject().device->quant().Append(s, cache.layout(), cache.layer(), {&k, &v, &call.slots, &call.positions});
  Sync();
  OCTET_RETURN_IF_ERROR(Promised("append", status));
  result->q = call.Q();
  return cache.Export(FusedPages(), &result->pages);
}

// ---- Against double precision

// `heads` heads from column `first` on, [tokens][heads][dim], and how far f32 may be from them.
struct Expected {
  Vector value, bound;
};
Expected Expect(const FusedCase& c, const Inputs& in, int first, int heads, int dim, const std::vector<float>* gain,
                bool rope) {
  Vector x;
  for (int t = 0; t < c.tokens; ++t) {
    for (int i = first; i < first + heads * dim; ++i) {
      const double bias = c.bias ? in.bias[static_cast<size_t>(i)] : 0.0;
      x.push_back(in.qkv[static_cast<size_t>(t * c.columns() + i)] + bias);
    }
  }
  if (gain != nullptr) x = reference::Norm(NormKind::kRms, x, Doubles(*gain), {}, kEps).value;
  const int pairs = rope ? c.rope_pairs() : 0;
  reference::Sums sums = reference::Rope(x, heads, dim, in.positions, in.cos_sin, pairs, c.interleaved);
  for (double& m : sums.magnitude) m *= (gain != nullptr ? dim + 32 : 8) * kUnit;
  return {std::move(sums.value), std::move(sums.magnitude)};
}

void ExpectNear(const char* what, int token, int head, const Vector& got, const double* want, const double* bound,
                const Vector& step) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), bound[i] + step[i])
        << what << "[" << i << "] of token " << token << " head " << head << ": got " << got[i] << ", want " << want[i];
  }
}

Status EqualsTheReference(const FusedCase& c) {
  const Inputs in = InputsOf(c);
  TestCache cache;
  Result result;
  OCTET_RETURN_IF_ERROR(RunFused(c, in, cache, &result));
  const int k_dim = c.cache.k_dim, v_dim = c.cache.v_dim, kv_heads = c.cache.kv_heads;
  const Expected q = Expect(c, in, 0, c.q_heads(), k_dim, c.norm ? &in.q_gain : nullptr, true);
  const Expected k = Expect(c, in, c.first_k(), kv_heads, k_dim, c.norm ? &in.k_gain : nullptr, true);
  const Expected v = Expect(c, in, c.first_v(), kv_heads, v_dim, nullptr, false);
  for (size_t i = 0; i < q.value.size(); ++i) {
    const double allowed = q.bound[i] + 2 * reference::Ulp(c.q_type, q.value[i]);
    if (!(std::abs(result.q[i] - q.value[i]) <= allowed)) {
      ADD_FAILURE() << "q element " << i << ": got " << result.q[i] << ", want " << q.value[i];
      break;
    }
  }
  for (int t = 0; t < c.tokens; ++t) {
    const int64_t slot = in.slots[static_cast<size_t>(t)];
    const int position = in.positions[static_cast<size_t>(t)];
    for (int h = 0; h < kv_heads && slot >= 0; ++h) {
      const auto k_row = result.Row(cache, reference::kSideK, slot, h),
                 v_row = result.Row(cache, reference::kSideV, slot, h);
      const size_t k_at = static_cast<size_t>((t * kv_heads + h) * k_dim);
      const size_t v_at = static_cast<size_t>((t * kv_heads + h) * v_dim);
      const Vector k_got = cache.DecodeK({k_row}, h, position), v_got = cache.DecodeV({k_row}, v_row, h);
      Vector k_step = cache.StepBound(reference::kSideK, k_row, h),
             v_step = cache.StepBound(reference::kSideV, v_row, h);
      // Adding the K offset back rounds once more; it is at most a few times the spread of the keys.
      for (size_t i = 0; i < k_step.size(); ++i) {
        k_step[i] += 0x1p-22 * (std::abs(k_got[i]) + (c.cache.offset_block > 0 ? 32.0 : 0.0));
      }
      ExpectNear("K", t, h, k_got, &k.value[k_at], &k.bound[k_at], k_step);
      ExpectNear("V", t, h, v_got, &v.value[v_at], &v.bound[v_at], v_step);
      if (testing::Test::HasFatalFailure()) return OkStatus();
    }
  }
  return OkStatus();
}

// ---- Against the parts

// How many codes differ; more than rounding makes of them is a failure.
int Differences(const CacheSide& side, const reference::StoredRow& a, const reference::StoredRow& b) {
  int different = 0;
  const auto width = static_cast<size_t>(ElementBytes(side.data_type));
  for (size_t i = 0; i < a.data.size() / width; ++i) {
    if (side.quantized()) {
      const int distance = std::abs(static_cast<int8_t>(a.data[i]) - static_cast<int8_t>(b.data[i]));
      EXPECT_LE(distance, 1) << "code " << i;
      different += distance != 0 ? 1 : 0;
      continue;
    }
    const double x = reference::LoadFloat(side.data_type, &a.data[i * width]);
    const double y = reference::LoadFloat(side.data_type, &b.data[i * width]);
    EXPECT_LE(std::abs(x - y), 2 * reference::Ulp(side.data_type, x) + 0x1p-14) << "value " << i;
  }
  for (size_t g = 0; g < a.scale.size(); ++g) {
    const double near = side.scale_type == DType::kBF16 ? 0x1p-7 : 0x1p-12;
    EXPECT_LE(std::abs(a.scale[g] - b.scale[g]), near * std::abs(b.scale[g])) << "scale " << g;
    if (!a.zero.empty()) {
      EXPECT_LE(std::abs(a.zero[g] - b.zero[g]), near * 128 * std::abs(b.scale[g])) << "zero " << g;
    }
  }
  return different;
}

Status EqualsItsParts(const FusedCase& c) {
  const Inputs in = InputsOf(c);
  TestCache fused_cache, parts_cache;
  Result fused, parts;
  OCTET_RETURN_IF_ERROR(RunFused(c, in, fused_cache, &fused));
  OCTET_RETURN_IF_ERROR(RunParts(c, in, parts_cache, &parts));
  const Expected q = Expect(c, in, 0, c.q_heads(), c.cache.k_dim, c.norm ? &in.q_gain : nullptr, true);
  for (size_t i = 0; i < q.value.size(); ++i) {
    const double allowed = 2 * q.bound[i] + 2 * reference::Ulp(c.q_type, q.value[i]);
    if (!(std::abs(fused.q[i] - parts.q[i]) <= allowed)) {
      ADD_FAILURE() << "q element " << i << ": fused " << fused.q[i] << ", in parts " << parts.q[i];
      break;
    }
  }
  int different = 0, codes = 0;
  for (int t = 0; t < c.tokens; ++t) {
    const int64_t slot = in.slots[static_cast<size_t>(t)];
    for (int h = 0; h < c.cache.kv_heads && slot >= 0; ++h) {
      for (const auto& [which, side] :
           {std::pair{reference::kSideK, &fused_cache.layout().k}, {reference::kSideV, &fused_cache.layout().v}}) {
        SCOPED_TRACE((which == reference::kSideK ? "K of token " : "V of token ") + std::to_string(t) + " head " +
                     std::to_string(h));
        different += Differences(*side, fused.Row(fused_cache, which, slot, h), parts.Row(parts_cache, which, slot, h));
        codes += side->head_dim;
        if (testing::Test::HasFailure()) return OkStatus();
      }
    }
  }
  EXPECT_LE(different, 1 + codes / 50) << "of " << codes << " codes differ by one: more than near ties are off";
  return OkStatus();
}

// ---- Rows that are left out or damaged

FusedCase DefaultFused() {
  FusedCase c;
  c.cache = Both(Int8(64));
  return c;
}

// Rows whose slot is -1 leave the cache alone and have their q all the same.
Status FusedSkipsSlotMinusOne() {
  const FusedCase c = DefaultFused();
  Inputs in = InputsOf(c);
  TestCache cache, written;
  Result with, without;
  OCTET_RETURN_IF_ERROR(RunFused(c, in, written, &with));
  std::fill(in.slots.begin(), in.slots.end(), -1);
  OCTET_RETURN_IF_ERROR(RunFused(c, in, cache, &without));
  Untouched(cache.memory(), "the cache");
  EXPECT_TRUE(with.q == without.q) << "q depends on the slots";
  return OkStatus();
}

Status FusedAcceptsNoTokens() {
  FusedCase c = DefaultFused();
  c.tokens = 0;
  TestCache cache;
  Result result;
  OCTET_RETURN_IF_ERROR(RunFused(c, InputsOf(c), cache, &result));
  Untouched(cache.memory(), "the cache");
  return OkStatus();
}

// A NaN in one head of Q, K or V of one token: that head of that token shows it, and nothing else changes.
Status KeepsNanToItsRow() {
  const FusedCase c = DefaultFused();
  const Inputs in = InputsOf(c);
  TestCache clean_cache;
  Result clean;
  OCTET_RETURN_IF_ERROR(RunFused(c, in, clean_cache, &clean));
  const int dim = c.cache.k_dim, token = 4;
  const std::pair<const char*, int> places[] = {
      {"Q", dim + 3}, {"K", c.first_k() + dim + 3}, {"V", c.first_v() + dim + 3}};
  for (const auto& [what, column] : places) {
    SCOPED_TRACE(std::string("a NaN in ") + what);
    Inputs bad = in;
    bad.qkv[static_cast<size_t>(token * c.columns() + column)] = std::numeric_limits<float>::quiet_NaN();
    TestCache cache;
    Result result;
    OCTET_RETURN_IF_ERROR(RunFused(c, bad, cache, &result));
    for (int t = 0; t < c.tokens; ++t) {
      for (int h = 0; h < c.q_heads(); ++h) {
        const auto at = [&](const Result& r) { return r.q.begin() + (t * c.q_heads() + h) * dim; };
        if (t == token && h == 1 && column < c.first_k()) {
          EXPECT_TRUE(std::any_of(at(result), at(result) + dim, [](float x) { return std::isnan(x); })) << "q hides it";
        } else {
          EXPECT_TRUE(std::equal(at(result), at(result) + dim, at(clean))) << "q of token " << t << " head " << h;
        }
      }
      const int64_t slot = in.slots[static_cast<size_t>(t)];
      for (int h = 0; h < c.cache.kv_heads && slot >= 0; ++h) {
        for (const auto which : {reference::kSideK, reference::kSideV}) {
          const int first = which == reference::kSideK ? c.first_k() : c.first_v();
          const auto row = result.Row(cache, which, slot, h), before = clean.Row(clean_cache, which, slot, h);
          if (t == token && h == 1 && column == first + dim + 3) {
            EXPECT_TRUE(std::isnan(row.scale[0])) << "the cache hides it";
          } else {
            EXPECT_TRUE(row.data == before.data && row.scale == before.scale) << "row of token " << t << " head " << h;
          }
        }
      }
    }
  }
  return OkStatus();
}

// ---- Promises and refusals

// For what it does not have a table answers no, with a reason, and refuses (rule A10).
Status AnswersForEveryEntry() {
  FusedOps* fused = TheSubject().device->fused();
  if (fused == nullptr) return Unimplemented("the backend has no fused table");
  const octet_fused_ops& ops = *TheSubject().table()->fused;
  FusedCase c = DefaultFused();
  KvLayout layout = LayoutOf(c.cache, kFusedPages);
  OCTET_RETURN_IF_ERROR(TheSubject().device->quant().ChooseLayout(layout));
  AttentionDesc desc;
  desc.q_heads = c.q_heads();
  desc.kv = &layout;
  desc.limits = {1, 512, kPositions, kFusedPages};
  const convert::CAttentionDesc described(desc);
  for (const int32_t entry : std::initializer_list<int32_t>{OCTET_FUSED_QKV_APPEND, OCTET_FUSED_SAMPLE, 0, 77}) {
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    const octet_code code = ops.supports(TheSubject().device->handle(), entry, &described.desc, &support, &error);
    const bool known = entry == OCTET_FUSED_QKV_APPEND || entry == OCTET_FUSED_SAMPLE;
    EXPECT_TRUE(code == OCTET_OK || code == OCTET_UNIMPLEMENTED || code == OCTET_INVALID_ARGUMENT) << "entry " << entry;
    const bool yes = code == OCTET_OK && support.level > 0;
    EXPECT_TRUE(known || !yes) << "entry " << entry << " does not exist, and is said to be supported";
    EXPECT_TRUE(yes || support.reason[0] != '\0' || error.message[0] != '\0') << "entry " << entry << ": no reason";
  }
  if (ops.qkv_append != nullptr) {
    octet_error error = Error();
    ExpectRefusal(ops.qkv_append(&TheSubject().s(), nullptr, nullptr, nullptr, &error), error, "NULL arguments");
  }
  if (fused->Supports(FusedEntry::kSample, desc).level == 0) {
    ExpectRefused("sampling that is not supported", fused->Sample(TheSubject().s(), {}));
  }
  return OkStatus();
}

// A cache whose row of V is K's has no packed QKV.
Status RefusesALatentCache() {
  FusedOps* fused = TheSubject().device->fused();
  if (fused == nullptr) return Unimplemented("the backend has no fused table");
  const FusedCase c = DefaultFused();
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(c.cache, kFusedPages));
  const Call call(c, InputsOf(c));
  KvLayout latent = cache.layout(), extra = cache.layout();
  latent.v_is_k = true;
  latent.v = latent.k;
  extra.has_k_extra = true;
  extra.k_extra = extra.k;
  for (const KvLayout* layout : {&latent, &extra}) {
    const StatusOr<FusedOps*> promised = FusedOf(c, *layout);
    EXPECT_FALSE(promised.ok()) << "supports says yes to a latent cache";
    ExpectRefused("a latent cache", fused->QkvAppend(TheSubject().s(), *layout, cache.layer(), call.args()));
  }
  Untouched(cache.memory(), "the cache");
  Untouched(call.q_memory(), "q");
  return OkStatus();
}

Status RefusesTensorsThatDoNotFit() {
  const FusedCase c = DefaultFused();
  const Inputs in = InputsOf(c);
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(c.cache, kFusedPages));
  const StatusOr<FusedOps*> fused = FusedOf(c, cache.layout());
  OCTET_RETURN_IF_ERROR(fused.status());
  const Call call(c, in);
  using Field = const Tensor* QkvAppendArgs::*;
  const auto refused = [&](const char* what, Field field, const std::function<void(Tensor&)>& change) {
    QkvAppendArgs args = call.args();
    Tensor t = *(args.*field);
    change(t);
    args.*field = &t;
    ExpectRefused(what, (*fused)->QkvAppend(TheSubject().s(), cache.layout(), cache.layer(), args));
  };
  const auto shorter = [](int i) { return [i](Tensor& t) { t.shape[i] -= 1; }; };
  refused("qkv with a column too few", &QkvAppendArgs::qkv, shorter(1));
  refused("qkv with fewer rows than q", &QkvAppendArgs::qkv, shorter(0));
  refused("qkv of bytes", &QkvAppendArgs::qkv, [](Tensor& t) { t.dtype = OCTET_I8; });
  refused("qkv beyond its buffer", &QkvAppendArgs::qkv, [](Tensor& t) { t.offset = uint64_t{1} << 40; });
  refused("a bias with a column too few", &QkvAppendArgs::bias, shorter(0));
  refused("a short gain of Q", &QkvAppendArgs::q_gain, shorter(0));
  refused("a short gain of K", &QkvAppendArgs::k_gain, shorter(0));
  refused("more pairs than channels", &QkvAppendArgs::cos_sin, [](Tensor& t) { t.shape[1] = 4096; });
  refused("positions of fewer tokens", &QkvAppendArgs::positions, shorter(0));
  refused("slots of fewer tokens", &QkvAppendArgs::slots, shorter(0));
  refused("slots of i32", &QkvAppendArgs::slots, [](Tensor& t) { t.dtype = OCTET_I32; });
  refused("q with a head too few", &QkvAppendArgs::q_out, shorter(1));
  refused("q of another head_dim", &QkvAppendArgs::q_out, [](Tensor& t) { t.shape[2] = 32; });
  refused("q of integers", &QkvAppendArgs::q_out, [](Tensor& t) { t.dtype = OCTET_I32; });
  refused("q beyond its buffer", &QkvAppendArgs::q_out, [](Tensor& t) { t.offset = uint64_t{1} << 40; });
  for (const Field field : {&QkvAppendArgs::qkv, &QkvAppendArgs::cos_sin, &QkvAppendArgs::positions,
                            &QkvAppendArgs::slots, &QkvAppendArgs::q_out}) {
    QkvAppendArgs args = call.args();
    args.*field = nullptr;
    ExpectRefused("a tensor that is missing",
                  (*fused)->QkvAppend(TheSubject().s(), cache.layout(), cache.layer(), args));
  }
  Untouched(cache.memory(), "the cache");
  Untouched(call.q_memory(), "q");
  return EqualsTheReference(c);
}

std::vector<FusedCase> Cases() {
  std::vector<FusedCase> cases;
  const auto add = [&](auto change) {
    FusedCase c = DefaultFused();
    change(c);
    cases.push_back(c);
  };
  for (const bool rotated : {true, false}) {
    for (const bool bias : {false, true}) {
      for (const bool norm : {false, true}) {
        for (const bool interleaved : {false, true}) {
          add([&](FusedCase& c) {
            c.cache = Both(Int8(rotated ? 64 : 0));
            c.bias = bias;
            c.norm = norm;
            c.interleaved = interleaved;
          });
        }
      }
    }
  }
  for (const int pairs : {0, 1, 9, 24}) {
    for (const bool interleaved : {false, true}) {
      add([&](FusedCase& c) { c.pairs = pairs, c.interleaved = interleaved; });
    }
  }
  for (const int group : {1, 3, 7, 8, 16}) add([&](FusedCase& c) { c.group = group; });
  for (const int kv_heads : {1, 5}) add([&](FusedCase& c) { c.cache.kv_heads = kv_heads; });
  for (const int tokens : {1, 2, 90}) add([&](FusedCase& c) { c.tokens = tokens; });
  for (const int dim : {8, 40, 80, 96, 128, 256, 576})
    add([&](FusedCase& c) { c.cache = Both(Int8(dim & -dim), dim); });
  for (const int block : {64, 16}) {
    for (const int rotation : {0, 64}) {
      add([&](FusedCase& c) { c.cache = Both(Int8(rotation)), c.cache.offset_block = block; });
    }
  }
  std::vector<SideSpec> sides = {Float(DType::kF32), Float(DType::kF16), Float(DType::kBF16), Float(DType::kBF16, 64)};
  for (const Axis axis : {Axis::kTensor, Axis::kHead, Axis::kChannel, Axis::kToken}) {
    for (const Scheme scheme : {Scheme::kSymmetric, Scheme::kAsymmetric}) {
      SideSpec side = Int8();
      side.axis = axis;
      side.scheme = scheme;
      if (axis != Axis::kToken || scheme != Scheme::kSymmetric) sides.push_back(side);
    }
  }
  SideSpec groups = Int8(64), coarse = Int8(64);
  groups.group = 32;
  coarse.scale_type = DType::kBF16;
  sides.insert(sides.end(), {groups, coarse});
  for (const SideSpec& side : sides) add([&](FusedCase& c) { c.cache = Both(side); });
  add([](FusedCase& c) { c.cache.k = Float(DType::kBF16, 64), c.cache.v = Int8(); });
  add([](FusedCase& c) { c.cache = Both(Int8(64), 192), c.cache.v_dim = 128; });
  add([](FusedCase& c) { c.cache = Both(Int8(64), 64, 2, 48); });
  for (const bool norm : {false, true}) add([&](FusedCase& c) { c.norm = norm, c.q_in_place = true; });
  for (const DType type : {DType::kF16, DType::kBF16}) add([&](FusedCase& c) { c.q_type = type; });
  return cases;
}

}  // namespace

void AddFusedCases() {
  for (const FusedCase& c : Cases()) {
    AddCase("Fused.EqualsTheReference/" + NameOf(c), [c] { return EqualsTheReference(c); });
    if (c.q_type == DType::kF32) AddCase("Fused.EqualsItsParts/" + NameOf(c), [c] { return EqualsItsParts(c); });
  }
  AddCase("Fused.SkipsSlotMinusOne/i8_token_rot64", FusedSkipsSlotMinusOne);
  AddCase("Fused.AcceptsNoTokens/i8_token_rot64", FusedAcceptsNoTokens);
  AddCase("Fused.KeepsNanToItsRow/i8_token_rot64", KeepsNanToItsRow);
  AddCase("Fused.AnswersForEveryEntry/supports", AnswersForEveryEntry);
  AddCase("Fused.RefusesALatentCache/qkv_append", RefusesALatentCache);
  AddCase("Fused.RefusesTensorsThatDoNotFit/qkv_append", RefusesTensorsThatDoNotFit);
}

}  // namespace octet::conformance
