// What goes wrong must be refused, with a code that says what it is, leave the output alone, and leave the device as
// useful as before: a valid call afterwards gives the same bytes. Rules: abi.h, A9 and A10.
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

constexpr int kHeads = 4, kDim = 64, kQueries = 3;

Status RunsOutOfMemory() {
  const octet_backend_v1& table = *TheSubject().table();
  const auto memory = TheSubject().device->memory();
  if (!memory.ok()) return Internal(std::string(memory.status().message()));
  for (uint64_t bytes : {uint64_t{1} << 60, uint64_t{1} << 62, std::numeric_limits<uint64_t>::max() - 4096,
                         std::numeric_limits<uint64_t>::max(), memory->total_bytes * 4}) {
    octet_buffer* buffer = nullptr;
    octet_error error = Error();
    const octet_code code =
        table.memory->alloc(TheSubject().device->handle(), bytes, OCTET_MEMORY_DEVICE, &buffer, &error);
    const OwnedBuffer owned(buffer, table.memory->free);
    const std::string what = "alloc of " + std::to_string(bytes) + " bytes";
    ExpectRefusal(code, error, what.c_str());
    EXPECT_EQ(code, OCTET_RESOURCE_EXHAUSTED) << what;
    EXPECT_EQ(buffer, nullptr) << what;
  }
  const auto after = TheSubject().device->memory();
  if (!after.ok()) return Internal(std::string(after.status().message()));
  EXPECT_EQ(after->held_bytes, memory->held_bytes) << "an alloc that failed holds memory";
  return StillWorks();
}

// Two requests of one plan: three queries in all over pages 4, 5 and 1 of eight.
class Rig {
 public:
  Status Init() {
    OCTET_RETURN_IF_ERROR(cache_.Init(Both(Int8(64)), 8));
    std::vector<int64_t> slots;
    for (int64_t page : {4, 5, 1}) {
      for (int i = 0; i < 16; ++i) slots.push_back(page * 16 + i);
    }
    OCTET_RETURN_IF_ERROR(cache_.Append(NormalRows(cache_.spec(), slots, 51)));
    AttentionDesc desc;
    desc.q_heads = kHeads;
    desc.kv = &cache_.layout();
    desc.limits = {2, kQueries, 32, 3};
    AttentionBackend& attention = TheSubject().device->attention();
    const Support support = attention.Supports(desc);
    if (support.level == 0) return Unimplemented(support.reason);
    workspace_.emplace(support.workspace_bytes);
    auto plan = attention.MakePlan(desc, workspace_->buffer(), workspace_->offset());
    OCTET_RETURN_IF_ERROR(Promised("make_plan", plan.status()));
    plan_ = *std::move(plan);
    q_ = std::make_unique<Block>(NormalRows(Both(Int8(), kDim, kHeads), {0, 1, 2}, 52).k);
    return Valid(&first_);
  }

  Status Refill(const Batch& batch) {
    const Status status = TheSubject().device->attention().Refill(TheSubject().s(), *plan_, batch);
    Sync();
    return status;
  }
  Status RefillValid() { return Refill({2, q_start_, kv_len_, nullptr, page_start_, pages_}); }
  Status Run(const KvLayer& layer, const AttentionArgs& args) {
    const Status status = TheSubject().device->attention().Run(TheSubject().s(), *plan_, layer, args);
    Sync();
    return status;
  }
  // The valid step gives the bytes it gave at first.
  Status ExpectUnharmed(const char* after) {
    std::vector<uint8_t> bytes;
    OCTET_RETURN_IF_ERROR(Valid(&bytes));
    EXPECT_EQ(bytes, first_) << "another answer after " << after;
    return OkStatus();
  }

  const KvLayer& layer() const { return cache_.layer(); }
  TestCache& cache() { return cache_; }
  Tensor q() const { return q_->View(DType::kF32, {kQueries, kHeads, kDim}); }

 private:
  Status Valid(std::vector<uint8_t>* bytes) {
    OCTET_RETURN_IF_ERROR(Promised("refill", RefillValid()));
    const Block out(uint64_t{kQueries} * kHeads * kDim * 4);
    const Tensor qt = q(), ot = out.View(DType::kF32, {kQueries, kHeads, kDim});
    OCTET_RETURN_IF_ERROR(Promised("run", Run(layer(), {&qt, &ot, nullptr, nullptr})));
    *bytes = out.Bytes();
    return OkStatus();
  }

