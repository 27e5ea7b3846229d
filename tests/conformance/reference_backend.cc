// A backend made of the reference: every operation decodes to double, calls tests/reference and stores the answer. It
// is the kit's own yardstick (it must pass everything that it supports) and the body in which faults are planted. Slow
// on purpose. Rows lie by the strides of the layout; the latent cache of MLA is refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "octet/plugin.hpp"
#include "tests/reference/attention.h"
#include "tests/reference/canonical.h"
#include "tests/reference/dense.h"
#include "tests/reference/float_types.h"
#include "tests/reference/gguf.h"
#include "tests/reference/quantize.h"

namespace {

using namespace octet;  // NOLINT: this file is one plugin
namespace ref = octet::reference;

// The planted fault; empty: none. Set by open, before any call that asks.
std::string& Fault() {
  static std::string& fault = *new std::string;
  return fault;
}
bool Faulty(const char* name) { return Fault() == name; }

// ---- Tensors in host memory

uint8_t* At(const Tensor& t, int64_t i, int64_t j = 0, int64_t k = 0) {
  return HostData<uint8_t>(t) + (i * t.stride[0] + j * t.stride[1] + k * t.stride[2]) * ElementBytes(TypeOf(t));
}
double Get(const Tensor& t, int64_t i, int64_t j = 0, int64_t k = 0) {
  return ref::LoadFloat(TypeOf(t), At(t, i, j, k));
}
void Set(const Tensor& t, double x, int64_t i, int64_t j = 0, int64_t k = 0) {
  ref::StoreFloat(TypeOf(t), static_cast<float>(x), At(t, i, j, k));
}
int32_t Int(const Tensor& t, int64_t i) { return HostData<const int32_t>(t)[i * t.stride[0]]; }

// All elements of a tensor of rank 3 at most, row-major.
ref::Vector All(const Tensor& t) {
  ref::Vector x;
  for (int64_t i = 0; i < t.shape[0]; ++i) {
    for (int64_t j = 0; j < t.shape[1]; ++j) {
      for (int64_t k = 0; k < t.shape[2]; ++k) x.push_back(Get(t, i, j, k));
    }
  }
  return x;
}
void SetAll(const Tensor& t, const ref::Vector& x) {
  size_t at = 0;
  for (int64_t i = 0; i < t.shape[0]; ++i) {
    for (int64_t j = 0; j < t.shape[1]; ++j) {
      for (int64_t k = 0; k < t.shape[2]; ++k) Set(t, x[at++], i, j, k);
    }
  }
}
std::vector<float> Floats(const Tensor* t) {
  if (t == nullptr) return {};
  const ref::Vector x = All(*t);
  return {x.begin(), x.end()};
}
Status CheckFloat(const char* name, const Tensor* t, std::initializer_list<int64_t> dims) {
  if (t == nullptr) return InvalidArgument(std::string(name) + " is NULL");
  const DType type = TypeOf(*t);
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return Unimplemented(std::string(name) + " is " + DTypeName(type) + "; f32, f16 and bf16 are possible");
  }
  return CheckHostTensor(name, t, type, dims);
}

// ---- The cache

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
    return base + start + page * stride[0] + head * stride[1] + index * stride[2];
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

// Are all rows of the side inside layer_bytes?
bool Inside(const KvLayout& l, uint64_t base, const std::array<int64_t, 3>& stride, int64_t row_bytes) {
  const int64_t last[3] = {l.num_pages - 1, l.kv_heads - 1, l.page_tokens - 1};
  uint64_t end = 0;
  bool overflow = __builtin_add_overflow(base, row_bytes, &end);
  for (size_t i = 0; i < 3; ++i) {
    uint64_t step = 0;
    overflow = overflow || stride[i] < 0 || __builtin_mul_overflow(last[i], stride[i], &step) ||
               __builtin_add_overflow(end, step, &end);
  }
  return !overflow && end <= l.layer_bytes;
}

