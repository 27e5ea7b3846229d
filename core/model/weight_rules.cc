#include "core/model/weight_rules.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

constexpr double kOutlier = 3.0;

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

std::vector<float> KPairFactors(std::span<const double> size, int32_t heads, const RopePairs& rope) {
  struct Pair {
    size_t i, j;
    double rms;
  };
  std::vector<Pair> all;
  for (int32_t head = 0; head < heads; ++head) {
    const auto add = [&](int32_t a, int32_t b) {
      const size_t i = static_cast<size_t>(head * rope.head_dim + a), j = static_cast<size_t>(head * rope.head_dim + b);
      all.push_back({i, j, std::sqrt(0.5 * (size[i] * size[i] + size[j] * size[j]))});
    };
    for (int32_t p = 0; p < rope.pairs; ++p) add(rope.first(p), rope.second(p));
    for (int32_t c = 2 * rope.pairs; c < rope.head_dim; ++c) add(c, c);
  }
  std::vector<double> rms;
  for (const Pair& pair : all) rms.push_back(pair.rms);
  const auto middle = rms.begin() + static_cast<std::ptrdiff_t>(rms.size() / 2);
  std::nth_element(rms.begin(), middle, rms.end());
  const double limit = kOutlier * *middle;

  std::vector<float> factors(size.size(), 1.0f);
  for (const Pair& pair : all) {
    if (limit > 0 && pair.rms > limit) factors[pair.i] = factors[pair.j] = static_cast<float>(pair.rms / limit);
  }
  return factors;
}

}  // namespace octet
