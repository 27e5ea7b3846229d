// Attention over the pages: the second of the two classes. See octet/attention_backend.h.
#ifndef TEMPLATE_ATTENTION_H_
#define TEMPLATE_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache.h"

namespace example {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The descriptor, and a copy of the step's batch: nothing of the caller's is kept.
struct Plan final : octet::AttentionPlan {
  AttentionDesc desc;  // kv is not used: layout is its copy
  KvLayout layout;
  std::vector<int32_t> q_start = {0}, kv_len, kv_begin, page_start, pages;
  std::vector<int32_t> request;  // [query tokens of the step]
  int32_t most_queries = 0;      // of one request
};

inline Status CheckDesc(const AttentionDesc& d) {
  OCTET_RETURN_IF_ERROR(octet::CheckAttentionDesc(d));
  OCTET_RETURN_IF_ERROR(CheckCache(*d.kv));
  if (d.q_type != DType::kF32 || d.out_type != DType::kF32) {
    return Unimplemented(std::string("attention from ") + octet::DTypeName(d.q_type) + " to " +
                         octet::DTypeName(d.out_type) + " is not supported; f32 to f32 is");
  }
  if (d.alibi_slopes != nullptr) return Unimplemented("ALiBi is not supported");
  return OkStatus();
}

inline float Dot(const float* a, const float* b, int32_t n) {
  float sum = 0.0f;
  for (int32_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

// One query token and head: softmax(scale * q.k) v in one pass over the pages, with a running maximum. Scales fold into
// scores and weights, so no row is dequantized: q.k = k_scale * (Hq . codes) + q . offset.
inline void Attend(const Plan& plan, const KvLayer& layer, const AttentionArgs& args, int64_t token, int64_t head) {
  const KvLayout& l = plan.layout;
  const auto r = static_cast<size_t>(plan.request[static_cast<size_t>(token)]);
  const int64_t kv_head = head / (plan.desc.q_heads / l.kv_heads);
  const int64_t step = plan.kv_len[r] - (plan.q_start[r + 1] - plan.q_start[r]);  // position of the first query
  const int64_t position = step + token - plan.q_start[r];
  const int64_t first = plan.desc.window > 0 ? std::max<int64_t>(0, position - plan.desc.window + 1) : 0;
  // A mask replaces the causal rule among this step's tokens.
  const int64_t end = plan.desc.causal && args.mask == nullptr ? position + 1 : plan.kv_len[r];
  const int8_t* mask =
      args.mask == nullptr ? nullptr : HostData<const int8_t>(*args.mask) + token * args.mask->stride[0];

  const Rows keys(CacheOf(layer), l.k), values(CacheOf(layer), l.v);
  const float* q = RowOf(*args.q, token, head);
  float rotated[kMaxHeadDim], sum_v[kMaxHeadDim] = {};
  std::copy_n(q, l.k.head_dim, rotated);
  Rotate(rotated, l.k.head_dim, l.k.rotation);

  // A sink is one more score, without a value.
  float top = layer.sinks != nullptr ? HostData<const float>(*layer.sinks)[head] : -kInfinity;
  float sum = layer.sinks != nullptr ? 1.0f : 0.0f;
  int64_t block = -1;
  float offset_score = 0.0f;
  for (int64_t p = std::max<int64_t>(first, plan.kv_begin[r]); p < end; ++p) {
    if (mask != nullptr && p >= step && mask[p - step] == 0) continue;
    const int64_t index = p - plan.kv_begin[r], t = index % l.page_tokens;
    const int64_t page = plan.pages[static_cast<size_t>(plan.page_start[r] + index / l.page_tokens)];
    if (layer.k_offset != nullptr && p / l.offset_block != block) {
      block = p / l.offset_block;
      offset_score = Dot(q, RowOf(*layer.k_offset, block, kv_head), l.k.head_dim);
    }
    const int8_t* k = keys.Codes(page, kv_head, t);
    float dot = 0.0f;
    for (int32_t c = 0; c < l.k.head_dim; ++c) dot += rotated[c] * k[c];
    float score = plan.desc.scale * (dot * keys.Scale(page, kv_head, t) + offset_score);
    if (plan.desc.softcap > 0.0f) score = plan.desc.softcap * std::tanh(score / plan.desc.softcap);
    if (score > top) {  // a NaN stays out of the maximum and reaches the sums
      const float shrink = std::exp(top - score);
      sum *= shrink;
      for (int32_t c = 0; c < l.v.head_dim; ++c) sum_v[c] *= shrink;
      top = score;
    }
    const float weight = std::exp(score - top);
    sum += weight;
    const float weight_v = weight * values.Scale(page, kv_head, t);
    const int8_t* v = values.Codes(page, kv_head, t);
    for (int32_t c = 0; c < l.v.head_dim; ++c) sum_v[c] += weight_v * v[c];
  }

  Rotate(sum_v, l.v.head_dim, l.v.rotation);
  float* out = RowOf(*args.out, token, head);
  for (int32_t c = 0; c < l.v.head_dim; ++c) out[c] = sum == 0.0f ? 0.0f : sum_v[c] / sum;  // 0: no key was visible
  if (args.lse != nullptr) {
    HostData<float>(*args.lse)[token * args.lse->stride[0] + head] = top + std::log(sum);
  }
}

// Has no state but its plans: usable from any thread.
class Attention final : public octet::AttentionBackend {
 public:
  Support Supports(const AttentionDesc& desc) const override {
    if (const Status status = CheckDesc(desc); !status.ok()) return Support::No(status.message());
    return Support::Yes(1, "template loops");
  }

  StatusOr<std::unique_ptr<octet::AttentionPlan>> MakePlan(const AttentionDesc& desc, Buffer*, uint64_t) override {
    OCTET_RETURN_IF_ERROR(CheckDesc(desc));
    auto plan = std::make_unique<Plan>();
    plan->desc = desc;
    plan->desc.kv = nullptr;
    plan->layout = *desc.kv;
    return std::unique_ptr<octet::AttentionPlan>(std::move(plan));
  }

  Status Refill(Stream&, octet::AttentionPlan& base, const octet::Batch& b) override {
    auto& plan = static_cast<Plan&>(base);
    OCTET_RETURN_IF_ERROR(octet::CheckBatch(plan.layout, plan.desc.limits, plan.desc.window, b));
    const auto requests = static_cast<size_t>(b.requests);
    plan.q_start.assign(b.q_start, b.q_start + requests + 1);
    plan.kv_len.assign(b.kv_len, b.kv_len + requests);
    plan.kv_begin.assign(requests, 0);
    if (b.kv_begin != nullptr) plan.kv_begin.assign(b.kv_begin, b.kv_begin + requests);
    plan.page_start.assign(b.page_start, b.page_start + requests + 1);
    plan.pages.assign(b.pages, b.pages + b.page_start[requests]);
    plan.request.clear();
    plan.most_queries = 0;
    for (int32_t r = 0; r < b.requests; ++r) {
      const int32_t queries = b.q_start[r + 1] - b.q_start[r];
      plan.request.insert(plan.request.end(), static_cast<size_t>(queries), r);
      plan.most_queries = std::max(plan.most_queries, queries);
    }
    return OkStatus();
  }

  Status Run(Stream&, const octet::AttentionPlan& base, const KvLayer& layer, const AttentionArgs& args) override {
    const auto& plan = static_cast<const Plan&>(base);
    OCTET_RETURN_IF_ERROR(octet::CheckAttentionArgs(plan.desc, plan.layout, args));
    OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(plan.layout, layer, plan.desc.q_heads));
    for (const auto& [name, t] : {std::pair{"q", args.q}, {"out", args.out}, {"lse", args.lse}, {"mask", args.mask}}) {
      if (t != nullptr) OCTET_RETURN_IF_ERROR(octet::CheckBounds(name, *t));
    }
    const auto queries = static_cast<int64_t>(plan.request.size());
    if (args.q->shape[0] < queries) {
      return InvalidArgument("q has " + std::to_string(args.q->shape[0]) + " rows, the batch has " +
                             std::to_string(queries) + " query tokens");
    }
    if (args.mask != nullptr && args.mask->shape[1] < plan.most_queries) {
      return InvalidArgument("the mask has " + std::to_string(args.mask->shape[1]) + " columns, a request has " +
                             std::to_string(plan.most_queries) + " query tokens");
    }
    if (layer.k_offset != nullptr) {
      const int64_t positions = layer.k_offset->shape[0] * plan.layout.offset_block;
      for (const int32_t kv_len : plan.kv_len) {
        if (kv_len <= positions) continue;
        return InvalidArgument("the K offset table ends at position " + std::to_string(positions) + ", a request has " +
                               std::to_string(kv_len) + " tokens");
      }
    }
    octet::ParallelFor(queries * plan.desc.q_heads, [&](uint32_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) Attend(plan, layer, args, i / plan.desc.q_heads, i % plan.desc.q_heads);
    });
    return OkStatus();
  }
};

}  // namespace example

#endif  // TEMPLATE_ATTENTION_H_
