#include "backends/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/quant.h"
#include "octet/checks.h"

namespace octet_cpu {
namespace {

using octet::AttentionArgs;
using octet::AttentionDesc;
using octet::Batch;
using octet::DType;
using octet::InvalidArgument;
using octet::KvLayer;
using octet::KvLayout;
using octet::OkStatus;
using octet::Status;
using octet::StatusOr;
using octet::Support;
using octet::Tensor;
using octet::Unimplemented;

// A request with so few queries gives too few items by rows: its keys are split too, by whole chunks.
constexpr int32_t kSplitQueries = 4;

// A row of a split request: partial rows [partial, partial + chunks).
struct MergeRow {
  int64_t partial, chunks, token;
  int32_t q_head;
};

struct Plan final : octet::AttentionPlan {
  AttentionDesc desc;
  decltype(KernelTable::attention) attend = nullptr;
  decltype(KernelTable::attention_merge) merge = nullptr;
  KvLayout layout;
  std::vector<float> alibi;
  float* partials = nullptr;
  int64_t partial_capacity = 0;  // rows

  // The step. Capacities are reserved by MakePlan.
  std::vector<int32_t> q_start, kv_len, kv_begin, page_start, pages;
  std::vector<AttentionItem> items;
  std::vector<MergeRow> merges;
  int64_t most_kv_len = 0, most_queries = 0;
};

int64_t ChunksOf(int64_t tokens) { return tokens / kChunkTokens + 2; }

// Partial rows that a step can need at most: split requests have at most kSplitQueries queries, and their keys are on
// the listed pages.
StatusOr<int64_t> PartialRows(const AttentionDesc& d) {
  const octet::AttentionLimits& m = d.limits;
  // In double, which is exact where the answer is not refused.
  const double requests = m.requests, chunks = static_cast<double>(ChunksOf(m.kv_len));
  const double by_pages = static_cast<double>(m.pages) * d.kv->page_tokens / kChunkTokens + 2 * requests;
  const double by_queries = std::min(kSplitQueries * std::min(by_pages, requests * chunks), m.query_tokens * chunks);
  const double rows = std::ceil(by_queries) * d.q_heads;
  if (rows > 0x1p40) return InvalidArgument("attention: limits need more than 2^40 partial rows");
  return static_cast<int64_t>(rows);
}

Status CheckDesc(const AttentionDesc& d) {
  OCTET_RETURN_IF_ERROR(octet::CheckAttentionDesc(d));
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(*d.kv));
  if (d.q_type == DType::kOpaque) return Unimplemented("cpu: q must be f32, f16 or bf16; opaque q is not made here");
  if (d.limits.kv_len > std::numeric_limits<int32_t>::max() - kChunkTokens) {
    return Unimplemented("cpu: sequences of more than 2^31 - 257 tokens are not supported");
  }
  if (int64_t{d.limits.query_tokens} * (d.q_heads / d.kv->kv_heads) > std::numeric_limits<int32_t>::max()) {
    return Unimplemented("cpu: steps of more than 2^31 - 1 query rows per KV head are not supported");
  }
  if (d.alibi_slopes != nullptr) return octet::CheckBounds("alibi_slopes", *d.alibi_slopes);
  return OkStatus();
}

// Codes with one scale per row, which integer sums need nothing else to know.
bool PlainCodes(const octet::CacheSide& s) {
  return s.data_type == DType::kI8 && s.scheme == octet::Scheme::kSymmetric && s.dynamic() && s.groups() == 1 &&
         s.head_dim <= kMaxIntegerDim;
}

bool InIntegers(const KernelTable& kernels, const AttentionDesc& d) {
  return kernels.attention_int8 != nullptr && !d.exact && PlainCodes(d.kv->k) && PlainCodes(d.kv->v) &&
         !d.kv->has_k_extra;
}

// The chunks that request r's first query on may see.
struct ChunkRange {
  int32_t begin, end;
};

int32_t FirstChunk(const Plan& plan, size_t r, int32_t position) {
  const int32_t window = plan.desc.window, begin = plan.kv_begin[r];
  return (window > 0 ? std::max(begin, position - window + 1) : begin) / kChunkTokens;
}

ChunkRange ChunksOfRequest(const Plan& plan, size_t r) {
  const int32_t queries = plan.q_start[r + 1] - plan.q_start[r], kv_len = plan.kv_len[r];
  return {FirstChunk(plan, r, kv_len - queries), (kv_len + kChunkTokens - 1) / kChunkTokens};
}

// Chunks of an item of a split request, for about kItemsPerWorker items a worker.
int32_t ChunksPerItem(const Plan& plan, int64_t workers) {
  int64_t chunks = 0;
  for (size_t r = 0; r + 1 < plan.q_start.size(); ++r) {
    const int32_t queries = plan.q_start[r + 1] - plan.q_start[r];
    if (queries == 0 || queries > kSplitQueries) continue;
    const ChunkRange range = ChunksOfRequest(plan, r);
    chunks += int64_t{plan.layout.kv_heads} * (range.end - range.begin);
  }
  return static_cast<int32_t>(std::max<int64_t>(1, chunks / (kItemsPerWorker * std::max<int64_t>(1, workers))));
}

// Items of request r. Rows of a request: query * group + head.
void CutRequest(Plan& plan, int32_t r, int32_t chunks_per_item, int64_t* partials) {
  const AttentionDesc& d = plan.desc;
  const auto i = static_cast<size_t>(r);
  const int32_t queries = plan.q_start[i + 1] - plan.q_start[i];
  const int32_t group = d.q_heads / plan.layout.kv_heads;
  const int32_t rows = queries * group, step = RowsPerItem(octet::KRowDim(plan.layout), octet::VRowDim(plan.layout));
  const int32_t kv_len = plan.kv_len[i], first_query = kv_len - queries;
  const auto [chunk_begin, chunk_end] = ChunksOfRequest(plan, i);
  const int32_t chunks = chunk_end - chunk_begin;
  const bool split = queries <= kSplitQueries && chunks > chunks_per_item &&
                     *partials + int64_t{queries} * d.q_heads * chunks <= plan.partial_capacity;
  for (int32_t head = 0; head < plan.layout.kv_heads; ++head) {
    // Later rows see more keys: the longest items first.
    for (int32_t end = rows; end > 0; end -= step) {
      const int32_t begin = std::max(0, end - step);
      if (!split) {
        plan.items.push_back({r, head, begin, end, FirstChunk(plan, i, first_query + begin / group), chunk_end, -1, 0});
        continue;
      }
      for (int32_t c = 0; c < chunks; c += chunks_per_item) {
        const int32_t stop = std::min(chunks, c + chunks_per_item);
        plan.items.push_back({r, head, begin, end, chunk_begin + c, chunk_begin + stop, *partials + c, chunks});
      }
      for (int32_t row = begin; row < end; ++row, *partials += chunks) {
        plan.merges.push_back({*partials, chunks, plan.q_start[i] + row / group, head * group + row % group});
      }
    }
  }
}

// Room for every step that CutRequest can meet, so that Refill allocates nothing.
void ReserveItems(Plan& plan) {
  const octet::AttentionLimits& m = plan.desc.limits;
  const int64_t group = plan.desc.q_heads / plan.layout.kv_heads;
  const int64_t step = RowsPerItem(octet::KRowDim(plan.layout), octet::VRowDim(plan.layout));
  const int64_t whole = plan.layout.kv_heads * (m.query_tokens * group / step + m.requests);
  // An item of a split request has all rows of its head, at least `group`, or more than half a step of them.
  const int64_t split = plan.partial_capacity / std::max<int64_t>(1, std::min(group, step / 2));
  plan.items.reserve(static_cast<size_t>(whole + split));
  const int64_t queries = std::min<int64_t>(m.query_tokens, int64_t{m.requests} * kSplitQueries);
  plan.merges.reserve(static_cast<size_t>(queries * plan.desc.q_heads));
  plan.pages.reserve(static_cast<size_t>(std::min(m.pages, m.requests * (m.kv_len / plan.layout.page_tokens + 2))));
}

}  // namespace

