// Pages as wholes: they travel through canonical pages and copies without loss, and hold the same bytes however their
// rows came in. Also the strides that a caller may choose, and what memory around them must keep.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

std::vector<int64_t> SlotsOf(int first, int count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), first);
  return slots;
}

std::vector<CacheSpec> Specs() {
  SideSpec asymmetric = Int8(), groups = Int8(64), by_channel = Int8();
  asymmetric.scheme = Scheme::kAsymmetric;
  groups.group = 32;
  groups.scale_type = DType::kBF16;
  by_channel.axis = Axis::kChannel;
  std::vector<CacheSpec> specs = {Both(Int8(64)),
                                  Both(asymmetric),
                                  Both(groups),
                                  Both(by_channel),
                                  Both(Float(DType::kF32)),
                                  Both(Float(DType::kBF16)),
                                  Both(Int8(64), 64, 3, 48),
                                  Both(Int8(8), 40, 2, 1)};
  CacheSpec mixed = Both(Int8(64), 192, 2, 32);
  mixed.v = Float(DType::kBF16);
  mixed.v_dim = 128;
  specs.push_back(mixed);
  specs.push_back(Latent(Int8(64)));
  specs.push_back(Latent(Int8(), 64, 16, Int8(16)));
  return specs;
}

// Full pages 0..2 of normal rows.
Status FillThreePages(TestCache& cache, Rows* rows) {
  *rows = NormalRows(cache.spec(), SlotsOf(0, 3 * cache.spec().page_tokens), 21);
  return cache.Append(*rows);
}

Rows Moved(Rows rows, const CacheSpec& spec, const std::vector<int32_t>& to) {
  for (int64_t& slot : rows.slots) {
    slot = to[static_cast<size_t>(slot / spec.page_tokens)] * int64_t{spec.page_tokens} + slot % spec.page_tokens;
  }
  return rows;
}

Status ExportsTheListedPages(const CacheSpec& spec) {
  TestCache cache;
  Rows rows;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 5));
  OCTET_RETURN_IF_ERROR(FillThreePages(cache, &rows));
  std::vector<uint8_t> canonical;
  OCTET_RETURN_IF_ERROR(cache.Export({2, 0, 1}, &canonical));
  cache.ExpectStored(rows, {2, 0, 1}, canonical);
  return OkStatus();
}

Status ImportsWhatItExported(const CacheSpec& spec) {
  TestCache cache, other;
  Rows rows;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 5));
  OCTET_RETURN_IF_ERROR(FillThreePages(cache, &rows));
  std::vector<uint8_t> canonical, again;
  OCTET_RETURN_IF_ERROR(cache.Export({0, 1, 2}, &canonical));
  OCTET_RETURN_IF_ERROR(other.Init(spec, 7));
  OCTET_RETURN_IF_ERROR(other.Import({6, 1, 3}, canonical));
  OCTET_RETURN_IF_ERROR(other.Export({6, 1, 3}, &again));
  const Rows moved = Moved(rows, spec, {6, 1, 3});
  other.ExpectStored(moved, {6, 1, 3}, again);
  Rows here = rows, there = moved;
  OCTET_RETURN_IF_ERROR(cache.Gather(here));
  OCTET_RETURN_IF_ERROR(other.Gather(there));
  EXPECT_EQ(here.k, there.k);
  EXPECT_EQ(here.v, there.v);
  return OkStatus();
}

// The reference's own pages, made without the backend, are read as they are meant.
Status ImportsPagesMadeElsewhere() {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 4));
  const Rows rows = NormalRows(spec, SlotsOf(0, spec.page_tokens), 22);
  std::vector<uint8_t> page(static_cast<size_t>(reference::CanonicalPageBytes(cache.layout())));
  for (int t = 0; t < spec.page_tokens; ++t) {
    for (int h = 0; h < spec.kv_heads; ++h) {
      const size_t at = static_cast<size_t>((t * spec.kv_heads + h) * 64);
      const std::span<const float> k(&rows.k[at], 64), v(&rows.v[at], 64);
      reference::PutRow(cache.layout(), reference::kSideK, page, h, t, cache.EncodeK(k, h, t)[0]);
      reference::PutRow(cache.layout(), reference::kSideV, page, h, t, cache.EncodeV(v, h));
    }
  }
  OCTET_RETURN_IF_ERROR(cache.Import({2}, page));
  Rows appended = Moved(rows, spec, {1}), imported = Moved(rows, spec, {2});
  OCTET_RETURN_IF_ERROR(cache.Append(appended));
  OCTET_RETURN_IF_ERROR(cache.Gather(appended));
  OCTET_RETURN_IF_ERROR(cache.Gather(imported));
  EXPECT_EQ(appended.k, imported.k);
  EXPECT_EQ(appended.v, imported.v);
  return OkStatus();
}

