#include "tests/conformance/test_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/reference/float_types.h"
#include "tests/reference/random.h"

namespace octet::conformance {
namespace {

using reference::kSideK;
using reference::kSideKExtra;
using reference::kSideV;

CacheSide SideOf(const SideSpec& spec, int head_dim) {
  CacheSide side;
  side.data_type = spec.type;
  side.scheme = spec.scheme;
  side.axis = spec.axis;
  side.group = spec.group;
  if (spec.scheme != Scheme::kNone) side.scale_type = spec.scale_type;
  if (spec.scheme == Scheme::kAsymmetric) side.zero_type = spec.scale_type;
  side.head_dim = head_dim;
  side.rotation = spec.rotation;
  return side;
}

// Static scales that cover normal rows up to about four deviations, all different.
reference::StaticQuant StaticsOf(const CacheSide& side, int kv_heads, uint64_t seed) {
  reference::StaticQuant statics;
  if (!side.quantized() || side.dynamic()) return statics;
  reference::Random random(seed);
  const int n = side.axis == Axis::kTensor ? 1 : side.axis == Axis::kHead ? kv_heads : kv_heads * side.head_dim;
  for (int i = 0; i < n; ++i) {
    statics.scale.push_back(random.Uniform(3.0, 5.0) / 127.0f);
    if (side.scheme == Scheme::kAsymmetric) statics.zero.push_back(random.Uniform(-0.5, 0.5));
  }
  return statics;
}

Tensor StaticTensor(const Block& block, const CacheSide& side, int kv_heads) {
  if (side.axis == Axis::kTensor) return block.View(DType::kF32, {1});
  if (side.axis == Axis::kHead) return block.View(DType::kF32, {kv_heads});
  return block.View(DType::kF32, {kv_heads, side.head_dim});
}

bool SameBits(float a, float b) { return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0; }

template <typename T>
std::string Say(const char* what, size_t index, T got, T want) {
  std::ostringstream text;
  text.precision(9);
  text << what << "[" << index << "] got " << got << ", want " << want;
  return text.str();
}

// The first difference between two stored rows, empty when there is none.
std::string Difference(const CacheSide& side, const reference::StoredRow& got, const reference::StoredRow& want) {
  for (size_t g = 0; g < want.scale.size(); ++g) {
    if (!SameBits(got.scale[g], want.scale[g])) return Say("scale", g, got.scale[g], want.scale[g]);
    // The sign of a zero point of 0 depends on which of -0 and 0 counts as the smaller: both are right. A group that is
    // not finite has none.
    if (!want.zero.empty() && !std::isnan(want.scale[g]) && got.zero[g] != want.zero[g]) {
      return Say("zero", g, got.zero[g], want.zero[g]);
    }
  }
  const size_t width = static_cast<size_t>(ElementBytes(side.data_type));
  for (size_t c = 0; c < want.data.size() / width; ++c) {
    if (side.quantized()) {
      const int g = static_cast<int8_t>(got.data[c]), w = static_cast<int8_t>(want.data[c]);
      if (g != w) return Say("code", c, g, w);
      continue;
    }
    const float g = reference::LoadFloat(side.data_type, &got.data[c * width]);
    const float w = reference::LoadFloat(side.data_type, &want.data[c * width]);
    if (!SameBits(g, w)) return Say("value", c, g, w);
  }
  return "";
}

}  // namespace

SideSpec Int8(int rotation) {
  SideSpec side;
  side.rotation = rotation;
  return side;
}

SideSpec Float(DType type, int rotation) {
  SideSpec side;
  side.type = type;
  side.scheme = Scheme::kNone;
  side.rotation = rotation;
  return side;
}

std::string NameOf(const SideSpec& side) {
  std::string name = side.type == DType::kI8 ? "i8" : DTypeName(side.type);
  if (side.scheme != Scheme::kNone) {
    const char* axes[] = {"_tensor", "_head", "_channel", "_token"};
    name += axes[static_cast<int>(side.axis)];
    if (side.scheme == Scheme::kAsymmetric) name += "_asym";
    if (side.group > 0) name += "_g" + std::to_string(side.group);
    if (side.scale_type == DType::kBF16) name += "_sbf16";
  }
  if (side.rotation > 0) name += "_rot" + std::to_string(side.rotation);
  return name;
}

CacheSpec Both(SideSpec side, int head_dim, int kv_heads, int page_tokens) {
  CacheSpec spec;
  spec.k = spec.v = side;
  spec.k_dim = spec.v_dim = head_dim;
  spec.kv_heads = kv_heads;
  spec.page_tokens = page_tokens;
  return spec;
}

CacheSpec Latent(SideSpec side, int latent_dim, int extra_dim, SideSpec extra) {
  CacheSpec spec = Both(side, latent_dim + extra_dim, 1, 64);
  spec.v_dim = latent_dim;
  spec.latent = true;
  spec.k_extra = extra;
  return spec;
}

std::string NameOf(const CacheSpec& spec) {
  std::ostringstream name;
  const std::string k = NameOf(spec.k), v = NameOf(spec.v);
  if (spec.latent) {
    name << "latent_" << k;
    if (spec.k_extra.type != DType::kBF16) name << "_extra-" << NameOf(spec.k_extra);
  } else if (k == v) {
    name << k;
  } else {
    name << "k-" << k << "_v-" << v;
  }
  if (spec.offset_block > 0) name << "_off" << spec.offset_block;
  name << "_p" << spec.page_tokens << "_kv" << spec.kv_heads << "_d" << spec.k_dim;
  if (spec.v_dim != spec.k_dim) name << "v" << spec.v_dim;
  return name.str();
}

KvLayout LayoutOf(const CacheSpec& spec, int num_pages) {
  KvLayout layout;
  layout.page_tokens = spec.page_tokens;
  layout.kv_heads = spec.kv_heads;
  layout.num_pages = num_pages;
  layout.offset_block = spec.offset_block;
  layout.k = SideOf(spec.k, spec.latent ? spec.v_dim : spec.k_dim);
  layout.v = spec.latent ? layout.k : SideOf(spec.v, spec.v_dim);
  layout.v_is_k = layout.has_k_extra = spec.latent;
  if (spec.latent) layout.k_extra = SideOf(spec.k_extra, spec.k_dim - spec.v_dim);
  return layout;
}

void FillRowStrides(KvLayout& layout) {
  uint64_t end = 0;
  auto place = [&](uint64_t& base, std::array<int64_t, 3>& stride, int64_t row_bytes) {
    base = end;
    stride = {row_bytes * layout.page_tokens * layout.kv_heads, row_bytes * layout.page_tokens, row_bytes};
    end += (static_cast<uint64_t>(stride[0]) * static_cast<uint64_t>(layout.num_pages) + 127) / 128 * 128;
  };
  auto place_side = [&](CacheSide& side) {
    place(side.data_base, side.data_stride, side.head_dim * ElementBytes(side.data_type));
    if (side.dynamic()) place(side.scale_base, side.scale_stride, side.groups() * ElementBytes(side.scale_type));
    if (side.dynamic() && side.scheme == Scheme::kAsymmetric) {
      place(side.zero_base, side.zero_stride, side.groups() * ElementBytes(side.zero_type));
    }
  };
  place_side(layout.k);
  if (layout.v_is_k) {
    layout.v = layout.k;
  } else {
    place_side(layout.v);
  }
  if (layout.has_k_extra) place_side(layout.k_extra);
  layout.layer_bytes = end;
}

std::vector<float> OffsetTable(const CacheSpec& spec, int positions) {
  if (spec.offset_block == 0) return {};
  const int blocks = positions / spec.offset_block + 1;
  reference::Random random(0x0ff5e7);
  return random.Normals(static_cast<size_t>(blocks * spec.kv_heads * spec.k_dim), 4.0f);
}

std::vector<int64_t> SlotsOf(int first, int count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), first);
  return slots;
}

