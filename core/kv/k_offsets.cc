#include "core/kv/k_offsets.h"

#include <algorithm>
#include <cmath>

namespace octet {
namespace {

constexpr double kMaxAngleInBlock = 0.35;

double Median(std::vector<double>& values) {
  const size_t n = values.size();
  std::sort(values.begin(), values.end());
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

}  // namespace

double KOffsetNeed(std::span<const float> bias, std::span<const double> row_norm, int32_t kv_heads,
                   const RopePairs& rope) {
  double need = 0;
  std::vector<double> size(static_cast<size_t>(rope.pairs));
  for (int32_t head = 0; head < kv_heads; ++head) {
    const auto at = [&](int32_t channel) { return static_cast<size_t>(head * rope.head_dim + channel); };
    double largest = 0;
    for (int32_t p = 0; p < rope.pairs; ++p) {
      const size_t i = at(rope.first(p)), j = at(rope.second(p));
      const double b = std::hypot(static_cast<double>(bias[i]), static_cast<double>(bias[j]));
      const double w = std::hypot(row_norm[i], row_norm[j]);
      size[static_cast<size_t>(p)] = std::hypot(b, w);
      largest = std::max(largest, b);
    }
    const double median = Median(size);
    if (median > 0) need = std::max(need, largest / median);
  }
  return need;
}

std::vector<float> MakeKOffsets(std::span<const float> bias, std::span<const double> frequency, double magnitude,
                                int32_t kv_heads, const RopePairs& rope, int32_t block, int64_t blocks) {
  const size_t row = static_cast<size_t>(kv_heads * rope.head_dim);
  std::vector<float> table(row * static_cast<size_t>(blocks), 0.0f);
  const double half_block = 0.5 * block;
  for (int64_t c = 0; c < blocks; ++c) {
    const double centre = static_cast<double>(c) * block + 0.5 * (block - 1);
    float* out = table.data() + row * static_cast<size_t>(c);
    for (int32_t head = 0; head < kv_heads; ++head) {
      const size_t base = static_cast<size_t>(head * rope.head_dim);
      for (int32_t p = 0; p < rope.pairs; ++p) {
        const double theta = frequency[static_cast<size_t>(p)];
        if (theta * half_block > kMaxAngleInBlock) continue;
        const size_t i = base + static_cast<size_t>(rope.first(p)), j = base + static_cast<size_t>(rope.second(p));
        const double cos = magnitude * std::cos(centre * theta), sin = magnitude * std::sin(centre * theta);
        out[i] = static_cast<float>(bias[i] * cos - bias[j] * sin);
        out[j] = static_cast<float>(bias[i] * sin + bias[j] * cos);
      }
      for (int32_t channel = 2 * rope.pairs; channel < rope.head_dim; ++channel) {
        out[base + static_cast<size_t>(channel)] = bias[base + static_cast<size_t>(channel)];
      }
    }
  }
  return table;
}

}  // namespace octet
