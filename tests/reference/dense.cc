#include "tests/reference/dense.h"

#include <cmath>

#include "tests/reference/gguf.h"

namespace octet::reference {
namespace {

double Function(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
    case Activation::kSiluGated:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
    case Activation::kGeluGated:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
    case Activation::kGeluTanhGated:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }
  return NAN;
}

bool Gated(Activation kind) {
  return kind == Activation::kSiluGated || kind == Activation::kGeluGated || kind == Activation::kGeluTanhGated;
}

}  // namespace

Vector WeightMatrix(const WeightDesc& desc) {
  Vector w;
  for (const WeightPart& part : desc.parts) {
    for (int64_t r = 0; r < part.rows; ++r) {
      const auto* row = static_cast<const uint8_t*>(part.data) + r * part.row_stride_bytes;
      const double scale = part.row_scale != nullptr ? part.row_scale[r] : 1.0;
      for (int64_t c = 0; c < desc.columns; ++c) w.push_back(scale * WeightElement(part.dtype, row, c));
    }
  }
  return w;
}

Sums Linear(const Vector& x, const Vector& w, int64_t columns, const Vector& bias, const Vector& residual) {
  const size_t n = static_cast<size_t>(columns), tokens = x.size() / n, rows = w.size() / n;
  Sums y;
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t r = 0; r < rows; ++r) {
      double sum = 0, magnitude = 0;
      auto add = [&](double term) {
        sum += term;
        magnitude += std::abs(term);
      };
      for (size_t c = 0; c < n; ++c) add(x[t * n + c] * w[r * n + c]);
      if (!bias.empty()) add(bias[r]);
      if (!residual.empty()) add(residual[t * rows + r]);
      y.value.push_back(sum);
      y.magnitude.push_back(magnitude);
    }
  }
  return y;
}

Sums Norm(NormKind kind, const Vector& x, const Vector& gain, const Vector& bias, double eps) {
  const size_t n = gain.size();
  Sums y;
  for (size_t row = 0; row < x.size(); row += n) {
    double mean = 0, squares = 0, mean_abs = 0;
    if (kind == NormKind::kLayer) {
      for (size_t c = 0; c < n; ++c) {
        mean += x[row + c] / static_cast<double>(n);
        mean_abs += std::abs(x[row + c]) / static_cast<double>(n);
      }
    }
    for (size_t c = 0; c < n; ++c) squares += (x[row + c] - mean) * (x[row + c] - mean);
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t c = 0; c < n; ++c) {
      const double b = bias.empty() ? 0.0 : bias[c];
      y.value.push_back((x[row + c] - mean) * inverse * gain[c] + b);
      y.magnitude.push_back((std::abs(x[row + c]) + mean_abs) * inverse * std::abs(gain[c]) + std::abs(b));
    }
  }
  return y;
}

Sums Rope(const Vector& x, int64_t heads, int64_t head_dim, const std::vector<int32_t>& positions,
          const std::vector<float>& cos_sin, int64_t pairs, bool interleaved) {
  Sums y{x, x};
  for (double& m : y.magnitude) m = std::abs(m);
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const size_t row = (t * static_cast<size_t>(heads) + static_cast<size_t>(h)) * static_cast<size_t>(head_dim);
      for (int64_t p = 0; p < pairs; ++p) {
        const size_t a = row + static_cast<size_t>(interleaved ? 2 * p : p);
        const size_t b = row + static_cast<size_t>(interleaved ? 2 * p + 1 : p + pairs);
        const size_t entry = static_cast<size_t>(positions[t] * pairs + p) * 2;
        const double cosine = cos_sin[entry], sine = cos_sin[entry + 1];
        y.value[a] = x[a] * cosine - x[b] * sine;
        y.value[b] = x[a] * sine + x[b] * cosine;
        y.magnitude[a] = std::abs(x[a] * cosine) + std::abs(x[b] * sine);
        y.magnitude[b] = std::abs(x[a] * sine) + std::abs(x[b] * cosine);
      }
    }
  }
  return y;
}

Sums Activate(Activation kind, const Vector& x, int64_t columns) {
  const size_t width = static_cast<size_t>(columns), n = Gated(kind) ? width / 2 : width;
  Sums y;
  for (size_t row = 0; row < x.size(); row += width) {
    for (size_t c = 0; c < n; ++c) {
      const double up = Gated(kind) ? x[row + n + c] : 1.0;
      y.value.push_back(Function(kind, x[row + c]) * up);
      y.magnitude.push_back(std::abs(x[row + c] * up));
    }
  }
  return y;
}

}  // namespace octet::reference