Status CheckUsable(const KvLayout& l) {
  OCTET_RETURN_IF_ERROR(CheckLayout(l));
  if (l.v_is_k || l.has_k_extra)
    return Unimplemented("the reference backend has no latent (MLA) cache; use K and V of their own");
  for (const CacheSide* s : {&l.k, &l.v}) {
    if (s->order != 0) return Unimplemented("the reference backend has rows in order 0 only");
    bool inside = Inside(l, s->data_base, s->data_stride, s->head_dim * ElementBytes(s->data_type));
    if (s->dynamic())
      inside = inside && Inside(l, s->scale_base, s->scale_stride, s->groups() * ElementBytes(s->scale_type));
    if (s->dynamic() && s->scheme == Scheme::kAsymmetric)
      inside = inside && Inside(l, s->zero_base, s->zero_stride, s->groups() * ElementBytes(s->zero_type));
    if (!inside) return InvalidArgument("KV layout: the strides leave layer_bytes; choose_layout fills them");
  }
  return OkStatus();
}

class Quant final : public QuantOps {
 public:
  Status ChooseLayout(KvLayout& l) const override {
    OCTET_RETURN_IF_ERROR(CheckLayout(l));
    if (l.v_is_k || l.has_k_extra) return CheckUsable(l);
    // Scales before codes, tokens outermost: unlike the canonical page on purpose.
    uint64_t end = 0;
    auto place = [&](uint64_t& base, std::array<int64_t, 3>& stride, int64_t row_bytes) {
      base = end;
      stride = {row_bytes * l.kv_heads * l.page_tokens, row_bytes, row_bytes * l.kv_heads};
      end += (static_cast<uint64_t>(stride[0]) * static_cast<uint64_t>(l.num_pages) + 127) / 128 * 128;
    };
    for (CacheSide* s : {&l.k, &l.v}) {
      if (s->dynamic()) place(s->scale_base, s->scale_stride, s->groups() * ElementBytes(s->scale_type));
      if (s->dynamic() && s->scheme == Scheme::kAsymmetric)
        place(s->zero_base, s->zero_stride, s->groups() * ElementBytes(s->zero_type));
      place(s->data_base, s->data_stride, s->head_dim * ElementBytes(s->data_type));
    }
    l.layer_bytes = end;
    return OkStatus();
  }

  Support Supports(const KvLayout& l, DType input) const override {
    if (Faulty("claims_support")) return Support::Yes(2, "anything");
    if (const Status status = CheckUsable(l); !status.ok()) return Support::No(status.message());
    if (input != DType::kF32) return Support::No("rows must be f32");
    return Support::Yes(1, "reference");
  }

  Status Append(Stream&, const KvLayout& l, const KvLayer& y, const KvTokens& t) override {
    OCTET_RETURN_IF_ERROR(Check(l, y, t, false));
    const OpenCache cache(l, y);
    for (int64_t i = 0; i < t.slots->shape[0]; ++i) {
      const int64_t slot = HostData<const int64_t>(*t.slots)[i];
      if (slot < 0) continue;
      for (int h = 0; h < l.kv_heads; ++h) {
        std::vector<float> k, v;
        for (int c = 0; c < l.k.head_dim; ++c) k.push_back(static_cast<float>(Get(*t.k, i, h, c)));
        for (int c = 0; c < l.v.head_dim; ++c) v.push_back(static_cast<float>(Get(*t.v, i, h, c)));
        if (const float* offset = cache.offsets.empty() ? nullptr : cache.Offset(Int(*t.positions, i), h)) {
          for (size_t c = 0; c < k.size(); ++c) k[c] -= offset[c];
        }
        ref::StoredRow row = ref::EncodeRow(l.k, k, cache.k_static, h);
        if (Faulty("round_half_away")) RoundHalfAway(l.k, k, row);
        cache.k.Store(slot / l.page_tokens, h, slot % l.page_tokens, row);
        cache.v.Store(slot / l.page_tokens, h, slot % l.page_tokens, ref::EncodeRow(l.v, v, cache.v_static, h));
      }
    }
    return OkStatus();
  }

  Status Gather(Stream&, const KvLayout& l, const KvLayer& y, const KvTokens& t) override {
    OCTET_RETURN_IF_ERROR(Check(l, y, t, true));
    const OpenCache cache(l, y);
    for (int64_t i = 0; i < t.slots->shape[0]; ++i) {
      const int64_t slot = HostData<const int64_t>(*t.slots)[i];
      if (slot < 0) continue;
      for (int h = 0; h < l.kv_heads; ++h) {
        const int position = cache.offsets.empty() ? 0 : Int(*t.positions, i);
        const auto k = cache.K<float>(slot / l.page_tokens, slot % l.page_tokens, h, position);
        const auto v = cache.V<float>(slot / l.page_tokens, slot % l.page_tokens, h);
        for (size_t c = 0; c < k.size() && t.k != nullptr; ++c) Set(*t.k, k[c], i, h, static_cast<int64_t>(c));
        for (size_t c = 0; c < v.size() && t.v != nullptr; ++c) Set(*t.v, v[c], i, h, static_cast<int64_t>(c));
      }
    }
    return OkStatus();
  }

