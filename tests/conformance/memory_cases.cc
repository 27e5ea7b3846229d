// Where bytes lie: strides that the caller chose, offsets beyond 32 bits, and garbage in what nobody wrote.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

// Strides with gaps: the backend may refuse them, or must keep to them and leave the gaps alone.
Status KeepsToPaddedStrides(const CacheSpec& spec) {
  KvLayout layout = LayoutOf(spec, 4);
  uint64_t end = 256;
  auto place = [&](uint64_t& base, std::array<int64_t, 3>& stride, int64_t row_bytes) {
    const int64_t row = (row_bytes + 64 + 15) / 16 * 16, head = row * layout.page_tokens + 128;
    base = end;
    stride = {head * layout.kv_heads + 256, head, row};
    end += static_cast<uint64_t>(stride[0]) * static_cast<uint64_t>(layout.num_pages) + 128;
    end = (end + 127) / 128 * 128;
  };
  std::vector<CacheSide*> sides = {&layout.k};
  if (!layout.v_is_k) sides.push_back(&layout.v);
  if (layout.has_k_extra) sides.push_back(&layout.k_extra);
  for (CacheSide* side : sides) {
    place(side->data_base, side->data_stride, side->head_dim * ElementBytes(side->data_type));
    if (side->dynamic()) place(side->scale_base, side->scale_stride, side->groups() * ElementBytes(side->scale_type));
  }
  if (layout.v_is_k) layout.v = layout.k;
  layout.layer_bytes = end;
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.InitWithLayout(spec, layout));
  const Rows rows = NormalRows(spec, SlotsOf(0, 4 * spec.page_tokens), 24);
  OCTET_RETURN_IF_ERROR(cache.Append(rows));
  std::vector<uint8_t> canonical;
  OCTET_RETURN_IF_ERROR(cache.Export({0, 1, 2, 3}, &canonical));
  cache.ExpectStored(rows, {0, 1, 2, 3}, canonical);

  // Where the layout says nothing stands, nothing was written.
  std::vector<uint8_t> bytes = cache.memory().Bytes();
  auto erase = [&](uint64_t base, const std::array<int64_t, 3>& stride, int64_t row_bytes) {
    for (int p = 0; p < layout.num_pages; ++p) {
      for (int h = 0; h < layout.kv_heads; ++h) {
        for (int t = 0; t < layout.page_tokens; ++t) {
          std::memset(&bytes[base + static_cast<uint64_t>(p * stride[0] + h * stride[1] + t * stride[2])], 0xff,
                      static_cast<size_t>(row_bytes));
        }
      }
    }
  };
  for (const CacheSide* side : sides) {
    erase(side->data_base, side->data_stride, side->head_dim * ElementBytes(side->data_type));
    if (side->dynamic()) erase(side->scale_base, side->scale_stride, side->groups() * ElementBytes(side->scale_type));
  }
  EXPECT_TRUE(std::ranges::all_of(bytes, [](uint8_t b) { return b == 0xff; })) << "bytes between the rows were written";
  return OkStatus();
}

