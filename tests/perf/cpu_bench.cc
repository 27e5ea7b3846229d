// Speed of the CPU backend on shapes of small models. Linear layers as GFLOP/s, those of a few tokens beside the
// reading of as many bytes; attention as GOPS, that of one query beside the reading of the same pages and that of
// prompts beside what VPDPBUSD does alone; the fused append beside norm, rope and append one by one. Both take turns,
// on the same threads; printed are medians and the share of the two. In CPU time with one thread (other load on the
// machine then matters less), in wall time with more. Usage: cpu_bench [threads [all|linear|layers|append|decode|prompt
// [device options]]]; OCTET_CPU_ISA as always.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/thread_pool.h"
#include "octet/abi.h"
#include "octet/gguf_blocks.h"
#include "octet/tensor.h"

namespace octet {
namespace {

constexpr int32_t kPageTokens = 64;  // as octet without --block-size

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

// The data and scales of one side that a step must read, as runs of bytes: one per page and KV head.
struct Runs {
  std::vector<std::pair<const uint8_t*, int64_t>> runs;

  void Add(const uint8_t* layer, const octet_kv_layout& l, const octet_cache_side& s) {
    const int64_t row = int64_t{s.head_dim} * ElementBytes(static_cast<DType>(s.data_type));
    for (int32_t page = 0; page < l.num_pages; ++page) {
      for (int32_t head = 0; head < l.kv_heads; ++head) {
        const auto add = [&](uint64_t base, const int64_t* stride, int64_t bytes) {
          const uint8_t* from = layer + base + page * stride[0] + head * stride[1];
          runs.emplace_back(from, stride[2] * (l.page_tokens - 1) + bytes);
        };
        add(s.data_base, s.data_stride, row);
        if (s.scheme != OCTET_SCHEME_NONE) add(s.scale_base, s.scale_stride, 4);
      }
    }
  }
};

// Reads all of them; the result depends on every word.
uint64_t ReadRuns(ThreadPool& pool, const Runs& runs) {
  struct Call {
    const Runs& runs;
    std::vector<uint64_t> sums;
  } call{runs, std::vector<uint64_t>(static_cast<size_t>(pool.threads()) * 8)};
  pool.ParallelFor(
      static_cast<int64_t>(runs.runs.size()),
      [](void* arg, uint32_t worker, int64_t begin, int64_t end) {
        auto& c = *static_cast<Call*>(arg);
        uint64_t lanes[8] = {};
        for (int64_t i = begin; i < end; ++i) {
          const auto [data, bytes] = c.runs.runs[static_cast<size_t>(i)];
          for (int64_t at = 0; at + 64 <= bytes; at += 64) {
            uint64_t words[8];
            std::memcpy(words, data + at, sizeof words);
            for (int j = 0; j < 8; ++j) lanes[j] += words[j];
          }
        }
        c.sums[worker * 8] += std::accumulate(std::begin(lanes), std::end(lanes), uint64_t{0});
      },
      &call);
  return std::accumulate(call.sums.begin(), call.sums.end(), uint64_t{0});
}

// Operations of so many rounds of 16 independent VPDPBUSD, 64 products and sums each, on every thread: the floor of
// integer arithmetic outside of tile units. 0 where the processor has none.
double ByteProducts(ThreadPool& pool, int64_t rounds) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni") == 0) return 0;
  pool.ParallelFor(
      pool.threads(),
      [](void* arg, uint32_t, int64_t begin, int64_t end) __attribute__((target("avx512f,avx512vnni"))) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t round = 0; round < *static_cast<int64_t*>(arg); ++round) {
#define OCTET_PRODUCT(n) "vpdpbusd %%zmm31, %%zmm31, %%zmm" #n "\n"
            asm volatile(OCTET_PRODUCT(0) OCTET_PRODUCT(1) OCTET_PRODUCT(2) OCTET_PRODUCT(3) OCTET_PRODUCT(4)
                             OCTET_PRODUCT(5) OCTET_PRODUCT(6) OCTET_PRODUCT(7) OCTET_PRODUCT(8) OCTET_PRODUCT(9)
                                 OCTET_PRODUCT(10) OCTET_PRODUCT(11) OCTET_PRODUCT(12) OCTET_PRODUCT(13)
                                     OCTET_PRODUCT(14) OCTET_PRODUCT(15)::
                                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                                           "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#undef OCTET_PRODUCT
          }
        }
      },
      &rounds);
  return 16.0 * 128 * static_cast<double>(rounds) * pool.threads();