  Status CopyPages(Stream&, const KvLayout& l, const KvLayer& y, const Tensor& pairs) override {
    OCTET_RETURN_IF_ERROR(CheckUsable(l));
    OCTET_RETURN_IF_ERROR(CheckHostLayer(l, y, 0));
    OCTET_RETURN_IF_ERROR(CheckHostTensor("pairs", &pairs, DType::kI32, {-1, 2}));
    std::vector<int32_t> list;
    for (int64_t i = 0; i < pairs.shape[0]; ++i) {
      for (int64_t j = 0; j < 2; ++j) list.push_back(HostData<const int32_t>(pairs)[i * pairs.stride[0] + j]);
    }
    OCTET_RETURN_IF_ERROR(CheckPages(l, list));
    const OpenCache cache(l, y);
    for (size_t i = 0; i < list.size(); i += 2) {
      ForEachRow(l, [&](int h, int t) {
        for (const Place* place : {&cache.k, &cache.v}) place->Store(list[i + 1], h, t, place->Load(list[i], h, t));
      });
    }
    return OkStatus();
  }

  Status ExportPages(Stream&, const KvLayout& l, const KvLayer& y, const Tensor& pages, Buffer& canonical,
                     uint64_t offset) override {
    return Exchange(l, y, pages, canonical, offset,
                    [&](const OpenCache& cache, int32_t page, std::span<uint8_t> bytes, int h, int t) {
                      ref::PutRow(l, ref::kSideK, bytes, h, t, cache.k.Load(page, h, t));
                      ref::PutRow(l, ref::kSideV, bytes, h, t,
                                  cache.v.Load(page, Faulty("export_other_head") ? 0 : h, t));
                    });
  }
  Status ImportPages(Stream&, const KvLayout& l, const KvLayer& y, const Tensor& pages, Buffer& canonical,
                     uint64_t offset) override {
    return Exchange(l, y, pages, canonical, offset,
                    [&](const OpenCache& cache, int32_t page, std::span<uint8_t> bytes, int h, int t) {
                      cache.k.Store(page, h, t, ref::GetRow(l, ref::kSideK, bytes, h, t));
                      cache.v.Store(page, h, t, ref::GetRow(l, ref::kSideV, bytes, h, t));
                    });
  }

 private:
  // A fault: codes of a row that has one scale, rounded as std::round does.
  static void RoundHalfAway(const CacheSide& side, std::vector<float> x, ref::StoredRow& row) {
    if (!side.dynamic() || side.groups() != 1 || side.scheme != Scheme::kSymmetric || !(row.scale[0] > 0)) return;
    ref::Hadamard<float>(x, side.rotation);
    for (size_t c = 0; c < x.size(); ++c) {
      row.data[c] =
          static_cast<uint8_t>(static_cast<int8_t>(std::clamp(std::round(x[c] / row.scale[0]), -127.0f, 127.0f)));
    }
  }
  static Status Check(const KvLayout& l, const KvLayer& y, const KvTokens& t, bool gather) {
    OCTET_RETURN_IF_ERROR(CheckUsable(l));
    OCTET_RETURN_IF_ERROR(CheckHostLayer(l, y, 0));
    return CheckHostTokens(l, y, t, gather);
  }
  static Status CheckPages(const KvLayout& l, const std::vector<int32_t>& pages) {
    for (int32_t p : pages) {
      if (p < 0 || p >= l.num_pages) return InvalidArgument("page " + std::to_string(p) + " does not exist");
    }
    return OkStatus();
  }
  template <typename Body>
  static void ForEachRow(const KvLayout& l, Body body) {
    for (int h = 0; h < l.kv_heads; ++h) {
      for (int t = 0; t < l.page_tokens; ++t) body(h, t);
    }
  }
  template <typename Body>
  static Status Exchange(const KvLayout& l, const KvLayer& y, const Tensor& pages, Buffer& canonical, uint64_t offset,
                         Body body) {
    OCTET_RETURN_IF_ERROR(CheckUsable(l));
    OCTET_RETURN_IF_ERROR(CheckHostLayer(l, y, 0));
    OCTET_RETURN_IF_ERROR(CheckHostTensor("pages", &pages, DType::kI32, {-1}));
    std::vector<int32_t> list;
    for (int64_t i = 0; i < pages.shape[0]; ++i) list.push_back(Int(pages, i));
    OCTET_RETURN_IF_ERROR(CheckPages(l, list));
    const size_t page_bytes = static_cast<size_t>(ref::CanonicalPageBytes(l));
    OCTET_RETURN_IF_ERROR(HostBufferOf(canonical).CheckRange("canonical pages", offset, list.size() * page_bytes));
    const OpenCache cache(l, y);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::span<uint8_t> bytes(HostBufferOf(canonical).data() + offset + i * page_bytes, page_bytes);
      ForEachRow(l, [&](int h, int t) { body(cache, list[i], bytes, h, t); });
    }
    return OkStatus();
  }
};

