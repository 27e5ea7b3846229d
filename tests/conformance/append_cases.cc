// What append stores and gather reads back: codes and scales bit by bit through canonical pages, values within half a
// step, and the policy for rows that are zero, tiny, huge or not finite. Reference: docs/numerics.md.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/test_cache.h"
#include "tests/reference/random.h"

namespace octet::conformance {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kPages = 6;

// Slots all over the cache, in an order of its own, one of them -1.
std::vector<int64_t> ScatteredSlots(int page_tokens, int count) {
  reference::Random random(99);
  std::vector<int64_t> slots;
  for (int32_t s : random.Permutation(kPages * page_tokens)) {
    if (static_cast<int>(slots.size()) < count) slots.push_back(s);
  }
  if (slots.size() > 2) slots[slots.size() / 2] = -1;
  return slots;
}

std::vector<int32_t> AllPages(int n = kPages) {
  std::vector<int32_t> pages(static_cast<size_t>(n));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

Status AppendAndCompare(const CacheSpec& spec, const Rows& rows) {
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, kPages));
  OCTET_RETURN_IF_ERROR(cache.Append(rows));
  std::vector<uint8_t> canonical;
  OCTET_RETURN_IF_ERROR(cache.Export(AllPages(), &canonical));
  cache.ExpectStored(rows, AllPages(), canonical);
  return OkStatus();
}

// Normal rows in two appends, the second of which overwrites some rows of the first.
Status StoresWhatTheReferenceStores(const CacheSpec& spec) {
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, kPages));
  const auto slots = ScatteredSlots(spec.page_tokens, std::min(kPages * spec.page_tokens, 24));
  Rows rows = NormalRows(spec, slots, 1);
  for (int32_t& p : rows.positions) p = p * 37 % 500;
  OCTET_RETURN_IF_ERROR(cache.Append(rows));
  Rows second = NormalRows(spec, {slots[0], slots[1]}, 2);
  OCTET_RETURN_IF_ERROR(cache.Append(second));
  std::vector<uint8_t> canonical;
  OCTET_RETURN_IF_ERROR(cache.Export(AllPages(), &canonical));
  rows.slots.insert(rows.slots.end(), second.slots.begin(), second.slots.end());
  rows.positions.insert(rows.positions.end(), second.positions.begin(), second.positions.end());
  rows.k.insert(rows.k.end(), second.k.begin(), second.k.end());
  rows.v.insert(rows.v.end(), second.v.begin(), second.v.end());
  cache.ExpectStored(rows, AllPages(), canonical);
  return OkStatus();
}

