#include "tests/conformance/random_cases.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"

namespace octet::conformance {
namespace {

using reference::Random;

void ExpectHonestRefusal(const Status& status, const Support& support, const char* call) {
  EXPECT_EQ(status.code(), Code::kUnimplemented)
      << call << " after supports answered 0 (" << support.reason << "): " << status.message();
  EXPECT_FALSE(status.message().empty()) << call << " refused without a reason";
  EXPECT_FALSE(support.reason.empty()) << "supports answered 0 without a reason";
}

template <typename T>
T Pick(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.Int(0, static_cast<int>(values.size()) - 1)];
}

SideSpec RandomSide(Random& random, int head_dim) {
  SideSpec side;
  side.type = Pick(random, {DType::kI8, DType::kI8, DType::kI8, DType::kF32, DType::kF16, DType::kBF16});
  side.rotation = Pick(random, {0, 0, head_dim & -head_dim, 8});
  if (side.type != DType::kI8) {
    side.scheme = Scheme::kNone;
    return side;
  }
  side.axis = Pick(random, {Axis::kToken, Axis::kToken, Axis::kTensor, Axis::kHead, Axis::kChannel});
  side.scheme = Pick(random, {Scheme::kSymmetric, Scheme::kAsymmetric});
  if (side.axis == Axis::kToken) {
    side.group = Pick(random, {0, 0, 8, head_dim / 2});
    side.scale_type = Pick(random, {DType::kF32, DType::kBF16});
  }
  return side;
}

}  // namespace

CacheSpec RandomSpec(Random& random) {
  CacheSpec spec;
  spec.k_dim = Pick(random, {8, 32, 40, 64, 64, 80, 96, 128, 128, 192, 256, 576});
  spec.v_dim = Pick(random, {spec.k_dim, spec.k_dim, 64, 128});
  spec.k = RandomSide(random, spec.k_dim);
  spec.v = RandomSide(random, spec.v_dim);
  if (spec.k_dim == spec.v_dim && random.Int(0, 1) == 0) spec.v = spec.k;
  spec.kv_heads = random.Int(1, 4);
  spec.page_tokens = Pick(random, {1, 4, 16, 17, 32, 64, 128});
  spec.offset_block = Pick(random, {0, 0, 16, 64});
  return spec;
}

Status LayoutIsHonest(const CacheSpec& spec) {
  QuantOps& quant = TheSubject().device->quant();
  KvLayout layout = LayoutOf(spec, 3);
  const Status chosen = quant.ChooseLayout(layout);
  if (!chosen.ok()) {
    EXPECT_EQ(chosen.code(), Code::kUnimplemented) << "choose_layout: " << chosen.message();
    EXPECT_FALSE(chosen.message().empty());
    FillRowStrides(layout);
  }
  std::vector<int64_t> slots;
  for (int i = 0; i < std::min(6, 3 * spec.page_tokens); ++i) slots.push_back((i * 7) % (3 * spec.page_tokens));
  if (slots.size() > 3) slots[2] = -1;
  std::set<int64_t> distinct(slots.begin(), slots.end());
  slots.assign(distinct.begin(), distinct.end());
  Rows rows = NormalRows(spec, slots, 41);
  for (int32_t& p : rows.positions) p = p * 61 % 300;

  const Support support = quant.Supports(layout, DType::kF32);
  if (support.level > 0) {
    TestCache cache;
    OCTET_RETURN_IF_ERROR(cache.InitWithLayout(spec, layout));
    OCTET_RETURN_IF_ERROR(cache.Append(rows));
    std::vector<uint8_t> canonical;
    OCTET_RETURN_IF_ERROR(cache.Export({0, 1, 2}, &canonical));
    cache.ExpectStored(rows, {0, 1, 2}, canonical);
    return cache.Gather(rows);
  }
  const Block memory(layout.layer_bytes);
  const DeviceRows source(spec, rows);
  KvLayer layer;
  layer.cache = memory.buffer();
  layer.cache_offset = memory.offset();
  const int n = rows.tokens();
  const Status refused = quant.Append(TheSubject().s(), layout, layer, source.tokens());
  Sync();
  ExpectHonestRefusal(refused, support, "append");
  Untouched(memory, "the cache");
  const Block k_out(rows.k.size() * 4), v_out(rows.v.size() * 4);
  const Tensor ko = k_out.View(DType::kF32, {n, spec.kv_heads, spec.k_dim}),
               vo = v_out.View(DType::kF32, {n, spec.kv_heads, spec.v_dim});
  const Status unread = quant.Gather(TheSubject().s(), layout, layer,
                                     {&ko, spec.latent ? nullptr : &vo, &source.slots, &source.positions});
  Sync();
  ExpectHonestRefusal(unread, support, "gather");
  Untouched(k_out, "K");
  Untouched(v_out, "V");
  return OkStatus();
}

Status AttentionIsHonest(const AttentionCase& c) {
  const Status ran = RunAndCheck(c);
  if (ran.code() != Code::kUnimplemented) return ran;
  KvLayout layout = LayoutOf(c.cache, 8);
  if (!TheSubject().device->quant().ChooseLayout(layout).ok()) FillRowStrides(layout);
  AttentionDesc desc;
  desc.q_heads = c.q_heads;
  desc.causal = c.causal;
  desc.window = c.window;
  desc.softcap = c.softcap;
  desc.q_type = c.q_type;
  desc.out_type = c.out_type;
  desc.exact = c.exact;
  desc.kv = &layout;
  desc.limits = {1, 8, 64, 8};
  const Support support = TheSubject().device->attention().Supports(desc);
  if (support.level > 0) return OkStatus();  // the refusal was of the cache, and LayoutIsHonest looks at that
  const Block workspace(4096);
  const auto plan = TheSubject().device->attention().MakePlan(desc, workspace.buffer(), workspace.offset());
  Sync();
  ExpectHonestRefusal(plan.status(), support, "make_plan");
  Untouched(workspace, "the workspace");
  return OkStatus();
}

AttentionCase RandomAttention(Random& random) {
  AttentionCase c;
  c.cache = RandomSpec(random);
  const int group = Pick(random, {1, 2, 3, 4, 7, 8});
  c.q_heads = group * c.cache.kv_heads;
  c.sequences = {{Pick(random, {1, 1, 3, 9}), 0, 0, 0}, {1, random.Int(1, 40), 0, 1}};
  c.sequences[0].kv_len = c.sequences[0].queries + random.Int(0, 60);
  c.causal = random.Int(0, 3) > 0;
  c.window = Pick(random, {0, 0, 1, 20});
  c.softcap = Pick(random, {0.0f, 0.0f, 3.0f});
  c.alibi = c.softcap == 0.0f && random.Int(0, 3) == 0;
  c.sinks = random.Int(0, 3) == 0;
  c.lse = random.Int(0, 1) == 0;
  c.exact = random.Int(0, 2) == 0;
  c.q_type = Pick(random, {DType::kF32, DType::kF32, DType::kF16, DType::kBF16});
  c.out_type = Pick(random, {DType::kF32, DType::kF32, DType::kF16, DType::kBF16});
  return c;
}

}  // namespace octet::conformance
