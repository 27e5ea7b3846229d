// Decode attention of the CUDA backend beside what the GPU's memory gives, in one run: captured steps of one query per
// sequence over caches that no cache level holds, pages in random order; printed are medians, and the share of the time
// that the same bytes need to be read, by the rate of a plain reading kernel before and after each shape.
//
// usage: cuda_bench BACKEND.so [FILTER]      FILTER: a part of a shape's name
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "octet/abi.h"

namespace {

constexpr int kPageTokens = 64;
constexpr uint64_t kColdBytes = uint64_t{300} << 20;  // several times the last cache level
constexpr double kGraphSeconds = 4e-3;                // of one replay at least
constexpr int kReplays = 11;

octet_error error;

void Check(octet_code code) {
  if (code == OCTET_OK) return;
  std::fprintf(stderr, "%s\n", error.message);
  std::exit(1);
}
void Check(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
  std::exit(1);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

__global__ void Read(const uint4* data, size_t n, uint32_t* sum) {
  uint32_t all = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 7 * step < n; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldg(data + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; ++j) all += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (all == 0x12345678u) *sum = all;
}

// Bytes a second.
class Ceiling {
 public:
  Ceiling() {
    Check(cudaMalloc(&data_, kBytes));
    Check(cudaMemset(data_, 17, kBytes));
    Check(cudaMalloc(&sum_, 4));
    Check(cudaEventCreate(&begin_));
    Check(cudaEventCreate(&end_));
    int device = 0;
    Check(cudaGetDevice(&device));
    Check(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device));
  }
  double Measure() {
    std::vector<double> rates;
    for (int i = 0; i < 7; ++i) {
      Check(cudaEventRecord(begin_));
      Read<<<static_cast<unsigned>(processors_ * 16), 128>>>(data_, kBytes / 16, sum_);
      Check(cudaEventRecord(end_));
      Check(cudaEventSynchronize(end_));
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, begin_, end_));
      rates.push_back(kBytes / (1e-3 * ms));
    }
    return Median(rates);
  }

 private:
  static constexpr size_t kBytes = size_t{2} << 30;
  uint4* data_ = nullptr;
  uint32_t* sum_ = nullptr;
  cudaEvent_t begin_{}, end_{};
  int processors_ = 0;
};

struct Shape {
  std::string name;
  int q_heads, kv_heads, dim;
  std::vector<int32_t> kv_len;
};

class Bench {
 public:
  Bench(const octet_backend_v1* table) : table_(table) {
    Check(table_->device->open(0, nullptr, &device_, &error));
    Check(table_->stream->create(device_, &stream_, &error));
  }