Support Attention::Supports(const AttentionDesc& d) const {
  if (const Status s = CheckDesc(d); !s.ok()) return Support::No(s.message());
  const auto rows = PartialRows(d);
  if (!rows.ok()) return Support::No(rows.status().message());
  const auto row_bytes = static_cast<uint64_t>(octet::VRowDim(*d.kv) + 2) * sizeof(float);
  // Extra K dimensions take the path that scales every element.
  return Support::Yes(
      d.kv->has_k_extra ? 1 : 2,
      std::string(InIntegers(*context_.kernels, d) ? "attention int8 " : "attention f32 ") + context_.kernels->name,
      static_cast<uint64_t>(*rows) * row_bytes);
}

StatusOr<std::unique_ptr<octet::AttentionPlan>> Attention::MakePlan(const AttentionDesc& d, octet::Buffer* workspace,
                                                                    uint64_t offset) {
  OCTET_RETURN_IF_ERROR(CheckDesc(d));
  const auto rows = PartialRows(d);
  if (!rows.ok()) return rows.status();
  const uint64_t bytes =
      static_cast<uint64_t>(*rows) * static_cast<uint64_t>(octet::VRowDim(*d.kv) + 2) * sizeof(float);
  if (workspace == nullptr)
    return InvalidArgument("make_plan: workspace is NULL; supports asks for " + std::to_string(bytes) + " bytes");
  OCTET_RETURN_IF_ERROR(octet::HostBufferOf(*workspace).CheckRange("attention workspace", offset, bytes));
  if (offset % sizeof(float) != 0) return InvalidArgument("make_plan: the workspace offset is not a multiple of 4");

  auto plan = std::make_unique<Plan>();
  plan->desc = d;
  plan->layout = *d.kv;
  const KernelTable& kernels = *context_.kernels;
  const bool integers = InIntegers(kernels, d);
  plan->attend = integers ? kernels.attention_int8 : kernels.attention;
  plan->merge = integers ? kernels.attention_int8_merge : kernels.attention_merge;
  plan->desc.kv = nullptr;
  plan->desc.alibi_slopes = nullptr;
  if (d.alibi_slopes != nullptr) {
    const float* slopes = octet::HostData<const float>(*d.alibi_slopes);
    plan->alibi.assign(slopes, slopes + d.q_heads);
  }
  plan->partials = reinterpret_cast<float*>(octet::HostBufferOf(*workspace).data() + offset);
  plan->partial_capacity = *rows;
  const auto requests = static_cast<size_t>(d.limits.requests);
  plan->q_start.reserve(requests + 1);
  plan->kv_len.reserve(requests);
  plan->kv_begin.reserve(requests);
  plan->page_start.reserve(requests + 1);
  ReserveItems(*plan);
  return std::unique_ptr<octet::AttentionPlan>(std::move(plan));
}