Status CopiesPages(const CacheSpec& spec) {
  TestCache cache;
  Rows rows;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 7));
  OCTET_RETURN_IF_ERROR(FillThreePages(cache, &rows));
  // One source twice, one destination the last page.
  OCTET_RETURN_IF_ERROR(cache.CopyPages({0, 6, 2, 3, 0, 4}));
  std::vector<uint8_t> canonical;
  OCTET_RETURN_IF_ERROR(cache.Export({0, 1, 2, 6, 3, 4}, &canonical));
  cache.ExpectStored(rows, {0, 1, 2, 6, 3, 4}, canonical);
  const std::vector<int32_t> copies[] = {{6, 1, 3}, {4, 1, 2}};
  for (const auto& to : copies) cache.ExpectStored(Moved(rows, spec, to), {0, 1, 2, 6, 3, 4}, canonical);
  OCTET_RETURN_IF_ERROR(cache.CopyPages({}));
  return OkStatus();
}

// A token's codes depend on its own k and v, its position and the layer only.
Status StoresTheSameRowsHoweverTheyCome(const CacheSpec& spec) {
  TestCache whole, one_by_one;
  OCTET_RETURN_IF_ERROR(whole.Init(spec, 3));
  OCTET_RETURN_IF_ERROR(one_by_one.Init(spec, 3));
  const Rows rows = NormalRows(spec, SlotsOf(0, 2 * spec.page_tokens), 23);
  OCTET_RETURN_IF_ERROR(whole.Append(rows));
  const size_t k_width = static_cast<size_t>(spec.kv_heads * spec.k_dim),
               v_width = static_cast<size_t>(spec.kv_heads * spec.v_dim);
  for (size_t t = static_cast<size_t>(rows.tokens()); t-- > 0;) {
    Rows row;
    row.slots = {rows.slots[t]};
    row.positions = {rows.positions[t]};
    row.k.assign(rows.k.begin() + static_cast<int64_t>(t * k_width),
                 rows.k.begin() + static_cast<int64_t>((t + 1) * k_width));
    row.v.assign(rows.v.begin() + static_cast<int64_t>(t * v_width),
                 rows.v.begin() + static_cast<int64_t>((t + 1) * v_width));
    OCTET_RETURN_IF_ERROR(one_by_one.Append(row));
  }
  EXPECT_EQ(whole.memory().Bytes(), one_by_one.memory().Bytes());
  return OkStatus();
}

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
  const Block k(rows.k), v(rows.v), k_out(rows.k.size() * 4), v_out(rows.v.size() * 4), slot_block(rows.slots),
      positions(rows.positions);
  auto view = [&](const Block& b) { return b.View(DType::kF32, {n, spec.kv_heads, 64}); };
  const Tensor kt = view(k), vt = view(v), ko = view(k_out), vo = view(v_out);
  const Tensor st = slot_block.View(DType::kI64, {n}), pt = positions.View(DType::kI32, {n});
  OCTET_RETURN_IF_ERROR(Promised("append", quant.Append(TheSubject().s(), layout, layer, {&kt, &vt, &st, &pt})));
  OCTET_RETURN_IF_ERROR(Promised("gather", quant.Gather(TheSubject().s(), layout, layer, {&ko, &vo, &st, &pt})));
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
  std::unique_ptr<Block> workspace;
  if (attends.workspace_bytes > 0) workspace = std::make_unique<Block>(attends.workspace_bytes);
  auto plan = attention.MakePlan(desc, workspace != nullptr ? workspace->buffer() : nullptr,
                                 workspace != nullptr ? workspace->offset() : 0);
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

// Attention over pages that came through export and import.
Status AttendsTheSameAfterARoundTrip() {
  AttentionCase c;
  c.cache = Both(Int8(64));
  c.sequences = {{1, 50, 0, 0}, {3, 20, 0, 1}};
  Scene scene;
  OCTET_RETURN_IF_ERROR(scene.Init(c));
  OCTET_RETURN_IF_ERROR(scene.AppendAll());
  AttentionResult before, after;
  OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &before));
  std::vector<int32_t> pages;
  for (int s : {0, 1}) pages.insert(pages.end(), scene.data(s).pages.begin(), scene.data(s).pages.end());
  std::vector<uint8_t> canonical;
  OCTET_RETURN_IF_ERROR(scene.cache().Export(pages, &canonical));
  scene.cache().memory().Write(std::vector<uint8_t>(scene.cache().memory().size(), 0xff));
  OCTET_RETURN_IF_ERROR(scene.cache().Import(pages, canonical));
  OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &after));
  EXPECT_EQ(before.out_bytes, after.out_bytes);
  EXPECT_EQ(before.lse_bytes, after.lse_bytes);
  return OkStatus();
}

}  // namespace

void AddPageCases() {
  for (const CacheSpec& spec : Specs()) {
    AddCase("Pages.ExportsTheListedPages/" + NameOf(spec), [spec] { return ExportsTheListedPages(spec); });
    AddCase("Pages.ImportsWhatItExported/" + NameOf(spec), [spec] { return ImportsWhatItExported(spec); });
    AddCase("Pages.CopiesPages/" + NameOf(spec), [spec] { return CopiesPages(spec); });
    AddCase("Metamorphic.SameRowsHoweverTheyCome/" + NameOf(spec),
            [spec] { return StoresTheSameRowsHoweverTheyCome(spec); });
  }
  AddCase("Pages.ImportsPagesMadeElsewhere/i8_token_rot64", ImportsPagesMadeElsewhere);
  AddCase("Metamorphic.SameAttentionAfterARoundTrip/i8_token_rot64", AttendsTheSameAfterARoundTrip);
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
