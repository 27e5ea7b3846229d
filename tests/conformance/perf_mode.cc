// How fast, as a share of what the device's memory gives. Each case counts the bytes that it cannot avoid to move; the
// rates they are held against, copy and read, are measured on the same device in the same run:
// core/loader/memory_rates.h.
// Append is held against copy, decode attention and linear layers, which read far more than they write, against read.
// A case that fits into the caches of the processor can exceed 1.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/stopwatch.h"
#include "core/loader/memory_rates.h"
#include "nlohmann/json.hpp"
#include "tests/conformance/case_lists.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/modes.h"
#include "tests/conformance/report.h"
#include "tests/conformance/test_cache.h"
#include "tests/reference/gguf.h"
#include "tests/reference/random.h"

namespace octet::conformance {
namespace {

struct PerfRow {
  std::string name, kernel, reason;  // reason: unsupported
  double bytes = 0, seconds = 0;
  bool against_copy = false;
};

// Seconds of one call: the best of at least three bursts that fill `budget` seconds together.
Status Time(const std::function<Status()>& call, double budget, double* seconds) {
  auto burst = [&](int n, double* each) -> Status {
    const Stopwatch watch;
    for (int i = 0; i < n; ++i) OCTET_RETURN_IF_ERROR(call());
    Sync();
    *each = watch.seconds() / n;
    return OkStatus();
  };
  double first = 0;
  OCTET_RETURN_IF_ERROR(burst(1, &first));
  OCTET_RETURN_IF_ERROR(burst(1, seconds));
  const Stopwatch watch;
  const int n = static_cast<int>(std::clamp(budget / 5 / std::max(*seconds, 1e-9), 1.0, 1e6));
  for (int i = 0; i < 3 || watch.seconds() < budget; ++i) {
    double each = 0;
    OCTET_RETURN_IF_ERROR(burst(n, &each));
    *seconds = std::min(*seconds, each);
    if (watch.seconds() > 4 * budget) break;  // one call is longer than the budget
  }
  return OkStatus();
}

// Bytes that one token takes in the cache, all heads.
double TokenBytes(const KvLayout& layout) {
  double bytes = 0;
  for (const CacheSide* s : {&layout.k, &layout.v}) {
    int64_t row = s->head_dim * ElementBytes(s->data_type);
    if (s->dynamic()) row += s->groups() * (ElementBytes(s->scale_type) + ElementBytes(s->zero_type));
    bytes += static_cast<double>(row * layout.kv_heads);
  }
  return bytes;
}

Status PerfAppend(const CacheSpec& spec, int tokens, double budget, PerfRow* row) {
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, (tokens + spec.page_tokens - 1) / spec.page_tokens + 1));
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  std::iota(slots.begin(), slots.end(), int64_t{spec.page_tokens} / 2);
  const DeviceRows rows(spec, NormalRows(spec, slots, 71));
  QuantOps& quant = TheSubject().device->quant();
  row->kernel = quant.Supports(cache.layout(), DType::kF32).kernel;
  row->bytes = tokens * (TokenBytes(cache.layout()) + 4.0 * spec.kv_heads * (spec.k_dim + spec.v_dim));
  row->against_copy = true;
  return Time(
      [&] { return Promised("append", quant.Append(TheSubject().s(), cache.layout(), cache.layer(), rows.tokens())); },
      budget, &row->seconds);
}

struct Decode {
  CacheSpec cache;
  int q_heads, requests, kv_len;
};