  void Run(const Shape& s, bool int8, Ceiling& ceiling) {
    const auto requests = static_cast<int32_t>(s.kv_len.size());
    std::vector<int32_t> page_start(1, 0), q_start(1, 0);
    for (const int32_t n : s.kv_len) {
      page_start.push_back(page_start.back() + (n + kPageTokens - 1) / kPageTokens);
      q_start.push_back(q_start.back() + 1);
    }
    const int32_t num_pages = page_start.back();
    octet_cache_side k{};
    k.struct_size = sizeof k;
    k.data_type = int8 ? OCTET_I8 : OCTET_BF16;
    k.scheme = int8 ? OCTET_SCHEME_SYMMETRIC : OCTET_SCHEME_NONE;
    k.axis = OCTET_AXIS_TOKEN;
    k.scale_type = int8 ? OCTET_F32 : 0;
    k.head_dim = s.dim;
    octet_cache_side v = k;
    if (int8) k.rotation = s.dim;
    octet_kv_layout layout{};
    layout.struct_size = sizeof layout;
    layout.page_tokens = kPageTokens;
    layout.kv_heads = s.kv_heads;
    layout.num_pages = num_pages;
    layout.k = &k;
    layout.v = &v;
    Check(table_->quant->choose_layout(device_, &layout, &k, &v, nullptr, &error));
    octet_limits limits{};
    limits.struct_size = sizeof limits;
    limits.requests = requests;
    limits.query_tokens = requests;
    limits.kv_len = *std::max_element(s.kv_len.begin(), s.kv_len.end());
    limits.pages = num_pages;
    octet_attention_desc d{};
    d.struct_size = sizeof d;
    d.q_heads = s.q_heads;
    d.causal = 1;
    d.scale = 0.0883883f;
    d.q_type = d.out_type = OCTET_F32;
    d.kv = &layout;
    d.limits = &limits;
    octet_support support{};
    support.struct_size = sizeof support;
    Check(table_->attention->supports(device_, &d, &support, &error));
    octet_buffer* workspace = Alloc(support.workspace_bytes);
    octet_plan* plan = nullptr;
    Check(table_->attention->make_plan(device_, &d, workspace, 0, &plan, &error));
    std::vector<int32_t> pages(static_cast<size_t>(num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
    octet_batch batch{};
    batch.struct_size = sizeof batch;
    batch.requests = requests;
    batch.q_start = q_start.data();
    batch.kv_len = s.kv_len.data();
    batch.page_start = page_start.data();
    batch.pages = pages.data();
    Check(table_->attention->refill(stream_, plan, &batch, &error));

    double bytes = 0;
    for (const int32_t n : s.kv_len) bytes += double(n) * s.kv_heads * (int8 ? 2 * s.dim + 8 : 4 * s.dim);
    const auto layers = std::max<size_t>(2, static_cast<size_t>(double(kColdBytes) / bytes) + 1);
    std::vector<octet_kv_layer> cache(layers);
    for (octet_kv_layer& layer : cache) {
      layer.struct_size = sizeof layer;
      layer.cache = Alloc(layout.layer_bytes);
      if (&layer == cache.data()) {
        Fill(layout, layer);
      } else {
        Check(table_->memory->copy(stream_, layer.cache, 0, cache[0].cache, 0, layout.layer_bytes, &error));
      }
    }
    octet_tensor q = New(OCTET_F32, {requests, s.q_heads, s.dim}), out = New(OCTET_F32, {requests, s.q_heads, s.dim});
    Check(table_->memory->write(stream_, q.buffer, 0, Random(size_t(requests) * s.q_heads * s.dim).data(),
                                size_t(requests) * s.q_heads * s.dim * 4, &error));
    octet_attention_args args{};
    args.struct_size = sizeof args;
    args.q = &q;
    args.out = &out;
    const auto run = [&](size_t i) { Check(table_->attention->run(stream_, plan, &cache[i % layers], &args, &error)); };
    for (size_t i = 0; i < layers; ++i) run(i);
    Check(table_->stream->sync(stream_, &error));
    auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < layers; ++i) run(i);
    Check(table_->stream->sync(stream_, &error));
    const double guess =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / double(layers);
    const size_t runs = std::max(layers, static_cast<size_t>(kGraphSeconds / guess) + 1);
    octet_graph* graph = nullptr;
    Check(table_->graph->begin(stream_, &error));
    for (size_t i = 0; i < runs; ++i) run(i);
    Check(table_->graph->end(stream_, &graph, &error));
    const double before = ceiling.Measure();
    std::vector<double> seconds;
    for (int i = 0; i < kReplays + 1; ++i) {
      start = std::chrono::steady_clock::now();
      Check(table_->graph->launch(stream_, graph, &error));
      Check(table_->stream->sync(stream_, &error));
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (i > 0) seconds.push_back(took.count() / double(runs));
    }
    const double rate = (before + ceiling.Measure()) / 2, time = Median(seconds);
    std::printf("%-5s %-22s heads %d/%d dim %3d: %9.2f us, floor %8.2f us (%.0f GB/s): share %.3f, %s\n",
                int8 ? "int8" : "bf16", s.name.c_str(), s.q_heads, s.kv_heads, s.dim, time * 1e6, bytes / rate * 1e6,
                rate * 1e-9, bytes / rate / time, support.kernel);
    std::fflush(stdout);
    table_->graph->release(graph);
    table_->attention->release_plan(plan);
    for (octet_buffer* b : {workspace, q.buffer, out.buffer}) table_->memory->free(b);
    for (const octet_kv_layer& layer : cache) table_->memory->free(layer.cache);
  }

 private:
  octet_buffer* Alloc(uint64_t bytes) {
    octet_buffer* buffer = nullptr;
    Check(table_->memory->alloc(device_, bytes, OCTET_MEMORY_DEVICE, &buffer, &error));
    return buffer;
  }
  octet_tensor New(octet_dtype type, std::initializer_list<int64_t> shape) {
    octet_tensor t{};
    t.dtype = type;
    t.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    int64_t stride = 1;
    for (int i = 4; i >= 0; --i) {
      if (i >= t.rank) t.shape[i] = 1;
      t.stride[i] = stride;
      stride *= t.shape[i];
    }
    t.buffer = Alloc(static_cast<uint64_t>(stride) * (type == OCTET_I64 ? 8 : 4));
    return t;
  }
  static std::vector<float> Random(size_t n) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& x : values) x = normal(random);
    return values;
  }
  // Every slot of the cache, by the same rows again and again.
  void Fill(const octet_kv_layout& layout, const octet_kv_layer& layer) {
    const int64_t slots = int64_t{layout.num_pages} * layout.page_tokens, chunk = std::min<int64_t>(slots, 2048);
    octet_tensor k = New(OCTET_F32, {chunk, layout.kv_heads, layout.k->head_dim}), at = New(OCTET_I64, {chunk});
    const std::vector<float> values = Random(static_cast<size_t>(chunk * layout.kv_heads * layout.k->head_dim));
    Check(table_->memory->write(stream_, k.buffer, 0, values.data(), values.size() * 4, &error));
    std::vector<int64_t> list(static_cast<size_t>(chunk));
    for (int64_t first = 0; first < slots; first += chunk) {
      for (int64_t i = 0; i < chunk; ++i) list[size_t(i)] = first + i < slots ? first + i : -1;
      Check(table_->memory->write(stream_, at.buffer, 0, list.data(), list.size() * 8, &error));
      octet_kv_tokens tokens{};
      tokens.struct_size = sizeof tokens;
      tokens.k = tokens.v = &k;
      tokens.slots = &at;
      Check(table_->quant->append(stream_, &layout, &layer, &tokens, &error));
    }
    Check(table_->stream->sync(stream_, &error));
    table_->memory->free(k.buffer);
    table_->memory->free(at.buffer);
  }

  const octet_backend_v1* table_;
  octet_device* device_ = nullptr;
  octet_stream* stream_ = nullptr;
};

