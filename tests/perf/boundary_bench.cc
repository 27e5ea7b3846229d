// What the plugin boundary costs: calls of the C tables per decoded token of a model on the CPU backend, the time of
// the same calls with nothing to do (conversion to C and back, checks of every argument, the return of a status), and
// both together as a share of a decode step at depth 0. Prints the median of several rounds, in which steps and empty
// calls take turns. Usage: boundary_bench MODEL.gguf [threads [rounds]]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/stopwatch.h"
#include "core/base/thread_pool.h"
#include "core/gguf/gguf_file.h"
#include "core/loader/device.h"
#include "core/loader/registry.h"
#include "core/model/model.h"
#include "core/model/runner.h"

namespace octet {
namespace {

void Need(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "boundary_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}
void Need(const Status& status) { Need(ToAbsl(status)); }
template <typename T>
T Get(absl::StatusOr<T> value) {
  Need(value.status());
  return *std::move(value);
}

// Entries of the tables that count their calls. `Entry` of `original<Table>` does the work.
template <typename Table>
const Table* original = nullptr;
template <auto Entry>
int64_t calls = 0;

template <auto Entry>
struct Counted;
template <typename Table, typename... Args, octet_code (*Table::*Entry)(Args...)>
struct Counted<Entry> {
  static octet_code Call(Args... args) {
    ++calls<Entry>;
    return (original<Table>->*Entry)(args...);
  }
};

// One kind of call: its name, how often it was made, and how to make it with nothing to do.
struct Kind {
  const char* name;
  const int64_t* calls;
  std::function<void()> empty;
  double per_token = 0, seconds = 0;
};

// A copy of the CPU backend's table whose entries count; lives until the process ends.
template <auto... Entries, typename Table>
const Table* Counting(const Table* table) {
  if (table == nullptr) return nullptr;
  original<Table> = table;
  static Table counting;
  counting = *table;
  ((counting.*Entries = Counted<Entries>::Call), ...);
  return &counting;
}
const octet_backend_v1* CountingTable(const octet_backend_v1& table) {
  static octet_backend_v1 counting;
  counting = table;
  counting.memory = Counting<&octet_memory_ops::write, &octet_memory_ops::read>(table.memory);
  counting.stream = Counting<&octet_stream_ops::sync>(table.stream);
  counting.quant = Counting<&octet_quant_ops::append>(table.quant);
  counting.attention = Counting<&octet_attention_ops::refill, &octet_attention_ops::run>(table.attention);
  counting.dense =
      Counting<&octet_dense_ops::linear, &octet_dense_ops::embed, &octet_dense_ops::norm, &octet_dense_ops::rope,
               &octet_dense_ops::activation, &octet_dense_ops::add, &octet_dense_ops::gather_rows>(table.dense);
  counting.fused = Counting<&octet_fused_ops::qkv_append>(table.fused);
  return &counting;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Tensors of no tokens, with the shapes and tables of the model's own calls otherwise.
class EmptyCalls {
 public:
  EmptyCalls(Device& device, const Model& model, Runner& runner)
      : device_(device),
        model_(model),
        c_(model.config()),
        layout_(runner.cache().layout()),
        layer_(runner.cache().layer(0)),
        stream_(Get(device.CreateStream())),
        memory_(Get(device.Alloc(uint64_t{1} << 20))) {
    desc_.q_heads = static_cast<int32_t>(c_.q_heads);
    desc_.scale = c_.attention_scale;
    desc_.kv = &layout_;
    desc_.limits = {1, 1, 256, layout_.num_pages};
    const Support support = device_.attention().Supports(desc_);
    if (support.level == 0) Need(absl::UnimplementedError(support.reason));
    workspace_ = Get(device.Alloc(std::max<uint64_t>(model.linear_workspace_bytes() + support.workspace_bytes, 1)));
    auto plan = device_.attention().MakePlan(desc_, workspace_.get(), 0);
    Need(plan.status());
    plan_ = *std::move(plan);
    const int64_t qkv_row = (c_.q_heads + c_.kv_heads) * c_.head_dim + c_.kv_heads * c_.v_head_dim;
    x_ = None({c_.hidden_size});
    qkv_ = None({qkv_row});
    q_ = None({c_.q_heads, c_.head_dim});
    k_ = None({c_.kv_heads, c_.head_dim});
    v_ = None({c_.kv_heads, c_.v_head_dim});
    out_ = None({c_.q_heads, c_.v_head_dim});
    ffn_ = None({2 * c_.ffn_size});
    act_ = None({c_.ffn_size});
    positions_ = MakeTensor(memory_.get(), DType::kI32, {0});
    slots_ = MakeTensor(memory_.get(), DType::kI64, {0});
    cos_sin_ = MakeTensor(memory_.get(), DType::kF32, {64, c_.rope.rotary_dims / 2, 2});
  }

  void Write() { Need(device_.Write(stream_.get(), memory_.get(), 0, this, 0)); }
  void Read() { Need(device_.Read(stream_.get(), memory_.get(), 0, this, 0)); }
  void Sync() { Need(device_.Sync(stream_.get())); }
  void Refill() {
    const int32_t none[] = {0};
    Batch batch;
    batch.q_start = batch.page_start = none;
    Need(device_.attention().Refill(s(), *plan_, batch));
  }
  void Run() { Need(device_.attention().Run(s(), *plan_, layer_, {.q = &q_, .out = &out_})); }
  void Append() { Need(device_.quant().Append(s(), layout_, layer_, {&k_, &v_, &slots_, &positions_})); }
  void QkvAppend() {
    const QkvAppendArgs args{.rope_interleaved = c_.rope.interleaved,
                             .qkv = &qkv_,
                             .cos_sin = &cos_sin_,
                             .positions = &positions_,
                             .slots = &slots_,
                             .q_out = &q_};
    Need(device_.fused()->QkvAppend(s(), layout_, layer_, args));
  }
  void Linear() {
    LinearArgs args;
    args.x = &x_;
    args.y = &qkv_;
    args.norm_gain = &*model_.layer(0).attn_norm;
    args.w = model_.layer(0).qkv.get();
    args.workspace = workspace_.get();
    Need(dense().Linear(s(), args));
  }
  void Embed() { Need(dense().Embed(s(), model_.embedding(), positions_, 1.0f, x_)); }
  void Norm() { Need(dense().Norm(s(), NormKind::kRms, x_, *model_.layer(0).attn_norm, nullptr, c_.norm_eps, x_)); }
  void Rope() { Need(dense().Rope(s(), q_, positions_, cos_sin_, c_.rope.interleaved)); }
  void Activate() { Need(dense().Activate(s(), c_.activation, ffn_, act_)); }
  void Add() { Need(dense().Add(s(), x_, x_)); }
  void GatherRows() { Need(dense().GatherRows(s(), x_, positions_, x_)); }

 private:
  Stream& s() { return *stream_.get(); }
  DenseOps& dense() { return *device_.dense(); }
  // f32 [0][..row].
  Tensor None(std::initializer_list<int64_t> row) {
    const auto* dims = row.begin();
    return row.size() == 1 ? MakeTensor(memory_.get(), DType::kF32, {0, dims[0]})
                           : MakeTensor(memory_.get(), DType::kF32, {0, dims[0], dims[1]});
  }

  Device& device_;
  const Model& model_;
  const ModelConfig& c_;
  const KvLayout layout_;
  const KvLayer layer_;
  OwnedStream stream_;
  OwnedBuffer memory_, workspace_;
  AttentionDesc desc_;
  std::unique_ptr<AttentionPlan> plan_;
  Tensor x_, qkv_, q_, k_, v_, out_, ffn_, act_, positions_, slots_, cos_sin_;
};

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: boundary_bench MODEL.gguf [threads [rounds]]\n");
    return 2;
  }
  constexpr int kSteps = 8, kEmptyCalls = 2000;  // of one round; the depth stays below 256
  ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 2);
  const int rounds = std::clamp(argc > 3 ? std::atoi(argv[3]) : 15, 1, 30);
  const auto registry = Get(Registry::Load({.backend_paths = {}, .pool = &pool}));
  const auto plain = Get(registry->Open("cpu"));
  const auto device = Get(Device::Open(CountingTable(*plain->table()), 0, "cpu:0", ""));
  const auto file = Get(GgufFile::Open(argv[1]));
  const auto model = Get(Model::Prepare(*device, *file, {.max_step_tokens = 16}));
  Need(model->Upload());
  RunnerOptions options;
  options.kv.dtype = DType::kI8;
  options.max_model_len = 256;
  const auto runner = Get(Runner::Prepare(*model, options));
  Need(runner->Allocate());
  PageTable pages(&runner->cache().pool());
  Need(pages.Reserve(options.max_model_len));
  EmptyCalls empty(*device, *model, *runner);