  static constexpr int32_t q_start_[] = {0, 1, 3}, kv_len_[] = {30, 16}, page_start_[] = {0, 2, 3},
                           pages_[] = {4, 5, 1};
  TestCache cache_;
  std::optional<Workspace> workspace_;
  std::unique_ptr<Block> q_;
  std::unique_ptr<AttentionPlan> plan_;
  std::vector<uint8_t> first_;
};

Status RefusesBatch(const char* what, const Batch& batch, Code code) {
  Rig rig;
  OCTET_RETURN_IF_ERROR(rig.Init());
  const Status status = rig.Refill(batch);
  ExpectRefused(what, status);
  EXPECT_EQ(status.code(), code) << what << ": " << status.message();
  return rig.ExpectUnharmed(what);
}

void AddBatchCases() {
  static const int32_t three[] = {0, 1, 2, 3}, two[] = {0, 1, 3}, one[] = {0, 1}, four[] = {0, 4},
                       short_kv[] = {9, 9, 9}, long_kv[] = {33}, full_kv[] = {32}, falling[] = {0, 2, 1},
                       pages[] = {4, 5, 1, 0}, three_pages[] = {0, 3}, two_pages[] = {0, 2}, four_pages[] = {0, 4},
                       beyond[] = {4, 8, 1}, negative[] = {4, -1, 1};
  const auto add = [](const char* name, const char* details, Batch batch, Code code) {
    AddCase(std::string(name) + "/" + details, [=] { return RefusesBatch(details, batch, code); });
  };
  const char* limits = "Failure.RefusesBatchesBeyondTheLimits";
  add(limits, "requests", {3, three, short_kv, nullptr, three, pages}, Code::kResourceExhausted);
  add(limits, "query_tokens", {1, four, short_kv, nullptr, one, pages}, Code::kResourceExhausted);
  add(limits, "kv_len", {1, one, long_kv, nullptr, three_pages, pages}, Code::kResourceExhausted);
  add(limits, "pages", {1, one, short_kv, nullptr, four_pages, pages}, Code::kResourceExhausted);
  const char* senseless = "Failure.RefusesBatchesWithoutSense";
  add(senseless, "page_beyond_the_cache", {1, one, full_kv, nullptr, two_pages, beyond}, Code::kInvalidArgument);
  add(senseless, "negative_page", {1, one, full_kv, nullptr, two_pages, negative}, Code::kInvalidArgument);
  add(senseless, "too_few_pages", {1, one, full_kv, nullptr, one, pages}, Code::kInvalidArgument);
  add(senseless, "falling_q_start", {2, falling, short_kv, nullptr, two, pages}, Code::kInvalidArgument);
  add(senseless, "no_kv_len", {1, one, nullptr, nullptr, one, pages}, Code::kInvalidArgument);
  add(senseless, "negative_requests", {-1, one, short_kv, nullptr, one, pages}, Code::kInvalidArgument);
}

// Tensors of run that do not fit the plan, or leave their buffers.
Status RefusesTensorsOfRun() {
  Rig rig, smaller;
  OCTET_RETURN_IF_ERROR(rig.Init());
  OCTET_RETURN_IF_ERROR(rig.RefillValid());
  const Block out(uint64_t{kQueries} * kHeads * kDim * 4);
  const Tensor q = rig.q(), good_out = out.View(DType::kF32, {kQueries, kHeads, kDim});
  auto changed = [](Tensor t, const std::function<void(Tensor&)>& change) {
    change(t);
    return t;
  };
  const std::vector<std::pair<const char*, std::function<void(Tensor&)>>> changes = {
      {"of another type", [](Tensor& t) { t.dtype = OCTET_F16; }},
      {"of an unknown type", [](Tensor& t) { t.dtype = 77; }},
      {"of rank 2", [](Tensor& t) { t.rank = 2; }},
      {"of rank 9", [](Tensor& t) { t.rank = 9; }},
      {"with more heads than the plan", [](Tensor& t) { t.shape[1] = 2 * kHeads; }},
      {"with another head_dim", [](Tensor& t) { t.shape[2] = kDim / 2; }},
      {"with scattered channels", [](Tensor& t) { t.stride[2] = 2; }},
      {"with a negative stride", [](Tensor& t) { t.stride[0] = -1; }},
      {"with a stride out of its buffer", [](Tensor& t) { t.stride[0] = 1 << 20; }},
      {"with a stride that overflows", [](Tensor& t) { t.stride[0] = int64_t{1} << 61; }},
      {"beyond its buffer", [](Tensor& t) { t.offset = uint64_t{1} << 40; }},
      {"without a buffer", [](Tensor& t) { t.buffer = nullptr; }},
      {"with fewer rows than the step", [](Tensor& t) { t.shape[0] = 1; }}};
  for (const auto& [what, change] : changes) {
    const Tensor bad_q = changed(q, change), bad_out = changed(good_out, change);
    ExpectRefused((std::string("q ") + what).c_str(), rig.Run(rig.layer(), {&bad_q, &good_out, nullptr, nullptr}));
    ExpectRefused((std::string("out ") + what).c_str(), rig.Run(rig.layer(), {&q, &bad_out, nullptr, nullptr}));
  }
  ExpectRefused("no q", rig.Run(rig.layer(), {nullptr, &good_out, nullptr, nullptr}));
  ExpectRefused("no out", rig.Run(rig.layer(), {&q, nullptr, nullptr, nullptr}));
  ExpectRefused("an lse of q's shape", rig.Run(rig.layer(), {&q, &good_out, &q, nullptr}));
  ExpectRefused("a mask of floats", rig.Run(rig.layer(), {&q, &good_out, nullptr, &q}));
  Untouched(out, "out");
  return rig.ExpectUnharmed("tensors that do not fit");
}

