// A layer's cache of the reference backend: rows of K and V found by the layout's strides, decoded and stored.
#ifndef OCTET_TESTS_MUTANTS_REFERENCE_CACHE_H_
#define OCTET_TESTS_MUTANTS_REFERENCE_CACHE_H_

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "octet/host_memory.hpp"
#include "tests/mutants/fault.h"
#include "tests/mutants/host_tensors.h"
#include "tests/reference/canonical.h"
#include "tests/reference/quantize.h"

namespace octet::mutants {

struct Place {
  const CacheSide& side;
  uint8_t* base;

  uint8_t* Data(int64_t page, int head, int64_t index) const {
    return Row(side.data_base, side.data_stride, page, head, index);
  }
  void Store(int64_t page, int head, int64_t index, const ref::StoredRow& row) const {
    std::memcpy(Data(page, head, index), row.data.data(), row.data.size());
    Put(row.scale, side.scale_type, Row(side.scale_base, side.scale_stride, page, head, index));
    Put(row.zero, side.zero_type, Row(side.zero_base, side.zero_stride, page, head, index));
  }
  ref::StoredRow Load(int64_t page, int head, int64_t index) const {
    ref::StoredRow row;
    const uint8_t* data = Data(page, head, index);
    row.data.assign(data, data + side.head_dim * ElementBytes(side.data_type));
    if (!side.dynamic()) return row;
    row.scale = Take(side.scale_type, Row(side.scale_base, side.scale_stride, page, head, index));
    if (side.scheme == Scheme::kAsymmetric)
      row.zero = Take(side.zero_type, Row(side.zero_base, side.zero_stride, page, head, index));
    return row;
  }

 private:
  uint8_t* Row(uint64_t start, const std::array<int64_t, 3>& stride, int64_t page, int head, int64_t index) const {
    const uint64_t offset =
        start + static_cast<uint64_t>(page * stride[0]) + static_cast<uint64_t>(head * stride[1] + index * stride[2]);
    return base + (Faulty("index_32bit") ? static_cast<uint32_t>(offset) : offset);
  }
  static void Put(const std::vector<float>& values, DType type, uint8_t* at) {
    for (size_t i = 0; i < values.size(); ++i)
      ref::StoreFloat(type, values[i], at + i * static_cast<size_t>(ElementBytes(type)));
  }
  std::vector<float> Take(DType type, const uint8_t* at) const {
    std::vector<float> values;
    for (int i = 0; i < side.groups(); ++i) values.push_back(ref::LoadFloat(type, at + i * ElementBytes(type)));
    return values;
  }
};

// One layer's cache, opened for reading and writing rows.
struct OpenCache {
  OpenCache(const KvLayout& l, const KvLayer& y)
      : layout(l),
        k{l.k, Base(y)},
        v{l.v, Base(y)},
        k_static{Floats(y.k_scale), Floats(y.k_zero)},
        v_static{Floats(y.v_scale), Floats(y.v_zero)},
        offsets(Floats(y.k_offset)) {}

  const float* Offset(int position, int head) const {
    if (offsets.empty()) return nullptr;
    return &offsets[static_cast<size_t>((position / layout.offset_block * layout.kv_heads + head) * layout.k.head_dim)];
  }
  template <typename Real>
  std::vector<Real> K(int64_t page, int64_t index, int head, int position) const {
    ref::StoredRow row = k.Load(page, head, index);
    if (Faulty("neighbour_head_scale")) row.scale = k.Load(page, (head + 1) % layout.kv_heads, index).scale;
    CacheSide side = layout.k;
    if (Faulty("q_not_rotated")) side.rotation = 0;
    std::vector<Real> x = ref::DecodeRow<Real>(side, row, k_static, head);
    if (const float* offset = Offset(Faulty("offset_block_shifted") ? std::max(0, position - 1) : position, head)) {
      for (size_t c = 0; c < x.size(); ++c) x[c] += offset[c];
    }
    return x;
  }
  template <typename Real>
  std::vector<Real> V(int64_t page, int64_t index, int head) const {
    return ref::DecodeRow<Real>(layout.v, v.Load(page, head, index), v_static, head);
  }

  const KvLayout& layout;
  Place k, v;
  ref::StaticQuant k_static, v_static;
  std::vector<float> offsets;

 private:
  static uint8_t* Base(const KvLayer& y) { return HostBufferOf(*y.cache).data() + y.cache_offset; }
};

// Has the reference backend such a cache, and do its rows stay inside layer_bytes?
Status CheckUsable(const KvLayout& layout);

}  // namespace octet::mutants

#endif  // OCTET_TESTS_MUTANTS_REFERENCE_CACHE_H_