Status Attention::Refill(octet::Stream&, octet::AttentionPlan& base, const Batch& b) {
  auto& plan = static_cast<Plan&>(base);
  OCTET_RETURN_IF_ERROR(octet::CheckBatch(plan.layout, plan.desc.limits, plan.desc.window, b));
  const int32_t n = b.requests;
  plan.q_start.assign(b.q_start, b.q_start + n + 1);
  plan.page_start.assign(b.page_start, b.page_start + n + 1);
  plan.kv_len.assign(b.kv_len, b.kv_len + n);
  if (b.kv_begin != nullptr) {
    plan.kv_begin.assign(b.kv_begin, b.kv_begin + n);
  } else {
    plan.kv_begin.assign(static_cast<size_t>(n), 0);
  }
  plan.pages.assign(b.pages, b.pages + b.page_start[n]);
  plan.items.clear();
  plan.merges.clear();
  plan.most_kv_len = plan.most_queries = 0;
  int64_t partials = 0;
  const int32_t chunks_per_item = ChunksPerItem(plan, context_.host.max_workers());
  for (int32_t r = 0; r < n; ++r) {
    const int32_t queries = b.q_start[r + 1] - b.q_start[r];
    if (queries == 0) continue;
    plan.most_kv_len = std::max<int64_t>(plan.most_kv_len, b.kv_len[r]);
    plan.most_queries = std::max<int64_t>(plan.most_queries, queries);
    CutRequest(plan, r, chunks_per_item, &partials);
  }
  return OkStatus();
}