Status GathersWithinHalfAStep(const CacheSpec& spec) {
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, kPages));
  Rows rows = NormalRows(spec, ScatteredSlots(spec.page_tokens, std::min(kPages * spec.page_tokens, 12)), 3);
  for (int32_t& p : rows.positions) p = p * 37 % 500;
  // Inside the range of the static scales.
  for (float& x : rows.k) x *= 0.5f;
  for (float& x : rows.v) x *= 0.5f;
  OCTET_RETURN_IF_ERROR(cache.Append(rows));
  Rows back = rows;
  OCTET_RETURN_IF_ERROR(cache.Gather(back));

  for (int t = 0; t < rows.tokens(); ++t) {
    for (int h = 0; h < spec.kv_heads; ++h) {
      const size_t row = static_cast<size_t>(t * spec.kv_heads + h);
      const int position = rows.positions[static_cast<size_t>(t)];
      const std::span<const float> k(&rows.k[row * static_cast<size_t>(spec.k_dim)], static_cast<size_t>(spec.k_dim));
      const std::span<const float> v(&rows.v[row * static_cast<size_t>(spec.v_dim)], static_cast<size_t>(spec.v_dim));
      auto compare = [&](const char* what, std::span<const float> x, const float* got, std::vector<double> bound,
                         const std::vector<double>& decoded) {
        for (size_t c = 0; c < bound.size(); ++c) {
          if (rows.slots[static_cast<size_t>(t)] < 0) {
            ASSERT_TRUE(std::isnan(got[c])) << "a row with slot -1 was written: " << what << " of token " << t;
            continue;
          }
          // Adding the K offset rounds once more; it is at most a few times the spread of the keys.
          bound[c] += 0x1p-22 * (std::abs(x[c]) + std::abs(decoded[c]) + (spec.offset_block > 0 ? 32.0 : 0.0));
          ASSERT_LE(std::abs(got[c] - static_cast<double>(x[c])), bound[c])
              << what << "[" << c << "] of token " << t << " KV head " << h << ": got " << got[c] << ", stored " << x[c]
              << ", the reference reads " << decoded[c];
        }
      };
      const auto k_stored = cache.EncodeK(k, h, position);
      if (!spec.latent) {
        const auto v_stored = cache.EncodeV(v, h);
        compare("K", k, &back.k[row * k.size()], cache.StepBound(reference::kSideK, k_stored[0], h),
                cache.DecodeK(k_stored, h, position));
        compare("V", v, &back.v[row * v.size()], cache.StepBound(reference::kSideV, v_stored, h),
                cache.DecodeV(k_stored, v_stored, h));
      } else {
        const size_t latent = static_cast<size_t>(spec.v_dim);
        const std::vector<double> decoded = cache.DecodeK(k_stored, h, position);
        compare("K", k.subspan(0, latent), &back.k[row * k.size()], cache.StepBound(reference::kSideK, k_stored[0], h),
                decoded);
        compare("extra K", k.subspan(latent), &back.k[row * k.size() + latent],
                cache.StepBound(reference::kSideKExtra, k_stored[1], h),
                std::vector<double>(decoded.begin() + spec.v_dim, decoded.end()));
      }
    }
  }
  return OkStatus();
}

// The schemes, axes, groups and types that the descriptor can say.
std::vector<CacheSpec> Specs() {
  std::vector<CacheSpec> specs;
  std::vector<SideSpec> sides = {Int8(),
                                 Int8(64),
                                 Float(DType::kF32),
                                 Float(DType::kF16),
                                 Float(DType::kBF16),
                                 Float(DType::kF32, 64),
                                 Float(DType::kBF16, 64)};
  for (Axis axis : {Axis::kTensor, Axis::kHead, Axis::kChannel, Axis::kToken}) {
    for (Scheme scheme : {Scheme::kSymmetric, Scheme::kAsymmetric}) {
      for (int rotation : {0, 64}) {
        SideSpec side = Int8(rotation);
        side.axis = axis;
        side.scheme = scheme;
        if (axis != Axis::kToken || scheme != Scheme::kSymmetric) sides.push_back(side);
      }
    }
  }
  for (Scheme scheme : {Scheme::kSymmetric, Scheme::kAsymmetric}) {
    for (int group : {0, 8, 32}) {
      for (DType scale : {DType::kF32, DType::kBF16}) {
        SideSpec side = Int8(group == 32 ? 64 : 0);
        side.scheme = scheme;
        side.group = group;
        side.scale_type = scale;
        if (group != 0 || scale != DType::kF32) sides.push_back(side);
      }
    }
  }
  for (const SideSpec& side : sides) specs.push_back(Both(side));
  // Head dims, each with the largest power of two that divides it.
  for (int dim : {8, 40, 64, 72, 80, 96, 128, 192, 256, 576}) {
    if (dim != 64) specs.push_back(Both(Int8(dim & -dim), dim));
    specs.push_back(Both(Int8(8), dim, 1));
  }
  for (int page_tokens : {1, 16, 32, 64, 128, 48}) specs.push_back(Both(Int8(64), 64, 3, page_tokens));
  CacheSpec mixed = Both(Int8(64));
  mixed.v = Int8();
  specs.push_back(mixed);
  mixed.k = Float(DType::kBF16, 64);
  specs.push_back(mixed);
  mixed = Both(Int8(64), 192);
  mixed.v_dim = 128;
  specs.push_back(mixed);
  for (int block : {64, 16}) {
    for (int rotation : {0, 64}) {
      CacheSpec spec = Both(Int8(rotation), 64, 2, 32);
      spec.offset_block = block;
      specs.push_back(spec);
    }
  }
  CacheSpec float_offset = Both(Float(DType::kF32));
  float_offset.offset_block = 64;
  specs.push_back(float_offset);
  SideSpec by_head = Int8();
  by_head.axis = Axis::kHead;
  for (const CacheSpec& latent : {Latent(Int8(64)), Latent(Int8(512)), Latent(Float(DType::kF16)), Latent(by_head),
                                  Latent(Int8(64), 64, 576, Int8(64))}) {
    specs.push_back(latent);
  }
  return specs;
}

