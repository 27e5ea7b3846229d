// supports is a promise (rule A10): where it says 1 or 2 the operation runs and matches the reference; where it says 0
// the operation refuses with UNIMPLEMENTED and a reason, and touches nothing (rule A9). Descriptors are drawn from
// everything that abi.h can say, whether a backend is expected to have it or not.
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_cases.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"
#include "tests/reference/random.h"

namespace octet::conformance {
namespace {

using reference::Random;

// Rows of another type than f32 are no part of the contract yet: refused or, if promised, not tested here.
Status InputTypesAreHonest() {
  KvLayout layout = LayoutOf(Both(Int8(64)), 3);
  OCTET_RETURN_IF_ERROR(TheSubject().device->quant().ChooseLayout(layout));
  for (DType type : {DType::kI8, DType::kI64, static_cast<DType>(99)}) {
    const Support support = TheSubject().device->quant().Supports(layout, type);
    EXPECT_EQ(support.level, 0) << "rows of type " << DTypeName(type);
    EXPECT_FALSE(support.reason.empty());
  }
  return OkStatus();
}

// Every pair of types a weight could have: the promise is kept by Dense.Linear, the refusal here.
Status WeightsAreHonest(DType weight_type) {
  DenseOps* dense = TheSubject().device->dense();
  if (dense == nullptr) return Unimplemented("the backend has no dense table");
  const std::vector<float> data(1024, 0.25f);
  for (DType x : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kI32, DType::kQ8_0}) {
    for (DType y : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kI32, DType::kQ8_0}) {
      const WeightPart part{weight_type, 2, 1024, data.data(), nullptr};
      WeightDesc desc;
      desc.columns = 256;
      desc.parts = {&part, 1};
      desc.max_tokens = 4;
      desc.x_type = x;
      desc.y_type = y;
      const Support support = dense->SupportsWeight(desc);
      auto weight = TheSubject().device->PrepareWeight(&TheSubject().s(), desc);
      Sync();
      if (support.level > 0) {
        EXPECT_TRUE(weight.ok()) << DTypeName(x) << " to " << DTypeName(y) << ": " << weight.status();
        continue;
      }
      EXPECT_FALSE(weight.ok()) << DTypeName(x) << " to " << DTypeName(y)
                                << " was refused by supports_weight: " << support.reason;
      if (!weight.ok()) {
        EXPECT_EQ(weight.status().code(), absl::StatusCode::kUnimplemented) << weight.status();
        EXPECT_FALSE(support.reason.empty());
      }
    }
  }
  return OkStatus();
}

