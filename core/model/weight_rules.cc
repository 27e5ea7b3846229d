#include "core/model/weight_rules.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

constexpr double kOutlier = 3.0;
constexpr double kLargestGainFactor = 8.0;

double UpperMedian(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::StatusOr<std::vector<double>> RowNorms(const GgufTensor& weight, std::span<const float> gain) {
  std::vector<float> row(gain.size());
  std::vector<double> norms(static_cast<size_t>(weight.rows));
  for (size_t r = 0; r < norms.size(); ++r) {
    if (auto status = DequantizeTensorRow(weight, static_cast<int64_t>(r), row.data()); !status.ok()) {
      return status;
    }
    double sum = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      const double x = static_cast<double>(row[c]) * gain[c];
      sum += x * x;
    }
    if (!std::isfinite(sum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", QuoteName(weight.name), " holds a value that is not finite in row ", r));
    }
    norms[r] = std::sqrt(sum);
  }
  return norms;
}

std::vector<float> KPairFactors(std::span<const double> row_norm, int32_t heads, const RopePairs& rope) {
  struct Pair {
    size_t i, j;
    double rms;
  };
  std::vector<Pair> all;
  for (int32_t head = 0; head < heads; ++head) {
    const auto add = [&](int32_t a, int32_t b) {
      const size_t i = static_cast<size_t>(head * rope.head_dim + a), j = static_cast<size_t>(head * rope.head_dim + b);
      all.push_back({i, j, std::sqrt(0.5 * (row_norm[i] * row_norm[i] + row_norm[j] * row_norm[j]))});
    };
    for (int32_t p = 0; p < rope.pairs; ++p) add(rope.first(p), rope.second(p));
    for (int32_t c = 2 * rope.pairs; c < rope.head_dim; ++c) add(c, c);
  }
  std::vector<double> rms;
  for (const Pair& pair : all) rms.push_back(pair.rms);
  const double limit = kOutlier * UpperMedian(rms);

  std::vector<float> factors(row_norm.size(), 1.0f);
  for (const Pair& pair : all) {
    if (limit > 0 && pair.rms > limit) factors[pair.i] = factors[pair.j] = static_cast<float>(pair.rms / limit);
  }
  return factors;
}

std::vector<float> BalanceGains(std::span<const float> k_gain, std::span<const float> q_gain, const RopePairs& rope) {
  std::vector<double> wanted(k_gain.size(), 1.0);
  const auto set = [&](int32_t a, int32_t b) {
    const size_t i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    const double k = std::hypot(k_gain[i], k_gain[j]), q = std::hypot(q_gain[i], q_gain[j]);
    if (k > 0 || q > 0) wanted[i] = wanted[j] = std::sqrt(k / q);  // infinite where Q never looks
  };
  for (int32_t p = 0; p < rope.pairs; ++p) set(rope.first(p), rope.second(p));
  for (int32_t c = 2 * rope.pairs; c < rope.head_dim; ++c) set(c, c);
  const double median = UpperMedian(wanted);
  std::vector<float> factors(wanted.size(), 1.0f);
  if (!(median > 0) || !std::isfinite(median)) return factors;
  for (size_t i = 0; i < factors.size(); ++i) {
    factors[i] = static_cast<float>(std::clamp(wanted[i] / median, 1 / kLargestGainFactor, kLargestGainFactor));
  }
  return factors;
}

}  // namespace octet
