// Norms, RoPE, activations, additions and conversions: one pass over a row each, memory bound.
#include "backends/cpu/kernels/row.h"
#include "octet/abi.h"

namespace octet_cpu {
namespace OCTET_CPU_ISA {
namespace {

constexpr int kSums = 16;  // independent double accumulators, added in a fixed tree: the same on every instruction set

double Tree(double* sums) {
  for (int width = kSums / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

double Mean(const float* x, int64_t n) {
  double sums[kSums] = {};
  int64_t c = 0;
  for (; c + kSums <= n; c += kSums) {
    for (int i = 0; i < kSums; ++i) sums[i] += static_cast<double>(x[c + i]);
  }
  for (int i = 0; c < n; ++c, ++i) sums[i] += static_cast<double>(x[c]);
  return Tree(sums) / static_cast<double>(n);
}

double MeanSquare(const float* x, int64_t n, double mean) {
  double sums[kSums] = {};
  int64_t c = 0;
  for (; c + kSums <= n; c += kSums) {
    for (int i = 0; i < kSums; ++i) {
      const double d = static_cast<double>(x[c + i]) - mean;
      sums[i] += d * d;
    }
  }
  for (int i = 0; c < n; ++c, ++i) {
    const double d = static_cast<double>(x[c]) - mean;
    sums[i] += d * d;
  }
  return Tree(sums) / static_cast<double>(n);
}

// y = (x - mean) / sqrt(variance + eps) * gain + bias, or x / sqrt(mean square + eps) * gain. The mean stays in double:
// x may be large beside its spread.
void Norm(const NormParams& p, const float* x, float* y) {
  const double mean = p.layer ? Mean(x, p.n) : 0.0;
  const double inverse = 1.0 / __builtin_sqrt(MeanSquare(x, p.n, mean) + static_cast<double>(p.eps));
  if (p.layer) {
    for (int64_t c = 0; c < p.n; ++c) {
      const float normal = static_cast<float>((static_cast<double>(x[c]) - mean) * inverse);
      y[c] = normal * p.gain[c] + (p.bias != nullptr ? p.bias[c] : 0.0f);
    }
  } else {
    const float factor = static_cast<float>(inverse);
    for (int64_t c = 0; c < p.n; ++c) y[c] = x[c] * factor * p.gain[c];
  }
}

void Rope(const RopeParams& p, const float* cos_sin, float* x) {
  if (!p.interleaved && p.pair_stride == 2) {  // the usual: a loop of fixed strides, which compilers vectorize
    float* __restrict first = x;
    float* __restrict second = x + p.pairs;
    for (int64_t i = 0; i < p.pairs; ++i) {
      const float cosine = cos_sin[2 * i], sine = cos_sin[2 * i + 1], a = first[i], b = second[i];
      first[i] = a * cosine - b * sine;
      second[i] = a * sine + b * cosine;
    }
    return;
  }
  const int64_t near = p.interleaved ? 2 : 1, far = p.interleaved ? 1 : p.pairs;
  for (int64_t i = 0; i < p.pairs; ++i) {
    const float cosine = cos_sin[i * p.pair_stride], sine = cos_sin[i * p.pair_stride + 1];
    float *first = x + i * near, *second = first + far;
    const float a = *first, b = *second;
    *first = a * cosine - b * sine;
    *second = a * sine + b * cosine;
  }
}

OCTET_INLINE Vec Silu(Vec x) { return x / (1.0f + Exp(-x)); }

OCTET_INLINE Vec GeluTanh(Vec x) {
  const Vec inner = 0.797884561f * (x + 0.044715f * x * x * x);
  // 0.5 (1 + tanh u) = 1 / (1 + e^-2u), without the cancellation at negative x.
  return x / (1.0f + Exp(-2.0f * inner));
}

OCTET_INLINE Vec Gelu(Vec x) {
  Vec y;
  for (int i = 0; i < kLanes; ++i) y[i] = x[i] * 0.5f * __builtin_erfcf(-x[i] * 0.707106781f);
  return y;
}

// y = f(x), times x + n where that is a gate.
template <Vec (*F)(Vec), bool Gated>
void Apply(int64_t n, const float* x, float* y) {
  const auto one = [](Vec a, Vec b) { return Gated ? F(a) * b : F(a); };
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) Store(y + c, one(Load(x + c), Gated ? Load(x + n + c) : Vec{}));
  if (c == n) return;
  const size_t rest = static_cast<size_t>(n - c) * sizeof(float);
  Vec a{}, b{};
  __builtin_memcpy(&a, x + c, rest);
  if (Gated) __builtin_memcpy(&b, x + n + c, rest);
  a = one(a, b);
  __builtin_memcpy(y + c, &a, rest);
}

void Activation(int32_t kind, int64_t n, const float* x, float* y) {
  switch (kind) {
    case OCTET_ACT_SILU_GATED:
      return Apply<Silu, true>(n, x, y);
    case OCTET_ACT_SILU:
      return Apply<Silu, false>(n, x, y);
    case OCTET_ACT_GELU_TANH_GATED:
      return Apply<GeluTanh, true>(n, x, y);
    case OCTET_ACT_GELU_TANH:
      return Apply<GeluTanh, false>(n, x, y);
    case OCTET_ACT_GELU_GATED:
      return Apply<Gelu, true>(n, x, y);
    default:
      return Apply<Gelu, false>(n, x, y);
  }
}

void Add(int64_t n, const float* x, float* y) {
  for (int64_t c = 0; c < n; ++c) y[c] += x[c];
}

void Widen(Element element, const void* row, int64_t n, float* x) { LoadRow(element, row, n, x); }
void Round(Element element, const float* x, int64_t n, void* row) { StoreRow(element, x, n, row); }

}  // namespace

void FillElementwise(KernelTable* table) {
  table->norm = Norm;
  table->rope = Rope;
  table->activation = Activation;
  table->add = Add;
  table->load_row = Widen;
  table->store_row = Round;
}

}  // namespace OCTET_CPU_ISA
}  // namespace octet_cpu
