// Pages as wholes: they travel through canonical pages and copies without loss, and hold the same bytes however their
// rows came in.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

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
}

}  // namespace octet::conformance