Status Attention::Run(octet::Stream&, const octet::AttentionPlan& base, const KvLayer& layer, const AttentionArgs& a) {
  const auto& plan = static_cast<const Plan&>(base);
  const AttentionDesc& d = plan.desc;
  OCTET_RETURN_IF_ERROR(octet::CheckAttentionArgs(d, plan.layout, a));
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(plan.layout, layer, d.q_heads));
  const std::pair<const char*, const Tensor*> tensors[] = {
      {"q", a.q}, {"out", a.out}, {"lse", a.lse}, {"mask", a.mask}};
  for (const auto& [name, t] : tensors) {
    if (t != nullptr) OCTET_RETURN_IF_ERROR(octet::CheckBounds(name, *t));
  }
  const int64_t tokens = plan.q_start.empty() ? 0 : plan.q_start.back();
  if (a.out->shape[0] < tokens) {
    return InvalidArgument("attention: q and out have " + std::to_string(a.out->shape[0]) + " rows, the batch has " +
                           std::to_string(tokens) + " query tokens");
  }
  if (a.mask != nullptr && a.mask->shape[1] < plan.most_queries) {
    return InvalidArgument("attention: the mask has " + std::to_string(a.mask->shape[1]) + " columns, a request has " +
                           std::to_string(plan.most_queries) + " query tokens");
  }
  if (layer.k_offset != nullptr && plan.most_kv_len > 0 &&
      (plan.most_kv_len - 1) / plan.layout.offset_block >= layer.k_offset->shape[0]) {
    return InvalidArgument("attention: the K offset table has " + std::to_string(layer.k_offset->shape[0]) +
                           " blocks of " + std::to_string(plan.layout.offset_block) +
                           " positions, a request has kv_len " + std::to_string(plan.most_kv_len));
  }
  if (plan.items.empty()) return OkStatus();

  AttentionParams p{};
  p.k = KSide(plan.layout, layer);
  p.v = VSide(plan.layout, layer);
  p.k_extra = KExtraSide(plan.layout, layer);
  p.offset = OffsetsOf(plan.layout, layer);
  p.q = octet::HostBufferOf(*a.q->buffer).data() + a.q->offset;
  p.q_token_stride = a.q->stride[0];
  p.q_head_stride = a.q->stride[1];
  p.out = octet::HostBufferOf(*a.out->buffer).data() + a.out->offset;
  p.out_token_stride = a.out->stride[0];
  p.out_head_stride = a.out->stride[1];
  if (a.lse != nullptr) {
    p.lse = octet::HostData<float>(*a.lse);
    p.lse_token_stride = a.lse->stride[0];
  }
  if (a.mask != nullptr) {
    p.mask = octet::HostData<const int8_t>(*a.mask);
    p.mask_token_stride = a.mask->stride[0];
  }
  p.q_element = ElementOf(d.q_type);
  p.out_element = ElementOf(d.out_type);
  p.alibi = plan.alibi.empty() ? nullptr : plan.alibi.data();
  p.sinks = layer.sinks != nullptr ? octet::HostData<const float>(*layer.sinks) : nullptr;
  p.q_heads = d.q_heads;
  p.kv_heads = plan.layout.kv_heads;
  p.page_tokens = plan.layout.page_tokens;
  p.window = d.window;
  p.causal = d.causal;
  p.scale = d.scale;
  p.softcap = d.softcap;
  p.q_start = plan.q_start.data();
  p.kv_len = plan.kv_len.data();
  p.kv_begin = plan.kv_begin.data();
  p.page_start = plan.page_start.data();
  p.pages = plan.pages.data();
  p.partials = plan.partials;

  const int64_t row_flops = 2 * (octet::KRowDim(plan.layout) + octet::VRowDim(plan.layout));
  context_.For(static_cast<int64_t>(plan.items.size()), row_flops * std::min<int64_t>(plan.most_kv_len, kChunkTokens),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) plan.attend(p, plan.items[static_cast<size_t>(i)]);
               });
  context_.For(static_cast<int64_t>(plan.merges.size()), row_flops * 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const MergeRow& row = plan.merges[static_cast<size_t>(i)];
      plan.merge(p, row.partial, row.chunks, row.token, row.q_head);
    }
  });
  return OkStatus();
}

}  // namespace octet_cpu