  using E = EmptyCalls;
  std::vector<Kind> kinds;
  const auto kind = [&](const char* name, const int64_t& count, void (E::*call)()) {
    kinds.push_back({name, &count, [&empty, call] { (empty.*call)(); }});
  };
  kind("memory.write", calls<&octet_memory_ops::write>, &E::Write);
  kind("memory.read", calls<&octet_memory_ops::read>, &E::Read);
  kind("stream.sync", calls<&octet_stream_ops::sync>, &E::Sync);
  kind("attention.refill", calls<&octet_attention_ops::refill>, &E::Refill);
  kind("attention.run", calls<&octet_attention_ops::run>, &E::Run);
  kind("quant.append", calls<&octet_quant_ops::append>, &E::Append);
  if (device->fused() != nullptr) kind("fused.qkv_append", calls<&octet_fused_ops::qkv_append>, &E::QkvAppend);
  kind("dense.linear", calls<&octet_dense_ops::linear>, &E::Linear);
  kind("dense.embed", calls<&octet_dense_ops::embed>, &E::Embed);
  kind("dense.norm", calls<&octet_dense_ops::norm>, &E::Norm);
  kind("dense.rope", calls<&octet_dense_ops::rope>, &E::Rope);
  kind("dense.activation", calls<&octet_dense_ops::activation>, &E::Activate);
  kind("dense.add", calls<&octet_dense_ops::add>, &E::Add);
  kind("dense.gather_rows", calls<&octet_dense_ops::gather_rows>, &E::GatherRows);