// ---- Attention

struct Plan final : AttentionPlan {
  AttentionDesc desc;
  KvLayout layout;
  std::vector<float> slopes;
  std::vector<int32_t> q_start = {0}, kv_len, kv_begin, page_start = {0}, pages;
};

class Attention final : public AttentionBackend {
 public:
  Support Supports(const AttentionDesc& d) const override {
    if (const Status status = Check(d); !status.ok()) return Support::No(status.message());
    return Support::Yes(1, "reference");
  }

  StatusOr<std::unique_ptr<AttentionPlan>> MakePlan(const AttentionDesc& d, Buffer*, uint64_t) override {
    if (const Status status = Check(d); !status.ok()) return status;
    auto plan = std::make_unique<Plan>();
    plan->desc = d;
    plan->layout = *d.kv;
    plan->desc.kv = nullptr;
    if (d.alibi_slopes != nullptr) OCTET_RETURN_IF_ERROR(CheckHostBounds("alibi_slopes", *d.alibi_slopes));
    plan->slopes = Floats(d.alibi_slopes);
    return std::unique_ptr<AttentionPlan>(std::move(plan));
  }

  Status Refill(Stream&, AttentionPlan& plan_base, const Batch& b) override {
    auto& plan = static_cast<Plan&>(plan_base);
    OCTET_RETURN_IF_ERROR(CheckBatch(plan.layout, plan.desc.limits, plan.desc.window, b));
    plan.q_start.assign(b.q_start, b.q_start + b.requests + 1);
    plan.kv_len.assign(b.kv_len, b.kv_len + b.requests);
    plan.kv_begin.assign(static_cast<size_t>(b.requests), 0);
    if (b.kv_begin != nullptr) plan.kv_begin.assign(b.kv_begin, b.kv_begin + b.requests);
    plan.page_start.assign(b.page_start, b.page_start + b.requests + 1);
    plan.pages.assign(b.pages, b.pages + b.page_start[b.requests]);
    return OkStatus();
  }