std::vector<Shape> Shapes() {
  std::vector<int32_t> ragged(64, 1024), mixed;
  ragged[0] = 65536;
  for (int i = 0; i < 40; ++i) mixed.push_back(37 + i * 2963 / 39);
  std::vector<Shape> shapes;
  for (const auto& [q_heads, kv_heads, dim] :
       {std::tuple{32, 8, 128}, {64, 8, 128}, {32, 8, 64}, {32, 4, 64}, {16, 4, 256}}) {
    for (const auto& [batch, ctx] :
         {std::pair{1, 1024}, {1, 4096}, {1, 32768}, {1, 131072}, {8, 4096}, {32, 8192}, {64, 8192}, {128, 2048}}) {
      shapes.push_back({std::to_string(batch) + "x" + std::to_string(ctx), q_heads, kv_heads, dim,
                        std::vector<int32_t>(static_cast<size_t>(batch), ctx)});
    }
    shapes.push_back({"1x65536+63x1024", q_heads, kv_heads, dim, ragged});
    shapes.push_back({"40 of 37 to 3000", q_heads, kv_heads, dim, mixed});
  }
  return shapes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: cuda_bench BACKEND.so [FILTER]\n");
    return 2;
  }
  error.struct_size = sizeof error;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto query = reinterpret_cast<octet_backend_query_v1_fn*>(dlsym(library, "octet_backend_query_v1"));
  const octet_backend_v1* table = query(nullptr, &error);
  if (table == nullptr) Check(error.code);
  Ceiling ceiling;
  Bench bench(table);
  for (const Shape& s : Shapes()) {
    const std::string name = s.name + " " + std::to_string(s.q_heads / s.kv_heads) + " " + std::to_string(s.dim);
    if (argc > 2 && name.find(argv[2]) == std::string::npos) continue;
    bench.Run(s, true, ceiling);
  }
  return 0;
}