// Rows whose exact quotients are halves: the largest value is 127 / 4, every other one an odd multiple of 1/8.
Rows Ties(const CacheSpec& spec) {
  Rows rows = NormalRows(spec, {3, 17, 40}, 4);
  auto fill = [](std::vector<float>& x, int dim) {
    for (size_t i = 0; i < x.size(); ++i) {
      const int c = static_cast<int>(i) % dim;
      x[i] = c == 0 ? 31.75f : (c % 2 ? 1.0f : -1.0f) * static_cast<float>(2 * c + 1) / 8.0f;
      x[i] = std::clamp(x[i], -31.75f, 31.75f);
    }
  };
  fill(rows.k, spec.k_dim);
  fill(rows.v, spec.v_dim);
  return rows;
}

struct Special {
  const char* name;
  std::vector<float> values;  // repeated over the row
};
std::vector<Special> Specials() {
  return {{"zeros", {0.0f}},
          {"signed_zeros", {-0.0f, 0.0f}},
          {"equal", {0.7f}},
          {"denormals", {1e-40f, -3e-41f, 0.0f}},
          {"below_the_smallest_scale", {9.9e-31f, -1e-31f}},
          {"at_the_smallest_scale", {1.1e-30f, -1e-31f, 5e-31f}},
          {"denormals_beside_a_normal", {1.0f, 1e-40f, -1e-40f, 1e-45f}},
          {"saturated", {1.0f, -1.0f, -1.0f, 1.0f, 1.0f}},
          {"one_huge", {1e30f, 1.0f, -1.0f, 2.0f, 0.5f, 0.25f, 3.0f, 7.0f}},
          {"large", {3e37f, -1e37f, 2e36f}},
          {"nan", {1.0f, 2.0f, kNan, 3.0f}},
          {"infinity", {1.0f, kInf, 2.0f, -3.0f}},
          {"minus_infinity", {1.0f, 2.0f, 0.5f, -kInf}}};
}

Status StoresSpecialRows(const CacheSpec& spec, const Special& special) {
  // Token 1 of three has it, in KV head 1 only: the neighbours must not notice.
  Rows rows = NormalRows(spec, {5, 6, 7}, 5);
  auto fill = [&](std::vector<float>& x, int dim) {
    for (int c = 0; c < dim; ++c) {
      x[static_cast<size_t>((1 * spec.kv_heads + 1) * dim + c)] =
          special.values[static_cast<size_t>(c) % special.values.size()];
    }
  };
  fill(rows.k, spec.k_dim);
  fill(rows.v, spec.v_dim);
  return AppendAndCompare(spec, rows);
}

Status SubtractsTheBlocksOffset(int block) {
  CacheSpec spec = Both(Int8(64), 64, 2, 16);
  spec.offset_block = block;
  Rows rows = NormalRows(spec, ScatteredSlots(16, 16), 6);
  const std::vector<int> edges = {0,         1,         block - 1,    block, block + 1, 2 * block - 1,
                                  2 * block, 7 * block, 8 * block - 1};
  for (size_t i = 0; i < rows.positions.size(); ++i) rows.positions[i] = edges[i % edges.size()];
  return AppendAndCompare(spec, rows);
}