// What can never make sense is refused by every call, and nothing is touched.
Status RefusesNonsense() {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 3));
  const DeviceRows rows(spec, NormalRows(spec, {0, 1}, 42));
  Tensor narrow = rows.k, fewer = rows.k, wrong_type = rows.k;
  narrow.shape[2] = 32;
  fewer.shape[0] = 1;
  wrong_type.dtype = OCTET_F16;
  QuantOps& quant = TheSubject().device->quant();
  Stream& s = TheSubject().s();
  KvLayer layer = cache.layer();
  const auto append = [&](const Tensor* k, const Tensor* v, const Tensor* slots) {
    return quant.Append(s, cache.layout(), layer, {k, v, slots, &rows.positions});
  };
  ExpectRefused("narrow rows", append(&narrow, &rows.v, &rows.slots));
  ExpectRefused("fewer rows than slots", append(&rows.k, &fewer, &rows.slots));
  ExpectRefused("rows of f16", append(&wrong_type, &rows.v, &rows.slots));
  ExpectRefused("no K", append(nullptr, &rows.v, &rows.slots));
  ExpectRefused("no V", append(&rows.k, nullptr, &rows.slots));
  ExpectRefused("no slots", append(&rows.k, &rows.v, nullptr));
  layer.cache_offset += 4;
  ExpectRefused("an unaligned cache", append(&rows.k, &rows.v, &rows.slots));
  Untouched(cache.memory(), "the cache");
  for (auto change : std::vector<void (*)(KvLayout&)>{
           [](KvLayout& l) { l.page_tokens = 0; }, [](KvLayout& l) { l.kv_heads = -1; },
           [](KvLayout& l) { l.num_pages = 0; }, [](KvLayout& l) { l.k.head_dim = 12; },
           [](KvLayout& l) { l.k.head_dim = 1 << 20; }, [](KvLayout& l) { l.k.rotation = 48; },
           [](KvLayout& l) { l.k.rotation = 128; }, [](KvLayout& l) { l.k.group = 24; },
           [](KvLayout& l) { l.k.group = -1; }, [](KvLayout& l) { l.offset_block = -64; }}) {
    KvLayout layout = LayoutOf(spec, 3);
    change(layout);
    ExpectRefused("a layout without sense", quant.ChooseLayout(layout));
  }

  AttentionDesc good;
  good.q_heads = 4;
  good.kv = &cache.layout();
  good.limits = {2, 4, 40, 4};
  AttentionBackend& attention = TheSubject().device->attention();
  const Support support = attention.Supports(good);
  if (support.level == 0) return Unimplemented(support.reason);
  const Workspace workspace(support.workspace_bytes);
  for (auto change : std::vector<void (*)(AttentionDesc&)>{
           [](AttentionDesc& d) { d.q_heads = 3; }, [](AttentionDesc& d) { d.q_heads = 0; },
           [](AttentionDesc& d) { d.window = -1; }, [](AttentionDesc& d) { d.softcap = -1.0f; },
           [](AttentionDesc& d) { d.scale = std::nanf(""); }, [](AttentionDesc& d) { d.limits.requests = 0; },
           [](AttentionDesc& d) { d.limits.kv_len = -5; }}) {
    AttentionDesc desc = good;
    change(desc);
    EXPECT_EQ(attention.Supports(desc).level, 0);
    ExpectRefused("a descriptor without sense",
                  attention.MakePlan(desc, workspace.buffer(), workspace.offset()).status());
  }
  auto plan = attention.MakePlan(good, workspace.buffer(), workspace.offset());
  OCTET_RETURN_IF_ERROR(Promised("make_plan", plan.status()));
  const int32_t q_start[] = {0, 1, 2, 3}, bad_q_start[] = {0, 2, 1}, many_queries[] = {0, 9}, kv_len[] = {3, 20, 3},
                long_kv[] = {41}, short_kv[] = {0, 0, 0}, page_start[] = {0, 1, 3, 4}, pages[] = {0, 1, 2, 0},
                bad_pages[] = {0, 3, 2, 0}, few_pages[] = {0, 1, 2};
  const std::pair<const char*, Batch> batches[] = {
      {"three requests of two", {3, q_start, kv_len, nullptr, page_start, pages}},
      {"a falling q_start", {2, bad_q_start, kv_len, nullptr, page_start, pages}},
      {"too many queries", {1, many_queries, kv_len + 1, nullptr, page_start + 0, pages}},
      {"a kv_len beyond the limit", {1, q_start, long_kv, nullptr, page_start, pages}},
      {"kv_len below the queries", {2, q_start, short_kv, nullptr, page_start, pages}},
      {"a page that does not exist", {2, q_start, kv_len, nullptr, page_start, bad_pages}},
      {"too few pages", {2, q_start, kv_len, nullptr, few_pages, pages}}};
  for (const auto& [what, batch] : batches) ExpectRefused(what, attention.Refill(s, **plan, batch));
  return OkStatus();
}

}  // namespace

void AddHonestyCases() {
  Random random(2024);
  std::set<std::string> seen;
  for (int i = 0; i < 150; ++i) {
    const CacheSpec spec = RandomSpec(random);
    if (seen.insert(NameOf(spec)).second)
      AddCase("Honesty.Layout/" + NameOf(spec), [spec] { return LayoutIsHonest(spec); });
  }
  for (int i = 0; i < 150; ++i) {
    const AttentionCase c = RandomAttention(random);
    if (seen.insert(NameOf(c)).second) AddCase("Honesty.Attention/" + NameOf(c), [c] { return AttentionIsHonest(c); });
  }
  const CacheSpec latent = Latent(Int8(64));
  AddCase("Honesty.Layout/" + NameOf(latent), [latent] { return LayoutIsHonest(latent); });
  AddCase("Honesty.Inputs/of_append", InputTypesAreHonest);
  for (int type : {1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 24, 25, 26}) {
    AddCase(std::string("Honesty.Weights/") + DTypeName(static_cast<DType>(type)),
            [type] { return WeightsAreHonest(static_cast<DType>(type)); });
  }
  AddCase("Honesty.RefusesNonsense/cache_and_attention", RefusesNonsense);
}

}  // namespace octet::conformance