Rows NormalRows(const CacheSpec& spec, const std::vector<int64_t>& slots, uint64_t seed) {
  reference::Random random(seed);
  Rows rows;
  rows.slots = slots;
  for (size_t i = 0; i < slots.size(); ++i) rows.positions.push_back(static_cast<int32_t>(i));
  rows.k = random.Normals(slots.size() * static_cast<size_t>(spec.kv_heads * spec.k_dim));
  rows.v = random.Normals(slots.size() * static_cast<size_t>(spec.kv_heads * spec.v_dim));
  return rows;
}

Status TestCache::Init(const CacheSpec& spec, int num_pages, int positions, uint8_t garbage) {
  KvLayout layout = LayoutOf(spec, num_pages);
  OCTET_RETURN_IF_ERROR(TheSubject().device->quant().ChooseLayout(layout));
  return InitWithLayout(spec, layout, positions, garbage);
}

Status TestCache::InitWithLayout(const CacheSpec& spec, const KvLayout& layout, int positions, uint8_t garbage) {
  spec_ = spec;
  layout_ = layout;
  const Support support = TheSubject().device->quant().Supports(layout_, DType::kF32);
  if (support.level == 0) return Unimplemented(support.reason);
  if (layout_.layer_bytes == 0) return Internal("choose_layout left layer_bytes at 0");
  memory_ = std::make_unique<Block>(layout_.layer_bytes, garbage);
  layer_.cache = memory_->buffer();
  layer_.cache_offset = memory_->offset();

  auto lend = [](const std::vector<float>& values, std::unique_ptr<Block>& block, Tensor& tensor, const Tensor*& slot,
                 auto view) {
    if (values.empty()) return;
    block = std::make_unique<Block>(values);
    tensor = view(*block);
    slot = &tensor;
  };
  offsets_ = OffsetTable(spec, positions);
  lend(offsets_, offset_block_, offset_, layer_.k_offset, [&](const Block& b) {
    return b.View(DType::kF32, {positions / spec.offset_block + 1, spec.kv_heads, spec.k_dim});
  });
  k_static_ = StaticsOf(layout_.k, spec.kv_heads, 11);
  if (!spec.latent) v_static_ = StaticsOf(layout_.v, spec.kv_heads, 12);
  auto k_view = [&](const Block& b) { return StaticTensor(b, layout_.k, spec.kv_heads); };
  auto v_view = [&](const Block& b) { return StaticTensor(b, layout_.v, spec.kv_heads); };
  lend(k_static_.scale, k_scale_block_, k_scale_, layer_.k_scale, k_view);
  lend(k_static_.zero, k_zero_block_, k_zero_, layer_.k_zero, k_view);
  lend(v_static_.scale, v_scale_block_, v_scale_, layer_.v_scale, v_view);
  lend(v_static_.zero, v_zero_block_, v_zero_, layer_.v_zero, v_view);
  return OkStatus();
}