Status PerfDecode(const Decode& d, double budget, PerfRow* row) {
  const CacheSpec& spec = d.cache;
  const int each = (d.kv_len + spec.page_tokens - 1) / spec.page_tokens, pages = each * d.requests;
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, pages));
  AttentionDesc desc;
  desc.q_heads = d.q_heads;
  desc.scale = 0.1f;
  desc.kv = &cache.layout();
  desc.limits = {d.requests, d.requests, d.kv_len, pages};
  AttentionBackend& attention = TheSubject().device->attention();
  const Support support = attention.Supports(desc);
  if (support.level == 0) return Unimplemented(support.reason);
  row->kernel = support.kernel;
  const Workspace workspace(support.workspace_bytes);
  auto plan = attention.MakePlan(desc, workspace.buffer(), workspace.offset());
  OCTET_RETURN_IF_ERROR(Promised("make_plan", plan.status()));

  // One page of normal rows, copied to all others.
  std::vector<int64_t> slots(static_cast<size_t>(spec.page_tokens));
  std::iota(slots.begin(), slots.end(), int64_t{0});
  OCTET_RETURN_IF_ERROR(cache.Append(NormalRows(spec, slots, 72)));
  std::vector<int32_t> pairs;
  for (int32_t p = 1; p < pages; ++p) pairs.insert(pairs.end(), {0, p});
  OCTET_RETURN_IF_ERROR(cache.CopyPages(pairs));

  std::vector<int32_t> q_start = {0}, page_start = {0};
  for (int r = 0; r < d.requests; ++r) {
    q_start.push_back(r + 1);
    page_start.push_back((r + 1) * each);
  }
  const std::vector<int32_t> kv_len(static_cast<size_t>(d.requests), d.kv_len);
  const std::vector<int32_t> listed = reference::Random(73).Permutation(pages);
  OCTET_RETURN_IF_ERROR(Promised("refill", attention.Refill(TheSubject().s(), **plan,
                                                            {d.requests, q_start.data(), kv_len.data(), nullptr,
                                                             page_start.data(), listed.data()})));
  const Block q(reference::Random(74).Normals(static_cast<size_t>(d.requests * d.q_heads * spec.k_dim)));
  const Block out(static_cast<uint64_t>(d.requests * d.q_heads * spec.v_dim) * 4);
  const Tensor qt = q.View(DType::kF32, {d.requests, d.q_heads, spec.k_dim}),
               ot = out.View(DType::kF32, {d.requests, d.q_heads, spec.v_dim});
  row->bytes = static_cast<double>(d.requests) * d.kv_len * TokenBytes(cache.layout()) +
               static_cast<double>(q.size() + out.size());
  return Time(
      [&] {
        return Promised("run", attention.Run(TheSubject().s(), **plan, cache.layer(), {&qt, &ot, nullptr, nullptr}));
      },
      budget, &row->seconds);
}

Status PerfLinear(DType type, int64_t columns, int64_t rows, int tokens, double budget, PerfRow* row) {
  DenseOps* dense = TheSubject().device->dense();
  if (dense == nullptr) return Unimplemented("the backend has no dense table");
  reference::Random random(75);
  std::vector<uint8_t> some, data;  // 64 rows, repeated
  for (int i = 0; i < 64; ++i) {
    const auto one = reference::RandomWeightRow(type, columns, 0.5, random);
    some.insert(some.end(), one.begin(), one.end());
  }
  for (int64_t r = 0; r < rows; r += 64) data.insert(data.end(), some.begin(), some.end());
  const WeightPart part{type, rows, static_cast<int64_t>(some.size()) / 64, data.data(), nullptr};
  WeightDesc desc;
  desc.columns = columns;
  desc.parts = {&part, 1};
  desc.max_tokens = tokens;
  const Support support = dense->SupportsWeight(desc);
  if (support.level == 0) return Unimplemented(support.reason);
  row->kernel = support.kernel;
  const auto weight = TheSubject().device->PrepareWeight(&TheSubject().s(), desc);
  if (!weight.ok()) return Promised("prepare_weight", weight.status());
  const Workspace workspace(support.workspace_bytes);
  const Block x(random.Normals(static_cast<size_t>(tokens * columns))), y(static_cast<uint64_t>(tokens * rows) * 4);
  const Tensor xt = x.View(DType::kF32, {tokens, columns}), yt = y.View(DType::kF32, {tokens, rows});
  const LinearArgs args = ArgsOf(xt, yt, weight->get(), workspace);
  row->bytes = static_cast<double>(rows * part.row_stride_bytes) + static_cast<double>(x.size() + y.size());
  return Time([&] { return Promised("linear", dense->Linear(TheSubject().s(), args)); }, budget, &row->seconds);
}

using PerfCase = std::pair<std::string, std::function<Status(double, PerfRow*)>>;

