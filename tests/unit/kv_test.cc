// The KV cache's bookkeeping: pages, layouts in bytes, and the rule that decides which layers keep K offsets.
#include <cmath>
#include <numbers>
#include <vector>

#include "core/kv/k_offsets.h"
#include "core/kv/kv_options.h"
#include "core/kv/page_pool.h"
#include "core/kv/paged_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/checks.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PageTableTest, TakesTheLowestFreePagesAndGivesThemBack) {
  PagePool pool(6, 16);
  PageTable first(&pool);
  ASSERT_TRUE(first.Reserve(33).ok());
  EXPECT_THAT(first.pages(), ElementsAre(0, 1, 2));
  {
    PageTable second(&pool);
    ASSERT_TRUE(second.Reserve(16).ok());
    EXPECT_THAT(second.pages(), ElementsAre(3));
    first.Truncate(17);
    EXPECT_THAT(first.pages(), ElementsAre(0, 1));
    ASSERT_TRUE(second.Reserve(17).ok());
    EXPECT_THAT(second.pages(), ElementsAre(3, 2));
    EXPECT_EQ(second.Slot(16), 2 * 16);
    EXPECT_EQ(second.Slot(15), 3 * 16 + 15);
  }
  EXPECT_EQ(pool.free_pages(), 4);
}

TEST(PageTableTest, TakesNothingWhenThePoolHasTooFewPages) {
  PagePool pool(4, 8);
  PageTable table(&pool);
  ASSERT_TRUE(table.Reserve(8).ok());
  const absl::Status status = table.Reserve(40);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4 more pages, and 3 of 4 are free"));
  EXPECT_THAT(table.pages(), ElementsAre(0));
  EXPECT_EQ(pool.free_pages(), 3);
}

TEST(PageTableTest, AMovedTableGivesItsPagesBackOnce) {
  PagePool pool(4, 8);
  {
    PageTable table(&pool);
    ASSERT_TRUE(table.Reserve(20).ok());
    PageTable moved(std::move(table));
    EXPECT_EQ(moved.pages().size(), 3u);
  }
  EXPECT_EQ(pool.free_pages(), 4);
}

// Chooses the canonical layout and supports everything.
class CanonicalQuant final : public QuantOps {
 public:
  Status ChooseLayout(KvLayout& layout) const override { return CanonicalLayout(layout); }
  Support Supports(const KvLayout&, DType) const override { return Support::Yes(2, "none"); }
  Status Append(Stream&, const KvLayout&, const KvLayer&, const KvTokens&) override { return Unimplemented("no"); }
  Status Gather(Stream&, const KvLayout&, const KvLayer&, const KvTokens&) override { return Unimplemented("no"); }
  Status CopyPages(Stream&, const KvLayout&, const KvLayer&, const Tensor&) override { return Unimplemented("no"); }
  Status ExportPages(Stream&, const KvLayout&, const KvLayer&, const Tensor&, Buffer&, uint64_t) override {
    return Unimplemented("no");
  }
  Status ImportPages(Stream&, const KvLayout&, const KvLayer&, const Tensor&, Buffer&, uint64_t) override {
    return Unimplemented("no");
  }
};

uint64_t LayerBytes(DType dtype, int32_t head_dim, int32_t page_tokens) {
  KvOptions options;
  options.dtype = dtype;
  options.page_tokens = page_tokens;
  const KvShape shape{.kv_heads = 3, .k_head_dim = head_dim, .v_head_dim = head_dim, .num_pages = 10};
  auto layout = MakeKvLayout(CanonicalQuant(), options, shape);
  EXPECT_TRUE(layout.ok()) << layout.status();
  const KvBytes bytes = CountKvBytes(*layout);
  EXPECT_EQ(bytes.total(), layout->layer_bytes);
  return layout->layer_bytes;
}

TEST(KvLayoutTest, Int8SavesWhatTheProductPromisesFromPagesOf32TokensOn) {
  for (const int32_t page_tokens : {32, 64, 128}) {
    for (const auto& [head_dim, promised] : {std::pair(64, 0.46), std::pair(128, 0.48)}) {
      const double int8 = static_cast<double>(LayerBytes(DType::kI8, head_dim, page_tokens));
      const double bf16 = static_cast<double>(LayerBytes(DType::kBF16, head_dim, page_tokens));
      EXPECT_GE(1 - int8 / bf16, promised) << "head dim " << head_dim << ", " << page_tokens << " tokens per page";
    }
  }
}

