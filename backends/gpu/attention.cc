#include "backends/gpu/attention.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "backends/gpu/kernels/kernels.h"
#include "backends/gpu/quant.h"
#include "octet/bounds.h"
#include "octet/checks.h"

namespace octet_gpu {
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
using octet::Unimplemented;

constexpr uint64_t kAlign = 256;
constexpr int64_t kMostWords = std::numeric_limits<int32_t>::max();

constexpr int64_t kKeyWords = sizeof(TokenKeys) / sizeof(int32_t);
constexpr int64_t kHeaderWords = sizeof(StepHeader) / sizeof(int32_t);

// Where each array of a step starts in the plan's workspace, in words of 32 bits.
struct StepLayout {
  int64_t keys = 0, alibi = 0, header = 0, q_start = 0, kv_len = 0, kv_begin = 0, page_start = 0, pages = 0, end = 0;

  StepLayout(int64_t slopes, int64_t max_requests, int64_t max_tokens, int64_t max_pages) {
    int64_t at = 0;
    const auto place = [&at](int64_t* start, int64_t words) {
      *start = at;
      at += words;
    };
    place(&alibi, (slopes + 3) / 4 * 4);  // stays
    place(&keys, (max_tokens + 1) * kKeyWords);
    place(&header, kHeaderWords);
    place(&q_start, max_requests + 1);
    place(&kv_len, max_requests);
    place(&kv_begin, max_requests);
    place(&page_start, max_requests + 1);
    place(&pages, max_pages);  // last, so that a step need not send what it does not have
    end = at;
  }
};

StepLayout LayoutOf(const AttentionDesc& d) {
  return {d.alibi_slopes != nullptr ? d.q_heads : 0, d.limits.requests, d.limits.query_tokens, d.limits.pages};
}

struct Plan final : octet::AttentionPlan {
  AttentionDesc desc;  // without its pointers
  KvLayout layout;
  StepLayout at{0, 0, 0, 0};
  const AttentionKernel* kernel = nullptr;
  bool alibi = false;
  int32_t* step = nullptr;                                  // in the workspace
  uint8_t* scratch = nullptr;                               // the kernel's, behind it
  std::vector<int32_t> host;                                // the same, as it is sent
  int64_t tokens = 0, most_queries = 0, most_position = 0;  // of the step
  bool filled = false;
};

Status CheckDesc(const AttentionDesc& d) {
  OCTET_RETURN_IF_ERROR(octet::CheckAttentionDesc(d));
  OCTET_RETURN_IF_ERROR(CheckPlacedLayout(*d.kv));
  const std::string name = runtime::kName;
  if (d.q_type == DType::kOpaque)
    return Unimplemented(name + ": q must be f32, f16 or bf16; opaque q is not made here");
  if (d.limits.kv_len > std::numeric_limits<int32_t>::max() - 1) {
    return Unimplemented(name + ": sequences of more than 2^31 - 2 tokens are not supported");
  }
  if (d.q_heads > 65535) return Unimplemented(name + ": more than 65535 query heads are not supported");
  if (int64_t{d.limits.requests} * 4 + (int64_t{d.limits.query_tokens} + 1) * kKeyWords + 16 >
      kMostWords - d.limits.pages) {
    return Unimplemented(name + ": a step of more than 2^31 words is not supported");
  }
  if (double(d.limits.query_tokens) * (static_cast<double>(d.limits.kv_len) / kAttentionTile + 2 + kAttentionItemCost) >
      double(kMostWords)) {
    return Unimplemented(name + ": steps of more than 2^31 query tokens times tiles of 64 keys are not supported");
  }
  if (d.alibi_slopes != nullptr) return octet::CheckBounds("alibi_slopes", *d.alibi_slopes);
  return OkStatus();
}

uint64_t StepBytes(const AttentionDesc& d) {
  return (static_cast<uint64_t>(LayoutOf(d).end) * sizeof(int32_t) + kAlign - 1) / kAlign * kAlign;
}

// Is "dispatch" among the words of OCTET_VERBOSE?
bool Verbose() {
  const char* variable = std::getenv("OCTET_VERBOSE");
  for (std::string_view words = variable != nullptr ? variable : ""; !words.empty();) {
    const std::string_view word = words.substr(0, words.find(','));
    if (word == "dispatch") return true;
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
  return false;
}

// What query token `position` of a request sees, its items from `place` on.
TokenKeys KeysAt(const AttentionDesc& d, const Batch& b, int32_t request, int32_t position, int32_t place) {
  TokenKeys k{};
  k.request = request;
  k.position = position;
  k.kv_begin = b.kv_begin != nullptr ? b.kv_begin[request] : 0;
  k.begin = d.window > 0 ? std::max(k.kv_begin, position - d.window + 1) : k.kv_begin;
  k.end = d.causal ? std::min(position + 1, b.kv_len[request]) : b.kv_len[request];
  k.page_start = b.page_start[request];
  k.first_tile = (k.begin - k.kv_begin) / kAttentionTile;
  k.place = place;
  return k;
}

int32_t TilesOf(const TokenKeys& k) {
  return (k.end - k.kv_begin + kAttentionTile - 1) / kAttentionTile - k.first_tile;
}

}  // namespace

constexpr AttentionKernel kPlainAttention = {
    "attention f32",
    1,
    [](const AttentionDesc&, const Traits&) { return std::string(); },
    [](const AttentionParams&) { return true; },
    [](const AttentionDesc&, const Traits&) { return uint64_t{0}; },
    [](const AttentionParams& p, void*, const Traits&, runtime::Stream stream) { LaunchAttention(p, stream); }};

const AttentionKernel& Attention::KernelFor(const AttentionDesc& d) const {
  static const bool verbose = Verbose();
  for (const AttentionKernel* kernel : kernels_) {
    const std::string reason = kernel->decline(d, context_.traits());
    if (verbose) {
      octet::HostServices().Log(
          1, std::string(runtime::kName) + ": " + kernel->name + (reason.empty() ? " chosen" : " declined: " + reason));
    }
    if (reason.empty()) return *kernel;
  }
  return kPlainAttention;
}

uint64_t Attention::WorkspaceBytes(const AttentionDesc& d) const {
  return StepBytes(d) + KernelFor(d).workspace_bytes(d, context_.traits()) + kAlign;
}

Support Attention::Supports(const AttentionDesc& d) const {
  if (const Status s = CheckDesc(d); !s.ok()) return Support::No(s.message());
  const AttentionKernel& kernel = KernelFor(d);
  return Support::Yes(kernel.level, kernel.name, WorkspaceBytes(d));
}

StatusOr<std::unique_ptr<octet::AttentionPlan>> Attention::MakePlan(const AttentionDesc& d, octet::Buffer* workspace,
                                                                    uint64_t offset) {
  OCTET_RETURN_IF_ERROR(CheckDesc(d));
  const uint64_t bytes = WorkspaceBytes(d);
  if (workspace == nullptr) {
    return InvalidArgument("make_plan: workspace is NULL; supports asks for " + std::to_string(bytes) + " bytes");
  }
  GpuBuffer& buffer = GpuBufferOf(*workspace);
  OCTET_RETURN_IF_ERROR(buffer.CheckRange("attention workspace", offset, bytes));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  auto plan = std::make_unique<Plan>();
  plan->kernel = &KernelFor(d);
  plan->desc = d;
  plan->layout = *d.kv;
  plan->at = LayoutOf(d);
  uint8_t* const start = buffer.data() + (offset + kAlign - 1) / kAlign * kAlign;
  plan->step = reinterpret_cast<int32_t*>(start);
  plan->scratch = start + StepBytes(d);
  // There is no stream to order these by; afterwards everything of the plan is.
  const uint64_t scratch_bytes = plan->kernel->workspace_bytes(d, context_.traits());
  if (scratch_bytes > 0) {
    OCTET_RETURN_IF_ERROR(
        context_.Check(runtime::FillAsync(plan->scratch, 0, scratch_bytes, runtime::Stream{}), "make_plan"));
  }
  if (d.alibi_slopes != nullptr) {
    // The tensor may go away when this returns.
    plan->alibi = true;
    OCTET_RETURN_IF_ERROR(
        context_.Check(runtime::CopyAsync(plan->step + plan->at.alibi, DataOf<const void>(*d.alibi_slopes),
                                          static_cast<size_t>(d.q_heads) * sizeof(float), runtime::Stream{}),
                       "make_plan"));
    OCTET_RETURN_IF_ERROR(context_.Check(runtime::Synchronize(runtime::Stream{}), "make_plan"));
  }
  plan->desc.kv = nullptr;
  plan->desc.alibi_slopes = nullptr;
  plan->host.resize(static_cast<size_t>(plan->at.end));
  return std::unique_ptr<octet::AttentionPlan>(std::move(plan));
}

Status Attention::Refill(octet::Stream& stream, octet::AttentionPlan& base, const Batch& b) {
  auto& plan = static_cast<Plan&>(base);
  OCTET_RETURN_IF_ERROR(octet::CheckBatch(plan.layout, plan.desc.limits, plan.desc.window, b));
  OCTET_RETURN_IF_ERROR(context_.Enter());
  int32_t* const host = plan.host.data();
  const auto send = [host](int64_t at, const int32_t* from, int64_t words) {
    if (words > 0) std::memcpy(host + at, from, static_cast<size_t>(words) * sizeof(int32_t));
  };
  const int32_t tokens = b.q_start[b.requests], pages = b.page_start[b.requests];
  send(plan.at.q_start, b.q_start, b.requests + 1);
  send(plan.at.kv_len, b.kv_len, b.requests);
  send(plan.at.page_start, b.page_start, b.requests + 1);
  send(plan.at.pages, b.pages, pages);
  plan.most_queries = plan.most_position = 0;
  auto* const keys = reinterpret_cast<TokenKeys*>(host + plan.at.keys);
  int32_t place = 0;
  for (int32_t r = 0; r < b.requests; ++r) {
    host[plan.at.kv_begin + r] = b.kv_begin != nullptr ? b.kv_begin[r] : 0;
    const int32_t queries = b.q_start[r + 1] - b.q_start[r];
    plan.most_queries = std::max<int64_t>(plan.most_queries, queries);
    if (queries > 0) plan.most_position = std::max<int64_t>(plan.most_position, b.kv_len[r]);
    for (int32_t i = 0; i < queries; ++i) {
      TokenKeys& k = keys[b.q_start[r] + i];
      k = KeysAt(plan.desc, b, r, b.kv_len[r] - queries + i, place);
      place += TilesOf(k) + kAttentionItemCost;
    }
  }
  keys[tokens] = TokenKeys{};
  keys[tokens].place = place;
  const StepHeader header = {b.requests, tokens, place, 0};
  std::memcpy(host + plan.at.header, &header, sizeof header);
  plan.tokens = tokens;
  plan.filled = true;
  // Memory that is not pinned has been read when the copy returns, so the next step may overwrite it.
  const int64_t from = plan.at.keys, words = plan.at.pages + pages - from;
  return context_.Check(
      runtime::CopyAsync(plan.step + from, host + from, static_cast<size_t>(words) * sizeof(int32_t), NativeOf(stream)),
      "refill");
}

Status Attention::Run(octet::Stream& stream, const octet::AttentionPlan& base, const KvLayer& layer,
                      const AttentionArgs& a) {
  const auto& plan = static_cast<const Plan&>(base);
  const AttentionDesc& d = plan.desc;
  OCTET_RETURN_IF_ERROR(octet::CheckLayerInside(plan.layout, layer, d.q_heads));
  OCTET_RETURN_IF_ERROR(octet::CheckAttentionArgs(d, plan.layout, a));
  OCTET_RETURN_IF_ERROR(octet::CheckBounds("q", *a.q));
  OCTET_RETURN_IF_ERROR(octet::CheckBounds("out", *a.out));
  if (a.lse != nullptr) OCTET_RETURN_IF_ERROR(octet::CheckBounds("lse", *a.lse));
  if (a.mask != nullptr) OCTET_RETURN_IF_ERROR(octet::CheckBounds("mask", *a.mask));
  if (a.out->shape[0] < plan.tokens) {
    return InvalidArgument("attention: q and out have " + std::to_string(a.out->shape[0]) + " rows, the batch has " +
                           std::to_string(plan.tokens) + " query tokens");
  }
  if (a.mask != nullptr && a.mask->shape[1] < plan.most_queries) {
    return InvalidArgument("attention: the mask has " + std::to_string(a.mask->shape[1]) + " columns, a request has " +
                           std::to_string(plan.most_queries) + " query tokens");
  }
  if (layer.k_offset != nullptr && plan.most_position > layer.k_offset->shape[0] * int64_t{plan.layout.offset_block}) {
    return InvalidArgument("attention: the K offset table has " + std::to_string(layer.k_offset->shape[0]) +
                           " blocks of " + std::to_string(plan.layout.offset_block) +
                           " positions, a request has kv_len " + std::to_string(plan.most_position));
  }
  OCTET_RETURN_IF_ERROR(context_.Enter());
  AttentionParams p{};
  p.tokens = a.out->shape[0];
  // A batch without tokens is launched too: a captured run may be replayed with another one.
  if (p.tokens == 0 || !plan.filled) return OkStatus();
  p.k = KSide(plan.layout, layer);
  p.v = VSide(plan.layout, layer);
  p.k_extra = KExtraSide(plan.layout, layer);
  p.offset = OffsetsOf(plan.layout, layer);
  p.q = DataOf<const void>(*a.q);
  p.q_token_stride = a.q->stride[0];
  p.q_head_stride = a.q->stride[1];
  p.q_element = ElementOf(d.q_type);
  p.out = DataOf<void>(*a.out);
  p.out_token_stride = a.out->stride[0];
  p.out_head_stride = a.out->stride[1];
  p.out_element = ElementOf(d.out_type);
  if (a.lse != nullptr) {
    p.lse = DataOf<float>(*a.lse);
    p.lse_token_stride = a.lse->stride[0];
  }
  if (a.mask != nullptr) {
    p.mask = DataOf<const int8_t>(*a.mask);
    p.mask_token_stride = a.mask->stride[0];
    p.mask_columns = a.mask->shape[1];
  }
  if (plan.alibi) p.alibi = reinterpret_cast<const float*>(plan.step + plan.at.alibi);
  if (layer.sinks != nullptr) p.sinks = DataOf<const float>(*layer.sinks);
  p.q_heads = d.q_heads;
  p.kv_heads = plan.layout.kv_heads;
  p.page_tokens = plan.layout.page_tokens;
  p.window = d.window;
  p.causal = d.causal;
  p.scale = d.scale;
  p.softcap = d.softcap;
  p.step = reinterpret_cast<const StepHeader*>(plan.step + plan.at.header);
  p.q_start = plan.step + plan.at.q_start;
  p.kv_len = plan.step + plan.at.kv_len;
  p.kv_begin = plan.step + plan.at.kv_begin;
  p.page_start = plan.step + plan.at.page_start;
  p.pages = plan.step + plan.at.pages;
  p.keys = reinterpret_cast<const TokenKeys*>(plan.step + plan.at.keys);
  const AttentionKernel& kernel = plan.kernel->takes(p) ? *plan.kernel : kPlainAttention;
  kernel.launch(p, plan.scratch, context_.traits(), NativeOf(stream));
  return context_.CheckLaunch(kernel.name);
}

}  // namespace octet_gpu
