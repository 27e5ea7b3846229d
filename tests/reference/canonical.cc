#include "tests/reference/canonical.h"

#include <cstring>

#include "tests/reference/float_types.h"

namespace octet::reference {
namespace {

const CacheSide* SideOf(const KvLayout& layout, int which) {
  if (which == kSideK) return &layout.k;
  if (which == kSideV) return layout.v_is_k ? nullptr : &layout.v;
  return layout.has_k_extra ? &layout.k_extra : nullptr;
}

void StoreAll(DType type, const std::vector<float>& values, uint8_t* at) {
  for (size_t i = 0; i < values.size(); ++i)
    StoreFloat(type, values[i], at + i * static_cast<size_t>(ElementBytes(type)));
}

std::vector<float> LoadAll(DType type, int64_t bytes, const uint8_t* at) {
  std::vector<float> values;
  for (int64_t i = 0; i < bytes; i += ElementBytes(type)) values.push_back(LoadFloat(type, at + i));
  return values;
}

}  // namespace

PieceMap MapPiece(const KvLayout& layout) {
  PieceMap map;
  auto add = [&](Run& run, int64_t row_bytes) {
    run.offset = map.bytes;
    run.row_bytes = row_bytes;
    map.bytes += (row_bytes * layout.page_tokens + 127) / 128 * 128;
  };
  auto add_codes = [&](int i) {
    if (const CacheSide* s = SideOf(layout, i)) add(map.codes[i], s->head_dim * ElementBytes(s->data_type));
  };
  auto add_scales_and_zeros = [&](int i) {
    const CacheSide* s = SideOf(layout, i);
    if (s == nullptr || !s->dynamic()) return;
    add(map.scales[i], s->groups() * ElementBytes(s->scale_type));
    if (s->scheme == Scheme::kAsymmetric) add(map.zeros[i], s->groups() * ElementBytes(s->zero_type));
  };
  add_codes(kSideK);
  add_codes(kSideV);
  add_scales_and_zeros(kSideK);
  add_scales_and_zeros(kSideV);
  add_codes(kSideKExtra);
  add_scales_and_zeros(kSideKExtra);
  return map;
}

int64_t CanonicalPageBytes(const KvLayout& layout) { return layout.kv_heads * MapPiece(layout).bytes; }

void PutRow(const KvLayout& layout, SideIndex which, std::span<uint8_t> page, int kv_head, int index,
            const StoredRow& row) {
  const PieceMap map = MapPiece(layout);
  const CacheSide& side = *SideOf(layout, which);
  uint8_t* piece = page.data() + kv_head * map.bytes;
  auto at = [&](const Run& run) { return piece + run.offset + index * run.row_bytes; };
  std::memcpy(at(map.codes[which]), row.data.data(), row.data.size());
  StoreAll(side.scale_type, row.scale, at(map.scales[which]));
  StoreAll(side.zero_type, row.zero, at(map.zeros[which]));
}

StoredRow GetRow(const KvLayout& layout, SideIndex which, std::span<const uint8_t> page, int kv_head, int index) {
  const PieceMap map = MapPiece(layout);
  const CacheSide& side = *SideOf(layout, which);
  const uint8_t* piece = page.data() + kv_head * map.bytes;
  auto at = [&](const Run& run) { return piece + run.offset + index * run.row_bytes; };
  StoredRow row;
  row.data.assign(at(map.codes[which]), at(map.codes[which]) + map.codes[which].row_bytes);
  row.scale = LoadAll(side.scale_type, map.scales[which].row_bytes, at(map.scales[which]));
  row.zero = LoadAll(side.zero_type, map.zeros[which].row_bytes, at(map.zeros[which]));
  return row;
}

}  // namespace octet::reference