#else
  return 0;
#endif
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Median seconds of two that take turns, so that a machine that slows down slows both.
template <typename Ours, typename Floor>
std::pair<double, double> InTurns(int rounds, Ours&& ours, Floor&& floor) {
  std::vector<double> seconds[2];
  for (int round = 0; round < rounds; ++round) {
    const double start = Now();
    ours();
    const double between = Now();
    floor();
    seconds[0].push_back(between - start);
    seconds[1].push_back(Now() - between);
  }
  return {Median(seconds[0]), Median(seconds[1])};
}

// Linear layers; those of a few tokens beside the reading of as many bytes, in turns.
void Linear(Bench& b, ThreadPool& pool, DType type, int64_t rows, int64_t columns, int32_t tokens) {
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
  d.use = OCTET_WEIGHT_LINEAR;
  d.max_tokens = tokens;
  d.x_type = d.y_type = OCTET_F32;
  octet_support support{};
  support.struct_size = sizeof support;
  Check(b.table->dense->supports_weight(b.device, &d, &support, &error));
  // So many copies for a few tokens that weights come from memory.
  const bool few = tokens <= 8;
  const int copies = few ? static_cast<int>(std::max<uint64_t>(1, (uint64_t{256} << 20) / support.resident_bytes)) : 1;
  std::vector<octet_weight*> weights(static_cast<size_t>(copies));
  for (auto*& w : weights) Check(b.table->dense->prepare_weight(b.stream, &d, &w, &error));
  const octet_tensor x = b.New(DType::kF32, {tokens, columns}), y = b.New(DType::kF32, {tokens, rows});
  octet_linear_args a{};
  a.struct_size = sizeof a;
  a.x = &x;
  a.y = &y;
  a.workspace = b.Alloc(support.workspace_bytes);
  const auto bytes = static_cast<int64_t>(support.resident_bytes);
  octet_buffer* const same = b.Alloc(static_cast<uint64_t>(bytes * copies));
  void* host = nullptr;
  Check(b.table->memory->map(same, &host, &error));
  Runs runs;
  for (int64_t at = 0; at + 16384 <= bytes * copies; at += 16384) {
    runs.runs.emplace_back(static_cast<const uint8_t*>(host) + at, 16384);
  }
  uint64_t sum = 0;
  const auto [all_ours, all_floor] = InTurns(
      7,
      [&] {
        for (octet_weight* w : weights) {
          a.w = w;
          Check(b.table->dense->linear(b.stream, &a, &error));
        }
      },
      [&] {
        if (few) sum += ReadRuns(pool, runs);
      });
  const double seconds = all_ours / copies, floor = all_floor / copies;
  std::printf("linear %-5s %6lld x %-5lld tokens %4d: %8.1f us %7.1f GFLOP/s", DTypeName(type),
              static_cast<long long>(rows), static_cast<long long>(columns), tokens, seconds * 1e6,
              2e-9 * static_cast<double>(rows * columns * tokens) / seconds);
  if (few) {
    std::printf(", reading as many bytes %7.1f us (%.1f GB/s): share %.2f", floor * 1e6,
                1e-9 * static_cast<double>(bytes) / floor, floor / seconds);
  }
  std::printf("%s\n", sum == 1 ? " " : "");  // the sum is used
  std::fflush(stdout);
  b.table->memory->free(same);
  for (octet_weight* w : weights) b.table->dense->release_weight(w);
  b.table->memory->free(x.buffer);
  b.table->memory->free(y.buffer);
  b.table->memory->free(a.workspace);
}

