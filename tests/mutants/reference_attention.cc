// Attention of the reference backend: pages decoded into rows, then the double-precision formula.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "octet/checks.h"
#include "tests/mutants/fault.h"
#include "tests/mutants/reference_backend.h"
#include "tests/mutants/reference_cache.h"
#include "tests/reference/attention.h"

namespace octet::mutants {
namespace {

struct Plan final : AttentionPlan {
  ~Plan() override {
    static std::atomic<uint8_t*> lost;  // so that the compiler cannot drop what is never read
    if (Faulty("leaks_plan")) lost = std::fill_n(new uint8_t[1 << 18], 1 << 18, uint8_t{1});
  }
  AttentionDesc desc;
  KvLayout layout;
  std::vector<float> slopes;
  std::vector<int32_t> q_start = {0}, kv_len, kv_begin, page_start = {0}, pages;
  const int32_t* host_kv_len = nullptr;  // for a fault: the caller's array, which refill must not keep
};

class Attention final : public AttentionBackend {
 public:
  Support Supports(const AttentionDesc& d) const override {
    if (const Status status = Check(d); !status.ok()) return Support::No(status.message());
    return Support::Yes(1, "reference");
  }

  StatusOr<std::unique_ptr<AttentionPlan>> MakePlan(const AttentionDesc& d, Buffer*, uint64_t) override {
    if (const Status status = Check(d); !status.ok()) return status;
    if (Faulty("refuses_supported") && d.kv->k.head_dim > 64) return Unimplemented("head_dim is above 64");
    auto plan = std::make_unique<Plan>();
    plan->desc = d;
    plan->layout = *d.kv;
    plan->desc.kv = nullptr;
    if (d.alibi_slopes != nullptr) OCTET_RETURN_IF_ERROR(CheckBounds("alibi_slopes", *d.alibi_slopes));
    plan->slopes = Floats(d.alibi_slopes);
    return std::unique_ptr<AttentionPlan>(std::move(plan));
  }

