// Speed of the CPU backend on shapes of small models: linear layers as GFLOP/s (many tokens) and GB/s of stored weights
// (one token), attention as GFLOP/s. Prints the best of several runs, in CPU time
// with one thread (other load on the machine then matters less), in wall time with more.
// Usage: cpu_bench [threads [device options]]; OCTET_CPU_ISA as always.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/base/thread_pool.h"
#include "octet/abi.h"
#include "octet/gguf_blocks.h"
#include "octet/tensor.h"

namespace octet {
namespace {

octet_error error;

void Check(octet_code code) {
  if (code == OCTET_OK) return;
  std::fprintf(stderr, "%s\n", error.message);
  std::exit(1);
}

struct Bench {
  const octet_backend_v1* table;
  octet_device* device = nullptr;
  octet_stream* stream = nullptr;

  octet_buffer* Alloc(uint64_t bytes) {
    octet_buffer* buffer = nullptr;
    Check(table->memory->alloc(device, bytes, OCTET_MEMORY_DEVICE, &buffer, &error));
    Check(table->memory->fill(stream, buffer, 0, bytes, 0, &error));
    return buffer;
  }
  octet_tensor New(DType type, std::initializer_list<int64_t> shape) {
    octet_tensor t = MakeTensor(nullptr, type, shape);
    t.buffer = Alloc(static_cast<uint64_t>(NumElements(t) * ElementBytes(type)));
    return t;
  }
};

bool cpu_time = false;  // with one thread: other load on the machine then matters less

double Now() {
  timespec t{};
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Body>
double BestSeconds(Body&& body) {
  double best = 1e30, total = 0;
  for (int i = 0; i < 3 || (total < 0.3 && i < 10000); ++i) {
    const double start = Now();
    body();
    const double s = Now() - start;
    best = std::min(best, s);
    total += s;
  }
  return best;
}

void Linear(Bench& b, DType type, int64_t rows, int64_t columns, int32_t tokens) {
  const int64_t row_bytes = GgufRowBytes(type, columns);
  std::vector<uint8_t> stored(static_cast<size_t>(rows * row_bytes));
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<uint8_t>(i * 37 % 11);
  octet_weight_part part{};
  part.struct_size = sizeof part;
  part.dtype = static_cast<octet_dtype>(type);
  part.rows = rows;
  part.row_stride_bytes = row_bytes;
  part.data = stored.data();
  const octet_weight_part* parts[] = {&part};
  octet_weight_desc d{};
  d.struct_size = sizeof d;
  d.num_parts = 1;
  d.columns = columns;
  d.parts = parts;
  d.use = OCTET_WEIGHT_LINEAR | OCTET_WEIGHT_EXACT;
  d.max_tokens = tokens;
  d.x_type = d.y_type = OCTET_F32;
  octet_support support{};
  support.struct_size = sizeof support;
  Check(b.table->dense->supports_weight(b.device, &d, &support, &error));
  // Several copies for one token, so that weights come from memory.
  const int copies = tokens == 1 ? static_cast<int>(std::max<uint64_t>(1, (64u << 20) / support.resident_bytes)) : 1;
  std::vector<octet_weight*> weights(static_cast<size_t>(copies));
  for (auto*& w : weights) Check(b.table->dense->prepare_weight(b.stream, &d, &w, &error));
  const octet_tensor x = b.New(DType::kF32, {tokens, columns}), y = b.New(DType::kF32, {tokens, rows});
  octet_linear_args a{};
  a.struct_size = sizeof a;
  a.x = &x;
  a.y = &y;
  a.workspace = b.Alloc(support.workspace_bytes);
  const double seconds = BestSeconds([&] {
                           for (octet_weight* w : weights) {
                             a.w = w;
                             Check(b.table->dense->linear(b.stream, &a, &error));
                           }
                         }) /
                         copies;
  std::printf("linear %-5s %6lld x %-5lld tokens %4d: %8.1f us %7.1f GFLOP/s %6.1f GB/s of weights\n", DTypeName(type),
              static_cast<long long>(rows), static_cast<long long>(columns), tokens, seconds * 1e6,
              2e-9 * static_cast<double>(rows * columns * tokens) / seconds,
              1e-9 * static_cast<double>(rows * row_bytes) / seconds);
  for (octet_weight* w : weights) b.table->dense->release_weight(w);
  b.table->memory->free(x.buffer);
  b.table->memory->free(y.buffer);
  b.table->memory->free(a.workspace);
}

void Attention(Bench& b, int32_t q_heads, int32_t kv_heads, int32_t dim, int32_t queries, int32_t kv_len, bool int8) {
  octet_cache_side k{};
  k.struct_size = sizeof k;
  k.data_type = int8 ? OCTET_I8 : OCTET_BF16;
  k.scheme = int8 ? OCTET_SCHEME_SYMMETRIC : OCTET_SCHEME_NONE;
  k.axis = OCTET_AXIS_TOKEN;
  k.scale_type = int8 ? OCTET_F32 : 0;
  k.head_dim = dim;
  octet_cache_side v = k;
  if (int8) k.rotation = dim;
  octet_kv_layout layout{};
  layout.struct_size = sizeof layout;
  layout.page_tokens = 32;
  layout.kv_heads = kv_heads;
  layout.num_pages = (kv_len + 31) / 32;
  layout.k = &k;
  layout.v = &v;
  Check(b.table->quant->choose_layout(b.device, &layout, &k, &v, nullptr, &error));
  octet_limits limits{};
  limits.struct_size = sizeof limits;
  limits.requests = 1;
  limits.query_tokens = queries;
  limits.kv_len = kv_len;
  limits.pages = layout.num_pages;
  octet_attention_desc d{};
  d.struct_size = sizeof d;
  d.q_heads = q_heads;
  d.causal = 1;
  d.scale = 0.125f;
  d.q_type = d.out_type = OCTET_F32;
  d.kv = &layout;
  d.limits = &limits;
  octet_support support{};
  support.struct_size = sizeof support;
  Check(b.table->attention->supports(b.device, &d, &support, &error));
  octet_plan* plan = nullptr;
  octet_buffer* workspace = b.Alloc(support.workspace_bytes);
  Check(b.table->attention->make_plan(b.device, &d, workspace, 0, &plan, &error));
  std::vector<int32_t> pages(static_cast<size_t>(layout.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  const int32_t q_start[] = {0, queries}, page_start[] = {0, layout.num_pages};
  octet_batch batch{};
  batch.struct_size = sizeof batch;
  batch.requests = 1;
  batch.q_start = q_start;
  batch.kv_len = &kv_len;
  batch.page_start = page_start;
  batch.pages = pages.data();
  Check(b.table->attention->refill(b.stream, plan, &batch, &error));
  octet_kv_layer layer{};
  layer.struct_size = sizeof layer;
  layer.cache = b.Alloc(layout.layer_bytes);
  const octet_tensor q = b.New(DType::kF32, {queries, q_heads, dim}), out = b.New(DType::kF32, {queries, q_heads, dim});
  octet_attention_args args{};
  args.struct_size = sizeof args;
  args.q = &q;
  args.out = &out;
  const double seconds = BestSeconds([&] { Check(b.table->attention->run(b.stream, plan, &layer, &args, &error)); });
  const double keys = queries * (kv_len - 0.5 * (queries - 1));
  std::printf("attention %-4s heads %d/%d dim %d queries %4d keys %5d: %9.1f us %7.1f GFLOP/s\n",
              int8 ? "int8" : "bf16", q_heads, kv_heads, dim, queries, kv_len, seconds * 1e6,
              4e-9 * keys * q_heads * dim / seconds);
  b.table->attention->release_plan(plan);
  for (octet_buffer* buffer : {workspace, layer.cache, q.buffer, out.buffer}) b.table->memory->free(buffer);
}

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  cpu_time = threads == 1;
  ThreadPool pool(threads);
  octet_host_v1 host{};
  host.struct_size = sizeof host;
  host.ctx = &pool;
  host.parallel_for = [](void* ctx, int64_t n, void (*body)(void*, uint32_t, int64_t, int64_t), void* arg) {
    static_cast<ThreadPool*>(ctx)->ParallelFor(n, body, arg);
  };
  host.max_workers = static_cast<uint32_t>(threads);
  error.struct_size = sizeof error;
  Bench b{octet_backend_query_v1(&host, &error)};
  if (b.table == nullptr) Check(error.code);
  Check(b.table->device->open(0, argc > 2 ? argv[2] : nullptr, &b.device, &error));
  Check(b.table->stream->create(b.device, &b.stream, &error));
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                     DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    for (int32_t tokens : {1, 8, 512}) Linear(b, type, 4864, 1024, tokens);
  }
  // SmolLM2-135M: QKV, output, gate and up, down, logits.
  for (int32_t tokens : {1, 512}) {
    Linear(b, DType::kQ4_1, 960, 576, tokens);
    Linear(b, DType::kQ4_1, 576, 576, tokens);
    Linear(b, DType::kQ4_1, 3072, 576, tokens);
    Linear(b, DType::kQ4_1, 576, 1536, tokens);
  }
  Linear(b, DType::kQ8_0, 49152, 576, 1);
  for (bool int8 : {true, false}) {
    Attention(b, 9, 3, 64, 1, 1024, int8);
    Attention(b, 9, 3, 64, 1, 8192, int8);
    Attention(b, 9, 3, 64, 512, 512, int8);
    Attention(b, 14, 2, 64, 2048, 2048, int8);
  }
  b.table->stream->destroy(b.stream);
  b.table->device->close(b.device);
  return 0;
}

}  // namespace
}  // namespace octet

int main(int argc, char** argv) { return octet::Main(argc, argv); }