std::vector<PerfCase> PerfCases() {
  std::vector<PerfCase> cases;
  const SideSpec bf16 = Float(DType::kBF16);
  for (const auto& [side, dim, heads] : {std::tuple{Int8(64), 64, 2}, {Int8(128), 128, 8}, {bf16, 128, 8}}) {
    const CacheSpec spec = Both(side, dim, heads, 32);
    for (int tokens : {1, 8, 512}) {
      cases.emplace_back(absl::StrCat("Append/", NameOf(spec), "_t", tokens),
                         [=](double budget, PerfRow* row) { return PerfAppend(spec, tokens, budget, row); });
    }
  }
  for (const auto& [side, dim, heads, group] :
       {std::tuple{Int8(64), 64, 2, 7}, {Int8(128), 128, 8, 4}, {bf16, 128, 8, 4}, {Int8(256), 256, 1, 4}}) {
    for (const auto& [requests, kv_len] : {std::pair{1, 1024}, {1, 8192}, {1, 32768}, {8, 4096}, {32, 1024}}) {
      const Decode d{Both(side, dim, heads, 32), heads * group, requests, kv_len};
      cases.emplace_back(absl::StrCat("Decode/", NameOf(d.cache), "_h", d.q_heads, "_b", requests, "_n", kv_len),
                         [d](double budget, PerfRow* row) { return PerfDecode(d, budget, row); });
    }
  }
  for (DType type : {DType::kQ4_K, DType::kQ8_0, DType::kBF16}) {
    for (const auto& [columns, rows] : {std::pair<int64_t, int64_t>{1024, 4864}, {4096, 14336}}) {
      for (int tokens : {1, 8, 128}) {
        cases.emplace_back(absl::StrCat("Linear/", DTypeName(type), "_c", columns, "_r", rows, "_t", tokens),
                           [=, columns = columns, rows = rows](double budget, PerfRow* row) {
                             return PerfLinear(type, columns, rows, tokens, budget, row);
                           });
      }
    }
  }
  return cases;
}

}  // namespace

absl::Status RunPerf(const std::string& filter, double seconds, JsonFile* json, ThreadPool* pool) {
  std::vector<PerfCase> chosen;
  for (PerfCase& one : PerfCases()) {
    if (GlobMatch(filter, one.first)) chosen.push_back(std::move(one));
  }
  if (chosen.empty()) return absl::NotFoundError("no perf case matches '" + filter + "'");
  const auto measured = MeasureMemoryRates(*TheSubject().device, pool, seconds);
  if (!measured.ok()) {
    return absl::InternalError(absl::StrCat("measuring the copy and read rates: ", measured.status().message()));
  }
  const MemoryRates& rates = *measured;
  std::printf("%s\nthreads %d, copy %.1f GB/s, read %.1f GB/s\n\n%-52s %9s %11s %9s %6s  %s\n", TextOfSubject().c_str(),
              pool == nullptr ? 1 : pool->threads(), rates.copy * 1e-9, rates.read * 1e-9, "case", "MB", "us", "GB/s",
              "share", "kernel");
  nlohmann::json all = JsonOfSubject();
  all["copy_bytes_per_second"] = rates.copy;
  all["read_bytes_per_second"] = rates.read;
  all["threads"] = pool == nullptr ? 1 : pool->threads();
  all["perf"] = nlohmann::json::array();
  for (const auto& [name, run] : chosen) {
    PerfRow row;
    const Status status = run(seconds, &row);
    if (status.code() == Code::kUnimplemented) {
      std::printf("%-52s unsupported: %s\n", name.c_str(), status.message().c_str());
      all["perf"].push_back({{"name", name}, {"unsupported", status.message()}});
      continue;
    }
    if (!status.ok()) return absl::InternalError(absl::StrCat(name, ": ", status.message()));
    const double rate = row.bytes / row.seconds, share = rate / (row.against_copy ? rates.copy : rates.read);
    std::printf("%-52s %9.2f %11.1f %9.2f %6.3f  %s\n", name.c_str(), row.bytes * 1e-6, row.seconds * 1e6, rate * 1e-9,
                share, row.kernel.c_str());
    std::fflush(stdout);
    all["perf"].push_back({{"name", name},
                           {"bytes", row.bytes},
                           {"seconds", row.seconds},
                           {"bytes_per_second", rate},
                           {"share", share},
                           {"share_of", row.against_copy ? "copy" : "read"},
                           {"kernel", row.kernel}});
  }
  return json == nullptr ? absl::OkStatus() : json->Write(all);
}

}  // namespace octet::conformance