Status SkipsSlotMinusOne() {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, kPages));
  OCTET_RETURN_IF_ERROR(cache.Append(NormalRows(spec, {-1, -1, -1}, 7)));
  Untouched(cache.memory(), "the cache");
  return OkStatus();
}

Status AcceptsNoTokens() {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, kPages));
  OCTET_RETURN_IF_ERROR(cache.Append(NormalRows(spec, {}, 7)));
  Untouched(cache.memory(), "the cache");
  return OkStatus();
}

Status StoresTheLastSlotOfTheLastPage() {
  const CacheSpec spec = Both(Int8(64), 64, 2, 16);
  return AppendAndCompare(spec, NormalRows(spec, {kPages * 16 - 1, 0, 15, 16}, 8));
}

// Gather may read K alone or V alone.
Status GathersOneSide() {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, kPages));
  Rows rows = NormalRows(spec, {1, 20, 33}, 9);
  OCTET_RETURN_IF_ERROR(cache.Append(rows));
  Rows both = rows;
  OCTET_RETURN_IF_ERROR(cache.Gather(both));
  const Block out(rows.k.size() * 4), slots(rows.slots), positions(rows.positions);
  const Tensor t = out.View(DType::kF32, {3, spec.kv_heads, 64}), st = slots.View(DType::kI64, {3});
  const Tensor pt = positions.View(DType::kI32, {3});
  QuantOps& quant = TheSubject().device->quant();
  OCTET_RETURN_IF_ERROR(
      Promised("gather of K", quant.Gather(TheSubject().s(), cache.layout(), cache.layer(), {&t, nullptr, &st, &pt})));
  Sync();
  EXPECT_EQ(out.Floats(DType::kF32), both.k);
  OCTET_RETURN_IF_ERROR(
      Promised("gather of V", quant.Gather(TheSubject().s(), cache.layout(), cache.layer(), {nullptr, &t, &st, &pt})));
  Sync();
  EXPECT_EQ(out.Floats(DType::kF32), both.v);
  return OkStatus();
}

}  // namespace

void AddAppendCases() {
  for (const CacheSpec& spec : Specs()) {
    AddCase("Append.StoresWhatTheReferenceStores/" + NameOf(spec),
            [spec] { return StoresWhatTheReferenceStores(spec); });
    AddCase("Gather.WithinHalfAStep/" + NameOf(spec), [spec] { return GathersWithinHalfAStep(spec); });
  }
  AddCase("Append.RoundsHalfToEven/i8_token", [] {
    const CacheSpec spec = Both(Int8());
    return AppendAndCompare(spec, Ties(spec));
  });
  SideSpec groups = Int8(64), asymmetric = Int8(), coarse = Int8(64), by_head = Int8();
  groups.group = 32;
  asymmetric.scheme = Scheme::kAsymmetric;
  coarse.scale_type = DType::kBF16;
  by_head.axis = Axis::kHead;
  for (const SideSpec& side : {Int8(), Int8(64), groups, asymmetric, coarse, by_head, Float(DType::kF16),
                               Float(DType::kBF16), Float(DType::kF32)}) {
    for (const Special& special : Specials()) {
      const CacheSpec spec = Both(side);
      AddCase("Append.SpecialRows/" + std::string(special.name) + "_" + NameOf(side),
              [spec, special] { return StoresSpecialRows(spec, special); });
    }
  }
  for (int block : {64, 16, 1}) {
    AddCase("Append.SubtractsTheBlocksOffset/off" + std::to_string(block),
            [block] { return SubtractsTheBlocksOffset(block); });
  }
  AddCase("Append.SkipsSlotMinusOne/i8_token_rot64", SkipsSlotMinusOne);
  AddCase("Append.AcceptsNoTokens/i8_token_rot64", AcceptsNoTokens);
  AddCase("Append.StoresTheLastSlotOfTheLastPage/i8_token", StoresTheLastSlotOfTheLastPage);
  AddCase("Gather.ReadsOneSideAlone/i8_token_rot64", GathersOneSide);
}

}  // namespace octet::conformance