void TestCache::SetSinks(const std::vector<float>& sinks) {
  if (sinks.empty()) return;
  sinks_block_ = std::make_unique<Block>(sinks);
  sinks_ = sinks_block_->View(DType::kF32, {static_cast<int64_t>(sinks.size())});
  layer_.sinks = &sinks_;
}

DeviceRows::DeviceRows(const CacheSpec& spec, const Rows& rows)
    : latent_(spec.latent),
      k_block_(rows.k),
      v_block_(rows.v),
      slot_block_(rows.slots),
      position_block_(rows.positions),
      k(k_block_.View(DType::kF32, {rows.tokens(), spec.kv_heads, spec.k_dim})),
      v(v_block_.View(DType::kF32, {rows.tokens(), spec.kv_heads, spec.v_dim})),
      slots(slot_block_.View(DType::kI64, {rows.tokens()})),
      positions(position_block_.View(DType::kI32, {rows.tokens()})) {}

Status TestCache::Append(const Rows& rows) {
  const DeviceRows source(spec_, rows);
  const Status status = TheSubject().device->quant().Append(TheSubject().s(), layout_, layer_, source.tokens());
  Sync();
  return Promised("append", status);
}

Status TestCache::Gather(Rows& rows) {
  const int n = rows.tokens();
  const Block k(static_cast<uint64_t>(n * spec_.kv_heads * spec_.k_dim) * 4);
  const Block v(static_cast<uint64_t>(n * spec_.kv_heads * spec_.v_dim) * 4);
  const Block slots(rows.slots), positions(rows.positions);
  const Tensor kt = k.View(DType::kF32, {n, spec_.kv_heads, spec_.k_dim});
  const Tensor vt = v.View(DType::kF32, {n, spec_.kv_heads, spec_.v_dim});
  const Tensor st = slots.View(DType::kI64, {n}), pt = positions.View(DType::kI32, {n});
  const KvTokens tokens{&kt, spec_.latent ? nullptr : &vt, &st, &pt};
  const Status status = TheSubject().device->quant().Gather(TheSubject().s(), layout_, layer_, tokens);
  Sync();
  rows.k = k.Floats(DType::kF32);
  if (!spec_.latent) rows.v = v.Floats(DType::kF32);
  return Promised("gather", status);
}

Status TestCache::CopyPages(const std::vector<int32_t>& pairs) {
  const Block block(pairs);
  const Tensor t = block.View(DType::kI32, {static_cast<int64_t>(pairs.size() / 2), 2});
  const Status status = TheSubject().device->quant().CopyPages(TheSubject().s(), layout_, layer_, t);
  Sync();
  return Promised("copy_pages", status);
}

