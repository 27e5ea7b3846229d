// Flash attention of a ggml-based engine on the shapes of cpu_bench: one query over a cache of q8_0 or f16 rows, so
// many layers after the other that none is in a cache. compare_attention.py compiles it against a checkout of the
// engine and runs it; the project's own build has no use of it.
//
// usage: ggml_attention THREADS Q_HEADS KV_HEADS HEAD_DIM KEYS q8_0|f16      prints microseconds a layer and the
// relative error of the result against double precision on the values that the cache stands for
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "ggml.h"

namespace {

constexpr int kRounds = 9;
constexpr size_t kBytes = size_t{256} << 20;  // of all layers

struct Shape {
  int q_heads, kv_heads, dim, keys;
};

struct Layer {
  ggml_tensor *k, *v;  // views of all heads' rows
};

// K and V as f32 [keys][kv_heads][dim] after a way through the cache's type.
std::vector<float> Values(const ggml_tensor* view) {
  const ggml_tensor* t = view->view_src;
  std::vector<float> values(static_cast<size_t>(ggml_nelements(t)));
  ggml_internal_get_type_traits(t->type).to_float(t->data, values.data(), ggml_nelements(t));
  return values;
}

double RelativeError(const Shape& s, const float* q, const Layer& layer, const float* out) {
  const std::vector<float> k = Values(layer.k), v = Values(layer.v);
  double difference = 0, all = 0;
  for (int head = 0; head < s.q_heads; ++head) {
    const size_t base = static_cast<size_t>(head / (s.q_heads / s.kv_heads)) * s.dim;
    const size_t row = static_cast<size_t>(s.kv_heads) * s.dim;  // of a key
    std::vector<double> weight(static_cast<size_t>(s.keys)), sum(static_cast<size_t>(s.dim));
    double total = 0;
    for (int i = 0; i < s.keys; ++i) {
      double score = 0;
      for (int c = 0; c < s.dim; ++c) score += double{q[head * s.dim + c]} * k[base + static_cast<size_t>(i) * row + c];
      weight[i] = std::exp(score / std::sqrt(s.dim));
      total += weight[i];
    }
    for (int i = 0; i < s.keys; ++i) {
      for (int c = 0; c < s.dim; ++c) sum[c] += weight[i] / total * v[base + static_cast<size_t>(i) * row + c];
    }
    for (int c = 0; c < s.dim; ++c) {
      difference += std::pow(sum[c] - out[head * s.dim + c], 2);
      all += sum[c] * sum[c];
    }
  }
  return std::sqrt(difference / all);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: ggml_attention THREADS Q_HEADS KV_HEADS HEAD_DIM KEYS q8_0|f16\n");
    return 2;
  }
  const int threads = std::atoi(argv[1]);
  const Shape s = {std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5])};
  const ggml_type type = argv[6] == std::string_view("q8_0") ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
  const size_t layer_bytes = 2 * ggml_row_size(type, s.dim) * s.keys * s.kv_heads;
  const auto layers = std::max<size_t>(1, kBytes / layer_bytes);

  ggml_init_params params{};
  params.mem_size = layers * (layer_bytes + (size_t{1} << 17)) + (size_t{64} << 20);
  ggml_context* ctx = ggml_init(params);
  ggml_tensor* q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, s.dim, 1, s.q_heads);
  ggml_tensor* mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, s.keys, GGML_KQ_MASK_PAD);
  std::memset(mask->data, 0, ggml_nbytes(mask));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const auto draw = [&](size_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = normal(random);
    return values;
  };
  const std::vector<float> q_values = draw(static_cast<size_t>(s.dim) * s.q_heads);
  std::memcpy(q->data, q_values.data(), ggml_nbytes(q));
  const int64_t rows = int64_t{s.keys} * s.kv_heads;
  const std::vector<float> k = draw(static_cast<size_t>(rows * s.dim)), v = draw(static_cast<size_t>(rows * s.dim));
  const auto to_cache = ggml_internal_get_type_traits(type).from_float;
  std::vector<Layer> cache(layers);
  ggml_cgraph* graph = ggml_new_graph_custom(ctx, 4 * layers + 64, false);
  ggml_tensor* first = nullptr;
  for (Layer& layer : cache) {
    // As the engines keep them: a row has all heads of a key.
    const auto side = [&](const std::vector<float>& values) {
      ggml_tensor* all = ggml_new_tensor_2d(ctx, type, int64_t{s.dim} * s.kv_heads, s.keys);
      to_cache(values.data(), all->data, rows * s.dim);
      return ggml_view_3d(ctx, all, s.dim, s.keys, s.kv_heads, all->nb[1], ggml_row_size(type, s.dim), 0);
    };
    layer = {side(k), side(v)};
    ggml_tensor* out =
        ggml_flash_attn_ext(ctx, q, layer.k, layer.v, mask, 1.0f / std::sqrt(static_cast<float>(s.dim)), 0.0f, 0.0f);
    if (first == nullptr) first = out;
    ggml_build_forward_expand(graph, out);
  }
  ggml_cplan plan = ggml_graph_plan(graph, threads);
  std::vector<uint8_t> work(plan.work_size);
  plan.work_data = work.data();
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {  // the first warms up
    const auto start = std::chrono::steady_clock::now();
    if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) return 1;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (round > 0) seconds.push_back(took.count() / static_cast<double>(layers));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  std::printf("%.2f %.2e\n", seconds[kRounds / 2] * 1e6,
              RelativeError(s, q_values.data(), cache[0], static_cast<const float*>(first->data)));
  return 0;
}