// A plan of one cache, run on another one.
Status RefusesAForeignLayer() {
  Rig rig;
  OCTET_RETURN_IF_ERROR(rig.Init());
  OCTET_RETURN_IF_ERROR(rig.RefillValid());
  TestCache smaller;
  OCTET_RETURN_IF_ERROR(smaller.Init(Both(Int8(64)), 2));
  const Block out(uint64_t{kQueries} * kHeads * kDim * 4), sinks(std::vector<float>{1.0f, 2.0f});
  const Tensor q = rig.q(), ot = out.View(DType::kF32, {kQueries, kHeads, kDim});
  const Tensor two_sinks = sinks.View(DType::kF32, {2});
  const AttentionArgs args{&q, &ot, nullptr, nullptr};
  ExpectRefused("a cache of two pages for a plan of eight", rig.Run(smaller.layer(), args));
  KvLayer layer = rig.layer();
  layer.cache = nullptr;
  ExpectRefused("no cache", rig.Run(layer, args));
  layer = rig.layer();
  layer.cache_offset = uint64_t{1} << 40;
  ExpectRefused("a cache beyond its buffer", rig.Run(layer, args));
  layer = rig.layer();
  layer.sinks = &two_sinks;
  ExpectRefused("two sinks for four heads", rig.Run(layer, args));
  layer = rig.layer();
  layer.k_scale = &two_sinks;
  ExpectRefused("static scales for a cache without them", rig.Run(layer, args));
  Untouched(out, "out");
  return rig.ExpectUnharmed("layers that do not fit");
}

Status RefusesRowsOutsideTheirBuffers() {
  const CacheSpec spec = Both(Int8(64));
  TestCache cache;
  OCTET_RETURN_IF_ERROR(cache.Init(spec, 3));
  const Rows rows = NormalRows(spec, {0, 1}, 53);
  const DeviceRows good(spec, rows);
  QuantOps& quant = TheSubject().device->quant();
  auto refused = [&](const char* what, Tensor bad_k, Tensor bad_slots) {
    ExpectRefused(what, quant.Append(TheSubject().s(), cache.layout(), cache.layer(),
                                     {&bad_k, &good.v, &bad_slots, &good.positions}));
    ExpectRefused(what, quant.Gather(TheSubject().s(), cache.layout(), cache.layer(),
                                     {&bad_k, nullptr, &bad_slots, &good.positions}));
  };
  Tensor bad = good.k;
  bad.stride[0] = -128;
  refused("rows with a negative stride", bad, good.slots);
  bad = good.k;
  bad.stride[2] = 2;
  refused("rows with scattered channels", bad, good.slots);
  bad = good.k;
  bad.stride[0] = 1 << 24;
  refused("rows beyond their buffer", bad, good.slots);
  bad = good.k;
  bad.offset = uint64_t{1} << 62;
  refused("rows far beyond their buffer", bad, good.slots);
  bad = good.slots;
  bad.dtype = OCTET_I32;
  refused("slots of i32", good.k, bad);
  bad = good.slots;
  bad.offset = uint64_t{1} << 40;
  refused("slots beyond their buffer", good.k, bad);
  Untouched(cache.memory(), "the cache");
  OCTET_RETURN_IF_ERROR(cache.Append(rows));
  std::vector<uint8_t> canonical;
  OCTET_RETURN_IF_ERROR(cache.Export({0}, &canonical));
  cache.ExpectStored(rows, {0}, canonical);
  return OkStatus();
}