  Status Run(Stream&, const AttentionPlan& plan_base, const KvLayer& layer, const AttentionArgs& args) override {
    const auto& plan = static_cast<const Plan&>(plan_base);
    OCTET_RETURN_IF_ERROR(CheckAttentionArgs(plan.desc, plan.layout, args));
    OCTET_RETURN_IF_ERROR(CheckHostLayer(plan.layout, layer, plan.desc.q_heads));
    for (const auto& [name, t] : {std::pair{"q", args.q}, {"out", args.out}, {"lse", args.lse}, {"mask", args.mask}}) {
      if (t != nullptr) OCTET_RETURN_IF_ERROR(CheckHostBounds(name, *t));
    }
    if (args.q->shape[0] < plan.q_start.back()) return InvalidArgument("q has fewer rows than the batch has queries");
    const OpenCache cache(plan.layout, layer);
    ref::AttentionSpec spec;
    spec.q_heads = plan.desc.q_heads;
    spec.kv_heads = plan.layout.kv_heads;
    spec.k_dim = plan.layout.k.head_dim;
    spec.v_dim = plan.layout.v.head_dim;
    spec.causal = plan.desc.causal;
    spec.window = plan.desc.window + (Faulty("window_off_by_one") && plan.desc.window > 0 ? 1 : 0);
    spec.scale = plan.desc.scale;
    spec.softcap = Faulty("softcap_ignored") ? 0.0f : plan.desc.softcap;
    spec.alibi_slopes = plan.slopes;
    if (!Faulty("sinks_ignored")) spec.sinks = Floats(layer.sinks);
    if (Faulty("writes_one_byte_past")) At(*args.out, args.out->shape[0])[0] = 0;
    for (size_t r = 0; r < plan.kv_len.size(); ++r) {
      if (Faulty("returns_early") && r > 0 && r + 1 == plan.kv_len.size()) break;
      const ref::AttentionInput in = Read(plan, cache, args, r);
      const ref::AttentionOutput y = ref::Attend(spec, in);
      for (int i = 0; i < in.queries; ++i) {
        for (int h = 0; h < spec.q_heads; ++h) {
          const size_t row = static_cast<size_t>(i * spec.q_heads + h);
          const int64_t token = plan.q_start[r] + i;
          for (int c = 0; c < spec.v_dim; ++c)
            Set(*args.out, y.out[row * static_cast<size_t>(spec.v_dim) + static_cast<size_t>(c)], token, h, c);
          if (args.lse != nullptr) Set(*args.lse, y.lse[row], token, h);
        }
      }
    }
    return OkStatus();
  }

 private:
  static Status Check(const AttentionDesc& d) {
    if (Faulty("throws")) throw std::runtime_error("a fault that was planted");
    OCTET_RETURN_IF_ERROR(CheckAttentionDesc(d));
    if (d.q_type == DType::kOpaque) return Unimplemented("the reference backend reads q as floats");
    return CheckUsable(*d.kv);
  }

  static ref::AttentionInput Read(const Plan& plan, const OpenCache& cache, const AttentionArgs& args, size_t r) {
    ref::AttentionInput in;
    in.queries = plan.q_start[r + 1] - plan.q_start[r];
    if (in.queries == 0) return in;
    in.kv_len = plan.kv_len[r];
    in.kv_begin = plan.kv_begin[r];
    for (int i = 0; i < in.queries; ++i) {
      const int64_t token = plan.q_start[r] + i;
      for (int h = 0; h < plan.desc.q_heads; ++h) {
        for (int c = 0; c < plan.layout.k.head_dim; ++c) in.q.push_back(Get(*args.q, token, h, c));
      }
      for (int j = 0; j < in.queries && args.mask != nullptr; ++j)
        in.mask.push_back(static_cast<int8_t>(*At(*args.mask, token, j)));
    }
    for (int p = in.kv_begin; p < in.kv_len; ++p) {
      const int index = p - in.kv_begin;
      int at = plan.page_start[r] + index / plan.layout.page_tokens;
      if (Faulty("page_off_by_one"))
        at = std::min(plan.page_start[r] + (index + 1) / plan.layout.page_tokens, plan.page_start[r + 1] - 1);
      const int32_t page = plan.pages[static_cast<size_t>(at)];
      for (int h = 0; h < plan.layout.kv_heads; ++h) {
        const auto k = cache.K<double>(page, index % plan.layout.page_tokens, h, p);
        auto v = cache.V<double>(page, index % plan.layout.page_tokens, h);
        if (Faulty("reads_unused_slots") && (index + 1) % plan.layout.page_tokens != 0) {
          const auto next = cache.V<double>(page, (index + 1) % plan.layout.page_tokens, h);
          for (size_t c = 0; c < v.size(); ++c) v[c] += 0.0 * next[c];
        }
        in.k.insert(in.k.end(), k.begin(), k.end());
        in.v.insert(in.v.end(), v.begin(), v.end());
      }
    }
    return in;
  }
};

// ---- Dense

struct Matrix {
  ref::Vector w;
  int64_t rows = 0, columns = 0;
};

class Dense final : public DenseOps {
 public:
  Support SupportsWeight(const WeightDesc& d) const override {
    if (const Status status = Check(d); !status.ok()) return Support::No(status.message());
    return Support::Yes(1, "reference");
  }
  StatusOr<Weight*> PrepareWeight(Stream&, const WeightDesc& d) override {
    if (const Status status = Check(d); !status.ok()) return status;
    return reinterpret_cast<Weight*>(new Matrix{ref::WeightMatrix(d), d.rows(), d.columns});
  }
  void ReleaseWeight(Weight* weight) override { delete reinterpret_cast<Matrix*>(weight); }