  int64_t position = 0;
  const auto step = [&] {
    const int32_t token = static_cast<int32_t>(17 + position);
    const SequenceInput input{.tokens = {&token, 1}, .cached = position++, .pages = &pages};
    Need(runner->Step({&input, 1}).status());
  };
  step();  // warms up
  std::vector<double> steps;
  std::vector<std::vector<double>> empties(kinds.size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<int64_t> before;
    for (const Kind& k : kinds) before.push_back(*k.calls);
    for (int i = 0; i < kSteps; ++i) {
      const Stopwatch watch;
      step();
      steps.push_back(watch.seconds());
    }
    for (size_t i = 0; i < kinds.size(); ++i) {
      kinds[i].per_token = static_cast<double>(*kinds[i].calls - before[i]) / kSteps;
      const Stopwatch watch;
      for (int n = 0; n < kEmptyCalls; ++n) kinds[i].empty();
      empties[i].push_back(watch.seconds() / kEmptyCalls);
    }
  }
  double count = 0, boundary = 0;
  std::printf("%-18s %10s %12s %14s\n", "call", "per token", "empty, ns", "per token, us");
  for (size_t i = 0; i < kinds.size(); ++i) {
    Kind& k = kinds[i];
    if (k.per_token == 0) continue;
    k.seconds = Median(empties[i]);
    count += k.per_token;
    boundary += k.per_token * k.seconds;
    std::printf("%-18s %10.0f %12.0f %14.2f\n", k.name, k.per_token, k.seconds * 1e9, k.per_token * k.seconds * 1e6);
  }
  const double decode = Median(steps);
  std::printf("a decode step takes %.3f ms at depth 0; its %.0f calls, empty, %.1f us: %.2f %%\n", decode * 1e3, count,
              boundary * 1e6, 100 * boundary / decode);
  return 0;
}

}  // namespace
}  // namespace octet

int main(int argc, char** argv) { return octet::Main(argc, argv); }