// A cache whose last pages lie beyond 2^32 bytes, of which only a few pages at both ends are touched.
Status ReachesBeyondFourGiB() {
  if (std::string(convert::BuildSanitizer()) != "none") return NotRun("too large under a sanitizer");
  const CacheSpec spec = Both(Float(DType::kF32));
  constexpr int kEnd = 16;  // pages at either end; a 32-bit offset makes the last ones meet the first ones
  KvLayout layout = LayoutOf(spec, 1);
  QuantOps& quant = TheSubject().device->quant();
  OCTET_RETURN_IF_ERROR(quant.ChooseLayout(layout));
  layout = LayoutOf(spec, static_cast<int>((uint64_t{1} << 32) / layout.layer_bytes) + kEnd / 2);
  OCTET_RETURN_IF_ERROR(quant.ChooseLayout(layout));
  const Support support = quant.Supports(layout, DType::kF32);
  if (support.level == 0) return Unimplemented(support.reason);
  const auto memory = TheSubject().device->memory();
  if (!memory.ok() || memory->free_bytes < layout.layer_bytes + (uint64_t{1} << 30)) {
    return NotRun("the device has less than 5 GiB of free memory");
  }
  const auto buffer = TheSubject().device->Alloc(layout.layer_bytes);
  if (!buffer.ok()) return NotRun("the device cannot give 4 GiB in one piece");
  KvLayer layer;
  layer.cache = buffer->get();

  const int pages = layout.num_pages;
  std::vector<int64_t> slots = SlotsOf(0, kEnd * spec.page_tokens);
  const std::vector<int64_t> last = SlotsOf((pages - kEnd) * spec.page_tokens, kEnd * spec.page_tokens);
  slots.insert(slots.end(), last.begin(), last.end());
  const Rows rows = NormalRows(spec, slots, 25);
  const int n = rows.tokens();
  const DeviceRows source(spec, rows);
  const Block k_out(rows.k.size() * 4), v_out(rows.v.size() * 4);
  auto view = [&](const Block& b) { return b.View(DType::kF32, {n, spec.kv_heads, 64}); };
  const Tensor ko = view(k_out), vo = view(v_out);
  OCTET_RETURN_IF_ERROR(Promised("append", quant.Append(TheSubject().s(), layout, layer, source.tokens())));
  OCTET_RETURN_IF_ERROR(
      Promised("gather", quant.Gather(TheSubject().s(), layout, layer, {&ko, &vo, &source.slots, &source.positions})));
  Sync();
  EXPECT_TRUE(k_out.Floats(DType::kF32) == rows.k && v_out.Floats(DType::kF32) == rows.v)
      << "rows of the first and last pages of a cache of " << layout.layer_bytes << " bytes mix";

  // The last two pages, and copies of them in the first two, give the same attention.
  AttentionDesc desc;
  desc.q_heads = 2;
  desc.kv = &layout;
  desc.limits = {1, 1, 2 * spec.page_tokens, 2};
  AttentionBackend& attention = TheSubject().device->attention();
  const Support attends = attention.Supports(desc);
  if (attends.level == 0) return OkStatus();
  const Workspace workspace(attends.workspace_bytes);
  auto plan = attention.MakePlan(desc, workspace.buffer(), workspace.offset());
  OCTET_RETURN_IF_ERROR(Promised("make_plan", plan.status()));
  const Block q(std::vector<float>(128, 0.5f)), pairs(std::vector<int32_t>{pages - 2, 0, pages - 1, 1});
  const Tensor qt = q.View(DType::kF32, {1, 2, 64}), pairs_t = pairs.View(DType::kI32, {2, 2});
  std::vector<uint8_t> answers[2];
  for (int i = 0; i < 2; ++i) {
    const int32_t q_start[] = {0, 1}, kv_len[] = {2 * spec.page_tokens}, page_start[] = {0, 2};
    const int32_t listed[] = {i == 0 ? pages - 2 : 0, i == 0 ? pages - 1 : 1};
    const Block out(128 * 4);
    const Tensor ot = out.View(DType::kF32, {1, 2, 64});
    OCTET_RETURN_IF_ERROR(Promised(
        "refill", attention.Refill(TheSubject().s(), **plan, {1, q_start, kv_len, nullptr, page_start, listed})));
    OCTET_RETURN_IF_ERROR(
        Promised("run", attention.Run(TheSubject().s(), **plan, layer, {&qt, &ot, nullptr, nullptr})));
    Sync();
    answers[i] = out.Bytes();
    if (i == 0)
      OCTET_RETURN_IF_ERROR(Promised("copy_pages", quant.CopyPages(TheSubject().s(), layout, layer, pairs_t)));
  }
  EXPECT_EQ(answers[0], answers[1]) << "attention over the last pages and over copies of them";
  return OkStatus();
}

// What lies in unused slots, pages and the workspace changes nothing.
Status GarbageDoesNotMatter(AttentionCase c) {
  AttentionResult first, other;
  for (uint8_t garbage : {uint8_t{0xff}, uint8_t{0x00}, uint8_t{0x7e}}) {
    c.garbage = garbage;
    Scene scene;
    OCTET_RETURN_IF_ERROR(scene.Init(c));
    OCTET_RETURN_IF_ERROR(scene.AppendAll());
    OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), garbage == 0xff ? &first : &other));
    if (garbage == 0xff) continue;
    EXPECT_EQ(first.out_bytes, other.out_bytes) << "garbage " << int{garbage};
    EXPECT_EQ(first.lse_bytes, other.lse_bytes) << "garbage " << int{garbage};
  }
  return OkStatus();
}

}  // namespace

void AddMemoryCases() {
  for (const CacheSpec& spec :
       {Both(Int8(64)), Both(Float(DType::kF32)), Both(Float(DType::kBF16), 128, 1, 32), Latent(Int8(64))}) {
    AddCase("Memory.KeepsToPaddedStrides/" + NameOf(spec), [spec] { return KeepsToPaddedStrides(spec); });
  }
  AddCase("Memory.ReachesBeyondFourGiB/f32", ReachesBeyondFourGiB);
  for (const SideSpec& side : {Int8(64), Float(DType::kF32)}) {
    AttentionCase c;
    c.cache = Both(side);
    c.sequences = {{1, 37, 0, 0}, {5, 70, 0, 1}};
    AddCase("Memory.GarbageDoesNotMatter/" + NameOf(c), [c] { return GarbageDoesNotMatter(c); });
  }
}

}  // namespace octet::conformance