TEST(KvLayoutTest, TheDefaultRotatesKByTheLargestPowerOfTwoThatDividesTheHeadDim) {
  EXPECT_EQ(RotationBlock(64), 64);
  EXPECT_EQ(RotationBlock(96), 32);
  EXPECT_EQ(RotationBlock(576), 64);
  const KvShape shape{.kv_heads = 1, .k_head_dim = 96, .v_head_dim = 64, .num_pages = 1};
  auto layout = MakeKvLayout(CanonicalQuant(), {}, shape);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->k.rotation, 32);
  EXPECT_EQ(layout->v.rotation, 0);
  EXPECT_EQ(layout->offset_block, 0);
}

TEST(KvPlanTest, CountsLayersAndOffsetTables) {
  const KvShape shape{.kv_heads = 2, .k_head_dim = 32, .v_head_dim = 32, .num_pages = 3, .has_k_offsets = true};
  auto layout = MakeKvLayout(CanonicalQuant(), {}, shape);
  ASSERT_TRUE(layout.ok()) << layout.status();
  auto plan = PagedCache::Plan(*layout, /*layers=*/5, /*offset_layers=*/2, /*max_len=*/129);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pages.total(), 5 * layout->layer_bytes);
  EXPECT_EQ(plan->offset_bytes, 2u * 3 * 2 * 32 * sizeof(float));  // 129 positions are 3 blocks
}

TEST(KvPlanTest, RefusesACacheWhoseSizeWouldWrapAround) {
  KvOptions options;
  options.dtype = DType::kF32;
  options.page_tokens = 65536;
  const KvShape shape{.kv_heads = 16, .k_head_dim = 128, .v_head_dim = 128, .num_pages = INT32_MAX};
  auto layout = MakeKvLayout(CanonicalQuant(), options, shape);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_TRUE(PagedCache::Plan(*layout, 1, 0, 1).ok());
  const auto plan = PagedCache::Plan(*layout, 16, 0, 1);  // almost 2^65 bytes
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("2^62 bytes"));
}

TEST(KvOptionsTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(*ParseKvDType("auto", DType::kF16), DType::kF16);
  const auto dtype = ParseKvDType("int4", DType::kF16);
  EXPECT_EQ(dtype.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(dtype.status().message()), HasSubstr("'int4'; use auto, f32, f16, bf16 or int8"));
  EXPECT_THAT(std::string(ParseInt8Recipe("best").status().message()), HasSubstr("'best'"));
}

// Two KV heads of four channels; rows of norm 1.
struct Rule {
  RopePairs rope{.head_dim = 4, .pairs = 2, .interleaved = false};
  std::vector<double> norm = std::vector<double>(8, 1.0);
  std::vector<float> bias = std::vector<float>(8, 0.0f);
};

TEST(KOffsetRuleTest, ComparesTheLargestBiasPairWithTheMedianPair) {
  Rule rule;
  EXPECT_EQ(KOffsetNeed(rule.bias, rule.norm, 2, rule.rope), 0.0);
  // Head 1, pair 0 is channels 0 and 2: b = hypot(3, 4) = 5, w = sqrt(2); the median of (sqrt(27), sqrt(2)).
  rule.bias[4] = 3;
  rule.bias[6] = 4;
  const double median = 0.5 * (std::sqrt(27.0) + std::sqrt(2.0));
  EXPECT_NEAR(KOffsetNeed(rule.bias, rule.norm, 2, rule.rope), 5 / median, 1e-12);
  // Interleaved, the same channels are in two pairs: b = 3 and 4.
  rule.rope.interleaved = true;
  const double interleaved = 0.5 * (std::sqrt(9.0 + 2) + std::sqrt(16.0 + 2));
  EXPECT_NEAR(KOffsetNeed(rule.bias, rule.norm, 2, rule.rope), 4 / interleaved, 1e-12);
}

TEST(KOffsetTableTest, HoldsTheBiasRotatedToTheBlockCentreForSlowPairsOnly) {
  const RopePairs rope{.head_dim = 6, .pairs = 2, .interleaved = false};
  const std::vector<float> bias = {1, 2, 3, 4, 5, 6};
  const std::vector<double> frequency = {1.0, 0.01};  // 1.0 * 32 > 0.35 > 0.01 * 32
  const std::vector<float> table = MakeKOffsets(bias, frequency, 1.25, 1, rope, 64, 2);
  ASSERT_EQ(table.size(), 12u);
  for (int block = 0; block < 2; ++block) {
    const float* row = table.data() + 6 * block;
    const double angle = (64 * block + 31.5) * 0.01;
    EXPECT_EQ(row[0], 0);
    EXPECT_EQ(row[2], 0);
    EXPECT_NEAR(row[1], 1.25 * (2 * std::cos(angle) - 4 * std::sin(angle)), 1e-6);
    EXPECT_NEAR(row[3], 1.25 * (2 * std::sin(angle) + 4 * std::cos(angle)), 1e-6);
    EXPECT_EQ(row[4], 5);  // does not rotate
    EXPECT_EQ(row[5], 6);
  }
}

}  // namespace
}  // namespace octet
