// A KV cache of the backend under test with all that the reference needs to predict its contents.
#ifndef OCTET_TESTS_CONFORMANCE_TEST_CACHE_H_
#define OCTET_TESTS_CONFORMANCE_TEST_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octet/kv_cache.h"
#include "octet/quant_ops.h"
#include "tests/conformance/harness.h"
#include "tests/reference/canonical.h"
#include "tests/reference/quantize.h"

namespace octet::conformance {

struct SideSpec {
  DType type = DType::kI8;
  Scheme scheme = Scheme::kSymmetric;
  Axis axis = Axis::kToken;
  int group = 0;
  DType scale_type = DType::kF32;
  int rotation = 0;
};
SideSpec Int8(int rotation = 0);
SideSpec Float(DType type, int rotation = 0);
std::string NameOf(const SideSpec& side);  // "i8_token_rot64"

struct CacheSpec {
  SideSpec k, v;
  int k_dim = 64, v_dim = 64;
  int kv_heads = 2, page_tokens = 16;
  int offset_block = 0;
  bool latent = false;  // MLA: V is the first v_dim channels of K, the other channels of K are of type k_extra
  SideSpec k_extra;
};
CacheSpec Both(SideSpec side, int head_dim = 64, int kv_heads = 2, int page_tokens = 16);
CacheSpec Latent(SideSpec side, int latent_dim = 512, int extra_dim = 64, SideSpec extra = Float(DType::kBF16));
std::string NameOf(const CacheSpec& spec);  // "i8_token_rot64_off64_p16_kv2_d64"

// The layout before choose_layout, and plain rows in the strides: what a caller without a backend would write.
KvLayout LayoutOf(const CacheSpec& spec, int num_pages);
void FillRowStrides(KvLayout& layout);

// f32 [blocks][kv_heads][k_dim], different in every block and several times the spread of the keys; empty without.
std::vector<float> OffsetTable(const CacheSpec& spec, int positions);

// Rows of append and gather.
struct Rows {
  std::vector<float> k, v;  // [tokens][kv_heads][dim]
  std::vector<int64_t> slots;
  std::vector<int32_t> positions;
  int tokens() const { return static_cast<int>(slots.size()); }
};
// first, first + 1, ...
std::vector<int64_t> SlotsOf(int first, int count);
// Normal rows for these slots at positions 0, 1, ...
Rows NormalRows(const CacheSpec& spec, const std::vector<int64_t>& slots, uint64_t seed);

// Rows in device memory, as append takes them.
class DeviceRows {
 public:
  DeviceRows(const CacheSpec& spec, const Rows& rows);
  // Borrows the tensors.
  KvTokens tokens() const { return {&k, latent_ ? nullptr : &v, &slots, &positions}; }

 private:
  const bool latent_;
  const Block k_block_, v_block_, slot_block_, position_block_;

 public:
  const Tensor k, v;  // [tokens][kv_heads][dim]
  const Tensor slots, positions;
};

class TestCache {
 public:
  // Unimplemented with the backend's reason where it has no such cache. Every byte starts as `garbage`: NaN scales.
  Status Init(const CacheSpec& spec, int num_pages, int positions = 4096, uint8_t garbage = 0xff);
  // With a layout of the caller's, its strides set.
  Status InitWithLayout(const CacheSpec& spec, const KvLayout& layout, int positions = 4096, uint8_t garbage = 0xff);

  const CacheSpec& spec() const { return spec_; }
  const KvLayout& layout() const { return layout_; }
  const KvLayer& layer() const { return layer_; }
  Block& memory() { return *memory_; }
  void SetSinks(const std::vector<float>& sinks);

  Status Append(const Rows& rows);
  // Fills k and v of rows; a row with slot -1 comes back as NaN, which stood there.
  Status Gather(Rows& rows);
  Status CopyPages(const std::vector<int32_t>& pairs);
  Status Export(const std::vector<int32_t>& pages, std::vector<uint8_t>* canonical);
  Status Import(const std::vector<int32_t>& pages, const std::vector<uint8_t>& canonical);

  // What the reference stores for a row of K or V, and what that is worth: [k_dim] or [v_dim].
  std::vector<reference::StoredRow> EncodeK(std::span<const float> row, int head, int position) const;
  reference::StoredRow EncodeV(std::span<const float> row, int head) const;
  std::vector<double> DecodeK(const std::vector<reference::StoredRow>& stored, int head, int position) const;
  std::vector<double> DecodeV(const std::vector<reference::StoredRow>& k, const reference::StoredRow& v,
                              int head) const;
  // The same rows, each channel |scale * code| + |what is added to it|: what an error of rounding is relative to.
  std::vector<double> SizeOfK(const std::vector<reference::StoredRow>& stored, int head, int position) const;
  std::vector<double> SizeOfV(const std::vector<reference::StoredRow>& k, const reference::StoredRow& v,
                              int head) const;
  // The largest error of a value decoded from `stored`: half a step of its channel plus float rounding.
  std::vector<double> StepBound(reference::SideIndex which, const reference::StoredRow& stored, int head) const;

  // Compares the rows with exported pages bit by bit; NaNs count as equal. `pages`: the exported ones in order. Slots
  // -1 are skipped; a slot written twice must hold the later row.
  void ExpectStored(const Rows& rows, const std::vector<int32_t>& pages, const std::vector<uint8_t>& canonical) const;

 private:
  const float* OffsetRow(int position, int head) const;

  CacheSpec spec_;
  KvLayout layout_;
  KvLayer layer_;
  std::unique_ptr<Block> memory_, offset_block_, k_scale_block_, k_zero_block_, v_scale_block_, v_zero_block_,
      sinks_block_;
  Tensor offset_, k_scale_, k_zero_, v_scale_, v_zero_, sinks_;
  std::vector<float> offsets_;
  reference::StaticQuant k_static_, v_static_;
};

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_TEST_CACHE_H_