  Status Refill(Stream&, AttentionPlan& plan_base, const Batch& b) override {
    auto& plan = static_cast<Plan&>(plan_base);
    AttentionLimits limits = plan.desc.limits;
    if (Faulty("accepts_oversize")) limits = {1 << 20, 1 << 20, int64_t{1} << 30, int64_t{1} << 30};
    OCTET_RETURN_IF_ERROR(CheckBatch(plan.layout, limits, plan.desc.window, b));
    plan.host_kv_len = b.kv_len;
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
    OCTET_RETURN_IF_ERROR(CheckLayerInside(plan.layout, layer, plan.desc.q_heads));
    for (const auto& [name, t] : {std::pair{"q", args.q}, {"out", args.out}, {"lse", args.lse}, {"mask", args.mask}}) {
      if (t != nullptr) OCTET_RETURN_IF_ERROR(CheckBounds(name, *t));
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
    if (Faulty("shared_scratch")) spec.softcap = ThroughSharedScratch(plan.desc.softcap);
    if (Faulty("alibi_ignored")) spec.alibi_slopes.clear();
    if (Faulty("crashes")) std::abort();
    if (Faulty("overwrites_q")) At(*args.q, 0)[0] ^= 1;
    if (Faulty("writes_one_byte_past")) At(*args.out, args.out->shape[0])[0] = 0;
    for (size_t r = 0; r < plan.kv_len.size(); ++r) {
      if (Faulty("returns_early") && r > 0 && r + 1 == plan.kv_len.size()) break;
      const ref::AttentionInput in = Read(plan, cache, args, r);
      const ref::AttentionOutput y = ref::Attend(spec, in);
      static std::atomic<int> rows{0};
      const double noise = Faulty("differs_run_to_run") ? 1e-5 * (rows++ % 7) : 0.0;
      for (int i = 0; i < in.queries; ++i) {
        for (int h = 0; h < spec.q_heads; ++h) {
          const size_t row = static_cast<size_t>(i * spec.q_heads + HeadPlace(plan, h));
          const int64_t token = plan.q_start[r] + i;
          for (int c = 0; c < spec.v_dim; ++c)
            Set(*args.out, y.out[row * static_cast<size_t>(spec.v_dim) + static_cast<size_t>(c)] + noise, token, h, c);
          if (args.lse != nullptr)
            Set(*args.lse, Faulty("lse_base_two") ? y.lse[row] / std::log(2) : y.lse[row], token, h);
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

  // Where query head h stands in the reference's order.
  static int HeadPlace(const Plan& plan, int h) {
    const int kv_heads = plan.layout.kv_heads, group = plan.desc.q_heads / kv_heads;
    return Faulty("gqa_interleaved") ? h % kv_heads * group + h / kv_heads : h;
  }

  // A fault: one variable for all streams, read after other threads had time to change it.
  static float ThroughSharedScratch(float value) {
    static std::atomic<float> scratch{0};
    scratch = value;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return scratch;
  }

  static ref::AttentionInput Read(const Plan& plan, const OpenCache& cache, const AttentionArgs& args, size_t r) {
    ref::AttentionInput in;
    in.queries = plan.q_start[r + 1] - plan.q_start[r];
    if (in.queries == 0) return in;
    in.kv_len = plan.kv_len[r];
    if (Faulty("keeps_host_arrays")) in.kv_len = std::clamp(plan.host_kv_len[r], in.queries, in.kv_len);
    in.kv_begin = plan.kv_begin[r];
    in.q.resize(static_cast<size_t>(in.queries * plan.desc.q_heads * plan.layout.k.head_dim));
    for (int i = 0; i < in.queries; ++i) {
      const int64_t token = plan.q_start[r] + i;
      const int64_t q_row = Faulty("breaks_when_batched") && r > 0 ? std::max<int64_t>(token - 1, 0) : token;
      for (int h = 0; h < plan.desc.q_heads; ++h) {
        double* q = &in.q[static_cast<size_t>((i * plan.desc.q_heads + HeadPlace(plan, h)) * plan.layout.k.head_dim)];
        for (int c = 0; c < plan.layout.k.head_dim; ++c) q[c] = Get(*args.q, q_row, h, c);
      }
      if (Faulty("causal_off_by_one") && plan.desc.causal && args.mask == nullptr) {
        for (int j = 0; j < in.queries; ++j) in.mask.push_back(j <= i + 1);
      }
      if (args.mask == nullptr || Faulty("mask_ignored")) continue;
      for (int j = 0; j < in.queries; ++j) in.mask.push_back(static_cast<int8_t>(*At(*args.mask, token, j)));
    }
    for (int p = in.kv_begin; p < in.kv_len; ++p) {
      const int tokens = plan.layout.page_tokens, first = plan.page_start[r];
      const int listed = plan.page_start[r + 1] - first;
      int index = p - in.kv_begin;
      if (Faulty("kv_begin_ignored")) index = p % (listed * tokens);
      int at = index / tokens;
      if (Faulty("page_off_by_one")) at = std::min((index + 1) / tokens, listed - 1);
      if (Faulty("last_page_full") && in.kv_len % tokens == 0 && at > 0 && p / tokens == in.kv_len / tokens - 1) --at;
      const int32_t page = plan.pages[static_cast<size_t>(first + at)];
      for (int h = 0; h < plan.layout.kv_heads; ++h) {
        const auto k = cache.K<double>(page, index % tokens, h, p);
        auto v = cache.V<double>(page, index % tokens, h);
        if (Faulty("reads_unused_slots") && (index + 1) % tokens != 0) {
          const auto next = cache.V<double>(page, (index + 1) % tokens, h);
          for (size_t c = 0; c < v.size(); ++c) v[c] += 0.0 * next[c];
        }
        in.k.insert(in.k.end(), k.begin(), k.end());
        in.v.insert(in.v.end(), v.begin(), v.end());
      }
    }
    return in;
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> MakeReferenceAttention() { return std::make_unique<Attention>(); }

}  // namespace octet::mutants