  Status Linear(Stream&, const LinearArgs& a) override {
    if (a.w == nullptr) return InvalidArgument("the weight is NULL");
    const auto& m = *reinterpret_cast<const Matrix*>(a.w);
    OCTET_RETURN_IF_ERROR(CheckFloat("x", a.x, {-1, m.columns}));
    OCTET_RETURN_IF_ERROR(CheckFloat("y", a.y, {a.x->shape[0], m.rows}));
    if (a.bias != nullptr) OCTET_RETURN_IF_ERROR(CheckHostTensor("bias", a.bias, DType::kF32, {m.rows}));
    if (a.norm_gain != nullptr)
      OCTET_RETURN_IF_ERROR(CheckHostTensor("norm_gain", a.norm_gain, DType::kF32, {m.columns}));
    if (a.residual != nullptr) OCTET_RETURN_IF_ERROR(CheckFloat("residual", a.residual, {a.x->shape[0], m.rows}));
    ref::Vector x = All(*a.x);
    if (a.norm_gain != nullptr)
      x = ref::Norm(NormKind::kRms, x, All(*a.norm_gain), {}, Faulty("eps_ignored") ? 0.0 : a.norm_eps).value;
    const ref::Vector bias = a.bias != nullptr ? All(*a.bias) : ref::Vector{};
    const ref::Vector residual = a.residual != nullptr ? All(*a.residual) : ref::Vector{};
    SetAll(*a.y, ref::Linear(x, m.w, m.columns, bias, residual).value);
    return OkStatus();
  }

  Status Embed(Stream&, const Weight& weight, const Tensor& ids, float scale, const Tensor& y) override {
    const auto& m = reinterpret_cast<const Matrix&>(weight);
    OCTET_RETURN_IF_ERROR(CheckHostTensor("ids", &ids, DType::kI32, {-1}));
    OCTET_RETURN_IF_ERROR(CheckFloat("y", &y, {ids.shape[0], m.columns}));
    for (int64_t t = 0; t < ids.shape[0]; ++t) {
      const int64_t id = Int(ids, t);
      const bool inside = id >= 0 && id < m.rows;
      for (int64_t c = 0; c < m.columns; ++c) {
        Set(y, inside ? scale * m.w[static_cast<size_t>(id * m.columns + c)] : std::nan(""), t, c);
      }
    }
    return OkStatus();
  }

  Status Norm(Stream&, NormKind kind, const Tensor& x, const Tensor& gain, const Tensor* bias, float eps,
              const Tensor& y) override {
    if (kind != NormKind::kRms && kind != NormKind::kLayer)
      return Unimplemented("norm kind " + std::to_string(static_cast<int>(kind)) + " is unknown");
    OCTET_RETURN_IF_ERROR(CheckAlike(x, y));
    const int64_t n = x.shape[x.rank - 1];
    OCTET_RETURN_IF_ERROR(CheckHostTensor("gain", &gain, DType::kF32, {n}));
    if (bias != nullptr) OCTET_RETURN_IF_ERROR(CheckHostTensor("bias", bias, DType::kF32, {n}));
    SetAll(y, ref::Norm(kind, All(x), All(gain), bias != nullptr ? All(*bias) : ref::Vector{},
                        Faulty("eps_ignored") ? 0.0 : eps)
                  .value);
    return OkStatus();
  }