Status TestCache::Export(const std::vector<int32_t>& pages, std::vector<uint8_t>* canonical) {
  const Block list(pages);
  const Block out(pages.size() * static_cast<uint64_t>(reference::CanonicalPageBytes(layout_)));
  const Tensor t = list.View(DType::kI32, {static_cast<int64_t>(pages.size())});
  const Status status =
      TheSubject().device->quant().ExportPages(TheSubject().s(), layout_, layer_, t, *out.buffer(), out.offset());
  Sync();
  *canonical = out.Bytes();
  return Promised("export_pages", status);
}

Status TestCache::Import(const std::vector<int32_t>& pages, const std::vector<uint8_t>& canonical) {
  const Block list(pages), in(canonical);
  const Tensor t = list.View(DType::kI32, {static_cast<int64_t>(pages.size())});
  const Status status =
      TheSubject().device->quant().ImportPages(TheSubject().s(), layout_, layer_, t, *in.buffer(), in.offset());
  Sync();
  return Promised("import_pages", status);
}

const float* TestCache::OffsetRow(int position, int head) const {
  if (offsets_.empty()) return nullptr;
  return &offsets_[static_cast<size_t>((position / spec_.offset_block * spec_.kv_heads + head) * spec_.k_dim)];
}

std::vector<reference::StoredRow> TestCache::EncodeK(std::span<const float> row, int head, int position) const {
  std::vector<float> x(row.begin(), row.end());
  if (const float* offset = OffsetRow(position, head)) {
    for (size_t c = 0; c < x.size(); ++c) x[c] -= offset[c];
  }
  const std::span<const float> all(x);
  const size_t main_dim = static_cast<size_t>(layout_.k.head_dim);
  std::vector<reference::StoredRow> stored = {
      reference::EncodeRow(layout_.k, all.subspan(0, main_dim), k_static_, head)};
  if (layout_.has_k_extra) stored.push_back(reference::EncodeRow(layout_.k_extra, all.subspan(main_dim), {}, head));
  return stored;
}

reference::StoredRow TestCache::EncodeV(std::span<const float> row, int head) const {
  return reference::EncodeRow(layout_.v, row, v_static_, head);
}

namespace {

// |scale * code| + |what is added to it|, by channel; `value` may be longer than the side's row.
std::vector<double> SumOfParts(std::vector<double> value, const CacheSide& side, const reference::StoredRow& stored,
                               const reference::StaticQuant& statics, int head) {
  std::vector<double> codes;
  if (side.scheme == Scheme::kAsymmetric) {
    CacheSide plain = side;
    plain.scheme = Scheme::kSymmetric;
    codes = reference::DecodeRow<double>(plain, stored, statics, head);
  }
  for (size_t c = 0; c < value.size(); ++c) {
    value[c] = c < codes.size() ? std::abs(codes[c]) + std::abs(value[c] - codes[c]) : std::abs(value[c]);
  }
  return value;
}

}  // namespace

std::vector<double> TestCache::DecodeK(const std::vector<reference::StoredRow>& stored, int head, int position) const {
  std::vector<double> x = reference::DecodeRow<double>(layout_.k, stored[0], k_static_, head);
  if (stored.size() > 1) {
    const auto extra = reference::DecodeRow<double>(layout_.k_extra, stored[1], {}, head);
    x.insert(x.end(), extra.begin(), extra.end());
  }
  if (const float* offset = OffsetRow(position, head)) {
    for (size_t c = 0; c < x.size(); ++c) x[c] += offset[c];
  }
  return x;
}

std::vector<double> TestCache::DecodeV(const std::vector<reference::StoredRow>& k, const reference::StoredRow& v,
                                       int head) const {
  if (layout_.v_is_k) return reference::DecodeRow<double>(layout_.k, k[0], k_static_, head);
  return reference::DecodeRow<double>(layout_.v, v, v_static_, head);
}

std::vector<double> TestCache::SizeOfK(const std::vector<reference::StoredRow>& stored, int head, int position) const {
  return SumOfParts(DecodeK(stored, head, position), layout_.k, stored[0], k_static_, head);
}

std::vector<double> TestCache::SizeOfV(const std::vector<reference::StoredRow>& k, const reference::StoredRow& v,
                                       int head) const {
  const std::vector<double> value = DecodeV(k, v, head);
  return layout_.v_is_k ? SumOfParts(value, layout_.k, k[0], k_static_, head)
                        : SumOfParts(value, layout_.v, v, v_static_, head);
}