Status RefusesWeightsWithoutSense() {
  DenseOps* dense = TheSubject().device->dense();
  if (dense == nullptr) return Unimplemented("the backend has no dense table");
  const std::vector<uint8_t> data(1 << 14, 0x11);
  const WeightPart good{DType::kF32, 4, 64 * 4, data.data(), nullptr};
  WeightDesc desc;
  desc.columns = 64;
  desc.max_tokens = 2;
  const std::vector<std::pair<const char*, std::function<void(WeightDesc&, WeightPart&)>>> changes = {
      {"columns that cut a block", [](WeightDesc& d, WeightPart& p) { p.dtype = DType::kQ4_0, d.columns = 40; }},
      {"no columns", [](WeightDesc& d, WeightPart&) { d.columns = 0; }},
      {"negative columns", [](WeightDesc& d, WeightPart&) { d.columns = -64; }},
      {"no parts", [](WeightDesc& d, WeightPart&) { d.parts = {}; }},
      {"no rows", [](WeightDesc&, WeightPart& p) { p.rows = 0; }},
      {"negative rows", [](WeightDesc&, WeightPart& p) { p.rows = -4; }},
      {"no data", [](WeightDesc&, WeightPart& p) { p.data = nullptr; }},
      {"a stride shorter than a row", [](WeightDesc&, WeightPart& p) { p.row_stride_bytes = 64; }}};
  for (const auto& [what, change] : changes) {
    WeightPart part = good;
    WeightDesc bad = desc;
    bad.parts = {&part, 1};
    change(bad, part);
    // A planner may ask before it has the data.
    if (part.data != nullptr) {
      EXPECT_EQ(dense->SupportsWeight(bad).level, 0) << what << " (rule A10)";
    }
    const auto weight = TheSubject().device->PrepareWeight(&TheSubject().s(), bad);
    Sync();
    EXPECT_FALSE(weight.ok()) << what << " was accepted";
  }
  desc.parts = {&good, 1};
  const Support support = dense->SupportsWeight(desc);
  if (support.level == 0) return Unimplemented(support.reason);
  const auto weight = TheSubject().device->PrepareWeight(&TheSubject().s(), desc);
  if (!weight.ok()) return Internal(std::string(weight.status().message()));
  const Workspace workspace(support.workspace_bytes);
  const Block x(std::vector<float>(2 * 64, 1.0f)), y(2 * 4 * 4);
  const Tensor xt = x.View(DType::kF32, {2, 64}), yt = y.View(DType::kF32, {2, 4});
  const Tensor narrow = x.View(DType::kF32, {2, 32}), few = y.View(DType::kF32, {1, 4}),
               half = x.View(DType::kF16, {2, 64});
  auto linear = [&](const Tensor& in, const Tensor& out, const Tensor* bias) {
    LinearArgs args = ArgsOf(in, out, weight->get(), workspace);
    args.bias = bias;
    return dense->Linear(TheSubject().s(), args);
  };
  Tensor outside = xt;
  outside.offset = uint64_t{1} << 40;
  ExpectRefused("x with too few columns", linear(narrow, yt, nullptr));
  ExpectRefused("y with fewer rows than x", linear(xt, few, nullptr));
  ExpectRefused("x of another type than prepared", linear(half, yt, nullptr));
  ExpectRefused("x beyond its buffer", linear(outside, yt, nullptr));
  ExpectRefused("a bias of the wrong length", linear(xt, yt, &xt));
  Untouched(y, "y");
  OCTET_RETURN_IF_ERROR(Promised("linear", linear(xt, yt, nullptr)));
  return StillWorks();
}

}  // namespace

void AddFailureCases() {
  AddCase("Failure.RunsOutOfMemory/alloc", RunsOutOfMemory);
  AddBatchCases();
  AddCase("Failure.RefusesTensorsThatDoNotFit/run", RefusesTensorsOfRun);
  AddCase("Failure.RefusesTensorsThatDoNotFit/append_gather", RefusesRowsOutsideTheirBuffers);
  AddCase("Failure.RefusesTensorsThatDoNotFit/weights_linear", RefusesWeightsWithoutSense);
  AddCase("Failure.RefusesAForeignLayer/run", RefusesAForeignLayer);
}

}  // namespace octet::conformance