  Status Rope(Stream&, const Tensor& x, const Tensor& positions, const Tensor& cos_sin, bool interleaved) override {
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1, -1}));
    OCTET_RETURN_IF_ERROR(CheckHostTensor("positions", &positions, DType::kI32, {x.shape[0]}));
    OCTET_RETURN_IF_ERROR(CheckHostTensor("cos_sin", &cos_sin, DType::kF32, {-1, -1, 2}));
    const int64_t pairs = cos_sin.shape[1];
    if (2 * pairs > x.shape[2]) return InvalidArgument("cos_sin has more pairs than x has channels");
    std::vector<int32_t> at;
    for (int64_t t = 0; t < x.shape[0]; ++t) {
      at.push_back(Int(positions, t));
      if (at.back() < 0 || at.back() >= cos_sin.shape[0]) return InvalidArgument("a position is outside cos_sin");
    }
    SetAll(x, ref::Rope(All(x), x.shape[1], x.shape[2], at, Floats(&cos_sin), pairs,
                        interleaved != Faulty("rope_other_pairs"))
                  .value);
    return OkStatus();
  }

  Status Activate(Stream&, Activation kind, const Tensor& x, const Tensor& y) override {
    if (kind < Activation::kSiluGated || kind > Activation::kGelu)
      return Unimplemented("activation " + std::to_string(static_cast<int>(kind)) + " is unknown");
    const bool gated = kind <= Activation::kGeluGated;
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1}));
    if (gated && x.shape[1] % 2 != 0) return InvalidArgument("a gated activation needs an even number of columns");
    OCTET_RETURN_IF_ERROR(CheckFloat("y", &y, {x.shape[0], gated ? x.shape[1] / 2 : x.shape[1]}));
    SetAll(y, ref::Activate(kind, All(x), x.shape[1]).value);
    return OkStatus();
  }

  Status Add(Stream&, const Tensor& x, const Tensor& y) override {
    OCTET_RETURN_IF_ERROR(CheckAlike(x, y));
    ref::Vector sum = All(y);
    const ref::Vector other = All(x);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    SetAll(y, sum);
    return OkStatus();
  }

  Status GatherRows(Stream&, const Tensor& x, const Tensor& rows, const Tensor& y) override {
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1}));
    OCTET_RETURN_IF_ERROR(CheckHostTensor("rows", &rows, DType::kI32, {-1}));
    OCTET_RETURN_IF_ERROR(CheckFloat("y", &y, {rows.shape[0], x.shape[1]}));
    for (int64_t i = 0; i < rows.shape[0]; ++i) {
      const int64_t row = Int(rows, i);
      if (row < 0 || row >= x.shape[0]) return InvalidArgument("row " + std::to_string(row) + " does not exist");
      for (int64_t c = 0; c < x.shape[1]; ++c) Set(y, Get(x, row, c), i, c);
    }
    return OkStatus();
  }

 private:
  static Status Check(const WeightDesc& d) {
    for (DType type : {d.x_type, d.y_type}) {
      if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16)
        return Unimplemented(std::string("activations of type ") + DTypeName(type) + " are unknown");
    }
    if (d.columns < 1 || d.parts.empty()) return InvalidArgument("a weight needs columns and parts");
    for (const WeightPart& part : d.parts) {
      const ref::BlockShape shape = ref::BlockOf(part.dtype);
      if (shape.elements == 0)
        return Unimplemented(std::string("weights of type ") + DTypeName(part.dtype) + " are unknown");
      if (part.data == nullptr || part.rows < 1 || d.columns % shape.elements != 0 ||
          part.row_stride_bytes < d.columns / shape.elements * shape.bytes) {
        return InvalidArgument("a weight's rows do not fit its columns");
      }
    }
    return OkStatus();
  }
  static Status CheckAlike(const Tensor& x, const Tensor& y) {
    if (x.rank < 1 || x.rank > 3 || y.rank != x.rank) return InvalidArgument("x and y must have the same rank, 1 to 3");
    if (x.rank == 1) {
      OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1}));
      return CheckFloat("y", &y, {x.shape[0]});
    }
    if (x.rank == 2) {
      OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1}));
      return CheckFloat("y", &y, {x.shape[0], x.shape[1]});
    }
    OCTET_RETURN_IF_ERROR(CheckFloat("x", &x, {-1, -1, -1}));
    return CheckFloat("y", &y, {x.shape[0], x.shape[1], x.shape[2]});
  }
};

class ReferenceBackend final : public HostMemoryBackend {
 public:
  ReferenceBackend() : HostMemoryBackend({.name = "reference", .vendor = "octet", .version = "0.1.0"}) {}
  QuantOps* quant() override { return &quant_; }
  AttentionBackend* attention() override { return &attention_; }
  DenseOps* dense() override { return &dense_; }
  Status SetOption(std::string_view key, std::string_view value) override {
    if (key != "fault") return HostMemoryBackend::SetOption(key, value);
    Fault() = value;
    return OkStatus();
  }

 private:
  Quant quant_;
  Attention attention_;
  Dense dense_;
};

}  // namespace

OCTET_BACKEND(ReferenceBackend);