// Attention beside the reading of its pages, in turns, over so many layers that none is left in a cache.
void Attention(Bench& b, ThreadPool& pool, int32_t q_heads, int32_t kv_heads, int32_t dim, int32_t queries,
               int32_t kv_len, bool int8) {
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
  layout.page_tokens = kPageTokens;
  layout.kv_heads = kv_heads;
  layout.num_pages = (kv_len + kPageTokens - 1) / kPageTokens;
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
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  const int32_t q_start[] = {0, queries}, page_start[] = {0, layout.num_pages};
  octet_batch batch{};
  batch.struct_size = sizeof batch;
  batch.requests = 1;
  batch.q_start = q_start;
  batch.kv_len = &kv_len;
  batch.page_start = page_start;
  batch.pages = pages.data();
  Check(b.table->attention->refill(b.stream, plan, &batch, &error));

  const int64_t rows = int64_t{layout.num_pages} * kPageTokens;
  const octet_tensor k_rows = b.New(DType::kF32, {rows, kv_heads, dim});
  const octet_tensor slots = b.New(DType::kI64, {rows}), positions = b.New(DType::kI32, {rows});
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * kv_heads * dim));
  for (float& x : values) x = normal(random);
  std::vector<int64_t> slot_values(static_cast<size_t>(rows));
  std::iota(slot_values.begin(), slot_values.end(), 0);
  Check(b.table->memory->write(b.stream, k_rows.buffer, 0, values.data(), values.size() * sizeof(float), &error));
  Check(b.table->memory->write(b.stream, slots.buffer, 0, slot_values.data(), slot_values.size() * 8, &error));
  octet_kv_tokens tokens{};
  tokens.struct_size = sizeof tokens;
  tokens.k = tokens.v = &k_rows;
  tokens.slots = &slots;
  tokens.positions = &positions;
  // Prompts are bound by arithmetic: one layer.
  const uint64_t copies = queries > 1 ? 1 : std::max<uint64_t>(1, (uint64_t{256} << 20) / layout.layer_bytes);
  std::vector<octet_kv_layer> layers(copies);
  Runs runs;
  for (octet_kv_layer& layer : layers) {
    layer.struct_size = sizeof layer;
    layer.cache = b.Alloc(layout.layer_bytes);
    if (&layer == layers.data()) {
      Check(b.table->quant->append(b.stream, &layout, &layer, &tokens, &error));
    } else {
      Check(b.table->memory->copy(b.stream, layer.cache, 0, layers[0].cache, 0, layout.layer_bytes, &error));
    }
    void* host = nullptr;
    Check(b.table->memory->map(layer.cache, &host, &error));
    runs.Add(static_cast<const uint8_t*>(host), layout, k);
    runs.Add(static_cast<const uint8_t*>(host), layout, v);
  }
  const octet_tensor q = b.New(DType::kF32, {queries, q_heads, dim}), out = b.New(DType::kF32, {queries, q_heads, dim});
  std::vector<float> q_values(static_cast<size_t>(queries * q_heads * dim));
  for (float& x : q_values) x = normal(random);
  Check(b.table->memory->write(b.stream, q.buffer, 0, q_values.data(), q_values.size() * sizeof(float), &error));
  octet_attention_args args{};
  args.struct_size = sizeof args;
  args.q = &q;
  args.out = &out;
  uint64_t sum = 0;
  double products = 0;
  const auto [all_ours, all_floor] = InTurns(
      9,
      [&] {
        for (const octet_kv_layer& layer : layers) {
          Check(b.table->attention->run(b.stream, plan, &layer, &args, &error));
        }
      },
      [&] {
        if (queries > 1) {
          products = ByteProducts(pool, 3000000);
        } else {
          sum += ReadRuns(pool, runs);
        }
      });
  const double seconds = all_ours / static_cast<double>(copies), floor = all_floor / static_cast<double>(copies);
  const double keys = queries * (kv_len - 0.5 * (queries - 1));
  const double bytes = static_cast<double>(kv_len) * kv_heads * (int8 ? 2 * dim + 8 : 4 * dim);
  std::printf("attention %-4s heads %2d/%d dim %3d queries %4d keys %5d: %9.1f us, %6.0f GOPS", int8 ? "int8" : "bf16",
              q_heads, kv_heads, dim, queries, kv_len, seconds * 1e6, 4e-9 * keys * q_heads * dim / seconds);
  if (queries == 1) {
    std::printf(", reading the pages %7.1f us (%.1f GB/s): share %.2f", floor * 1e6, bytes / floor * 1e-9,
                floor / seconds);
  } else if (products > 0) {
    std::printf(", VPDPBUSD alone %.0f GOPS", 1e-9 * products / all_floor);
  }
  std::printf("%s\n", sum == 1 ? " " : "");  // the sum is used
  std::fflush(stdout);
  b.table->attention->release_plan(plan);
  for (const octet_kv_layer& layer : layers) b.table->memory->free(layer.cache);
  for (octet_buffer* buffer : {workspace, q.buffer, out.buffer, k_rows.buffer, slots.buffer, positions.buffer}) {
    b.table->memory->free(buffer);
  }
}