std::vector<double> TestCache::StepBound(reference::SideIndex which, const reference::StoredRow& stored,
                                         int head) const {
  const CacheSide& side = which == kSideV ? layout_.v : which == kSideKExtra ? layout_.k_extra : layout_.k;
  const reference::StaticQuant& statics = which == kSideV ? v_static_ : k_static_;  // extra K has none
  const size_t dim = static_cast<size_t>(side.head_dim), width = dim / static_cast<size_t>(side.groups());
  // Half a step of every stored channel: the value of a row of half codes without zeros and rotation.
  CacheSide plain = side;
  plain.rotation = 0;
  plain.scheme = side.quantized() ? Scheme::kSymmetric : side.scheme;
  reference::StoredRow ones = stored;
  std::vector<double> step(dim), value = reference::DecodeRow<double>(plain, stored, statics, head);
  if (side.quantized()) std::fill(ones.data.begin(), ones.data.end(), uint8_t{1});
  const std::vector<double> unit = reference::DecodeRow<double>(plain, ones, statics, head);
  for (size_t c = 0; c < dim; ++c) {
    double zero = 0;
    if (side.scheme == Scheme::kAsymmetric) {
      zero = side.dynamic() ? stored.zero[c / width] : *std::max_element(statics.zero.begin(), statics.zero.end());
    }
    // A rounded scale may leave the largest value outside the range by up to 2^-8 of 127 steps.
    const double half = side.scale_type == DType::kBF16 ? 1.0 : 0.5;
    step[c] = side.quantized() ? std::abs(unit[c]) * half : reference::Ulp(side.data_type, value[c]) / 2;
    step[c] += 0x1p-22 * (std::abs(value[c]) + std::abs(zero));
  }
  if (side.rotation == 0) return step;
  // Undoing the rotation adds the block's errors, each times 1/sqrt(block); float butterflies add rounding.
  const size_t block = static_cast<size_t>(side.rotation);
  for (size_t start = 0; start < dim; start += block) {
    double sum = 0, size = 0;
    for (size_t c = start; c < start + block; ++c) {
      sum += step[c];
      size += std::abs(value[c]);
    }
    const double bound = (sum + size * 0x1p-24 * (2 + std::log2(static_cast<double>(block)))) / std::sqrt(block);
    std::fill(step.begin() + static_cast<int64_t>(start), step.begin() + static_cast<int64_t>(start + block), bound);
  }
  return step;
}

void TestCache::ExpectStored(const Rows& rows, const std::vector<int32_t>& pages,
                             const std::vector<uint8_t>& canonical) const {
  const size_t page_bytes = static_cast<size_t>(reference::CanonicalPageBytes(layout_));
  std::map<int32_t, size_t> place;
  for (size_t i = 0; i < pages.size(); ++i) place[pages[i]] = i;
  std::set<int64_t> later;
  int shown = 0;
  for (int t = rows.tokens() - 1; t >= 0 && shown < 3; --t) {
    const int64_t slot = rows.slots[static_cast<size_t>(t)];
    if (slot < 0 || !later.insert(slot).second) continue;
    const int32_t page = static_cast<int32_t>(slot / spec_.page_tokens);
    const int index = static_cast<int>(slot % spec_.page_tokens), position = rows.positions[static_cast<size_t>(t)];
    const std::span<const uint8_t> bytes(&canonical[place.at(page) * page_bytes], page_bytes);
    for (int h = 0; h < spec_.kv_heads; ++h) {
      auto expect = [&](reference::SideIndex which, const CacheSide& side, const reference::StoredRow& want) {
        const char* names[] = {"K", "V", "K extra"};
        const auto got = reference::GetRow(layout_, which, bytes, h, index);
        const std::string difference = Difference(side, got, want);
        if (difference.empty()) return;
        ++shown;
        ADD_FAILURE() << names[which] << " of token " << t << " (position " << position << ", page " << page << " slot "
                      << index << ", KV head " << h << "): " << difference;
      };
      const size_t row = static_cast<size_t>(t * spec_.kv_heads + h);
      const size_t k_dim = static_cast<size_t>(spec_.k_dim), v_dim = static_cast<size_t>(spec_.v_dim);
      const auto k = EncodeK(std::span<const float>(rows.k).subspan(row * k_dim, k_dim), h, position);
      expect(kSideK, layout_.k, k[0]);
      if (k.size() > 1) expect(kSideKExtra, layout_.k_extra, k[1]);
      if (!layout_.v_is_k) {
        expect(kSideV, layout_.v, EncodeV(std::span<const float>(rows.v).subspan(row * v_dim, v_dim), h));
      }
    }
  }
}

}  // namespace octet::conformance