// What stands between a layer's QKV and its attention, in one call and in its parts, in turns. The parts work on their
// own results again and again, which changes no time: QK-norm keeps them in range, and without it RoPE alone turns
// them.
void Append(Bench& b, int32_t q_heads, int32_t kv_heads, int32_t dim, bool norm, int64_t tokens) {
  octet_cache_side k{};
  k.struct_size = sizeof k;
  k.data_type = OCTET_I8;
  k.scheme = OCTET_SCHEME_SYMMETRIC;
  k.axis = OCTET_AXIS_TOKEN;
  k.scale_type = OCTET_F32;
  k.head_dim = dim;
  octet_cache_side v = k;
  k.rotation = dim;
  octet_kv_layout layout{};
  layout.struct_size = sizeof layout;
  layout.page_tokens = 64;
  layout.kv_heads = kv_heads;
  layout.num_pages = static_cast<int32_t>((tokens + 63) / 64);
  layout.k = &k;
  layout.v = &v;
  Check(b.table->quant->choose_layout(b.device, &layout, &k, &v, nullptr, &error));
  octet_kv_layer layer{};
  layer.struct_size = sizeof layer;
  layer.cache = b.Alloc(layout.layer_bytes);
  const int64_t columns = int64_t{q_heads + 2 * kv_heads} * dim;
  const octet_tensor qkv = b.New(DType::kF32, {tokens, columns}), gain = b.New(DType::kF32, {dim});
  const octet_tensor cos_sin = b.New(DType::kF32, {tokens, dim / 2, 2});
  const octet_tensor slots = b.New(DType::kI64, {tokens}), positions = b.New(DType::kI32, {tokens});
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(tokens * columns)), turns, ones(static_cast<size_t>(dim), 1.0f);
  for (float& x : rows) x = normal(random);
  std::vector<int64_t> slot_values(static_cast<size_t>(tokens));
  std::vector<int32_t> position_values(static_cast<size_t>(tokens));
  std::iota(slot_values.begin(), slot_values.end(), 0);
  std::iota(position_values.begin(), position_values.end(), 0);
  for (int64_t i = 0; i < tokens * dim / 2; ++i) turns.insert(turns.end(), {0.6f, 0.8f});
  const auto write = [&](const octet_tensor& t, const auto& values) {
    Check(b.table->memory->write(b.stream, t.buffer, 0, values.data(), values.size() * sizeof(values[0]), &error));
  };
  write(qkv, rows);
  write(gain, ones);
  write(cos_sin, turns);
  write(slots, slot_values);
  write(positions, position_values);
  const auto heads = [&](int64_t first, int64_t count) {
    octet_tensor t = MakeTensor(qkv.buffer, DType::kF32, {tokens, count, dim}, static_cast<uint64_t>(first * dim) * 4);
    t.stride[0] = columns;
    return t;
  };
  const octet_tensor q = heads(0, q_heads), k_rows = heads(q_heads, kv_heads),
                     v_rows = heads(q_heads + kv_heads, kv_heads);
  octet_qkv_append_args args{};
  args.struct_size = sizeof args;
  args.qk_norm_eps = 1e-6f;
  args.qkv = &qkv;
  args.q_gain = args.k_gain = norm ? &gain : nullptr;
  args.cos_sin = &cos_sin;
  args.positions = &positions;
  args.slots = &slots;
  args.q_out = &q;
  octet_kv_tokens appended{};
  appended.struct_size = sizeof appended;
  appended.k = &k_rows;
  appended.v = &v_rows;
  appended.slots = &slots;
  appended.positions = &positions;
  const int64_t calls = std::max<int64_t>(1, 8192 / tokens);
  const auto [fused, parts] = InTurns(
      21,
      [&] {
        for (int64_t i = 0; i < calls; ++i) {
          Check(b.table->fused->qkv_append(b.stream, &layout, &layer, &args, &error));
        }
      },
      [&] {
        for (int64_t i = 0; i < calls; ++i) {
          for (const octet_tensor* x : {&q, &k_rows}) {
            if (norm) Check(b.table->dense->norm(b.stream, OCTET_NORM_RMS, x, &gain, nullptr, 1e-6f, x, &error));
            Check(b.table->dense->rope(b.stream, x, &positions, &cos_sin, 0, &error));
          }
          Check(b.table->quant->append(b.stream, &layout, &layer, &appended, &error));
        }
      });
  std::printf("append heads %2d/%d dim %3d%s tokens %4lld: %8.2f us, in parts %8.2f us: ratio %.2f\n", q_heads,
              kv_heads, dim, norm ? " norm" : "", static_cast<long long>(tokens),
              fused / static_cast<double>(calls) * 1e6, parts / static_cast<double>(calls) * 1e6, parts / fused);
  std::fflush(stdout);
  for (octet_buffer* buffer : {layer.cache, qkv.buffer, gain.buffer, cos_sin.buffer, slots.buffer, positions.buffer}) {
    b.table->memory->free(buffer);
  }
}

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string_view what = argc > 2 ? argv[2] : "all";
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
  Check(b.table->device->open(0, argc > 3 ? argv[3] : nullptr, &b.device, &error));
  Check(b.table->stream->create(b.device, &b.stream, &error));
  if (what == "all" || what == "linear") {
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                       DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
      for (int32_t tokens : {1, 4, 8, 512}) Linear(b, pool, type, 4864, 1024, tokens);
    }
  }
  if (what == "all" || what == "layers") {
    for (int32_t tokens : {1, 8, 512}) {  // QKV, output, gate and up, down
      for (const auto& [rows, columns] : {std::pair{960, 576}, {576, 576}, {3072, 576}, {576, 1536}}) {
        Linear(b, pool, DType::kQ4_1, rows, columns, tokens);  // SmolLM2-135M
      }
      for (const auto& [rows, columns] : {std::pair{1152, 896}, {896, 896}, {9728, 896}}) {
        Linear(b, pool, DType::kQ5_0, rows, columns, tokens);  // Qwen2.5-0.5B
      }
      Linear(b, pool, DType::kQ4_K, 896, 4864, tokens);
    }
    Linear(b, pool, DType::kQ8_0, 49152, 576, 1);
  }
  if (what == "all" || what == "append") {
    for (const int64_t tokens : {1, 8, 512}) {
      Append(b, 9, 3, 64, false, tokens);   // SmolLM2-135M
      Append(b, 14, 2, 64, false, tokens);  // Qwen2.5-0.5B
      Append(b, 16, 8, 128, true, tokens);  // Qwen3-0.6B
    }
  }
  for (const bool int8 : {true, false}) {
    if (what == "all" || what == "decode") {
      for (const int32_t group : {1, 2, 3, 4, 7, 8}) Attention(b, pool, 2 * group, 2, 64, 1, 8192, int8);
      for (const int32_t group : {1, 4, 8}) Attention(b, pool, 2 * group, 2, 128, 1, 8192, int8);
      Attention(b, pool, 4, 1, 256, 1, 8192, int8);
      for (const int32_t kv_len : {128, 1024}) Attention(b, pool, 9, 3, 64, 1, kv_len, int8);
    }
    if (what == "all" || what == "prompt") {
      Attention(b, pool, 9, 3, 64, 512, 512, int8);
      Attention(b, pool, 14, 2, 64, 512, 4096, int8);
      Attention(b, pool, 16, 4, 128, 512, 4096, int8);
    }
  }
  b.table->stream->destroy(b.stream);
  b.table->device->close(b.device);
  return 0;
}

}  // namespace
}  // namespace octet

int main(int argc, char** argv) { return octet::Main(argc, argv); }
