#include "tests/reference/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/float_types.h"

namespace octet::reference {
namespace {

// The static scale or zero of one channel.
float StaticValue(const CacheSide& side, const std::vector<float>& values, int kv_head, int channel) {
  if (values.empty()) return 0.0f;
  switch (side.axis) {
    case Axis::kHead:
      return values[static_cast<size_t>(kv_head)];
    case Axis::kChannel:
      return values[static_cast<size_t>(kv_head * side.head_dim + channel)];
    default:
      return values[0];
  }
}

uint8_t ToCode(float x) {
  if (std::isnan(x)) return 0;
  const float rounded = std::nearbyint(x);  // ties to even
  return static_cast<uint8_t>(static_cast<int8_t>(std::clamp(rounded, -127.0f, 127.0f)));
}

// One scale (and zero) for the channels of x.
void EncodeGroup(const CacheSide& side, std::span<const float> x, StoredRow& row) {
  bool finite = std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
  float zero = 0.0f;
  if (finite && side.scheme == Scheme::kAsymmetric) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    zero = RoundTo(side.zero_type, (*low + *high) * 0.5f);
  }
  float a = 0.0f;
  for (float v : x) a = std::max(a, std::abs(v - zero));
  finite = finite && std::isfinite(a);

  float scale, inverse;
  if (!finite) {
    scale = std::numeric_limits<float>::quiet_NaN();
    inverse = 0.0f;
  } else if (a < 1e-30f) {
    scale = inverse = 0.0f;
  } else if (side.scale_type == DType::kBF16) {
    scale = RoundTo(DType::kBF16, a / 127.0f);
    inverse = 1.0f / scale;
  } else {
    scale = a / 127.0f;
    inverse = 127.0f / a;
  }
  for (float v : x) row.data.push_back(finite ? ToCode((v - zero) * inverse) : uint8_t{0});
  row.scale.push_back(scale);
  if (side.scheme == Scheme::kAsymmetric) row.zero.push_back(zero);
}

}  // namespace

template <typename Real>
void Hadamard(std::span<Real> x, int block) {
  if (block == 0) return;
  const Real factor = static_cast<Real>(1.0 / std::sqrt(static_cast<double>(block)));
  const size_t n = static_cast<size_t>(block);
  for (size_t start = 0; start < x.size(); start += n) {
    for (size_t stride = 1; stride < n; stride *= 2) {
      for (size_t i = 0; i < n; ++i) {
        if (i & stride) continue;
        Real& a = x[start + i];
        Real& b = x[start + i + stride];
        const Real sum = a + b, difference = a - b;
        a = sum;
        b = difference;
      }
    }
    for (size_t i = 0; i < n; ++i) x[start + i] *= factor;
  }
}
template void Hadamard<float>(std::span<float>, int);
template void Hadamard<double>(std::span<double>, int);

StoredRow EncodeRow(const CacheSide& side, std::span<const float> x, const StaticQuant& statics, int kv_head) {
  std::vector<float> rotated(x.begin(), x.end());
  Hadamard<float>(rotated, side.rotation);

  StoredRow row;
  if (!side.quantized()) {
    const size_t bytes = static_cast<size_t>(ElementBytes(side.data_type));
    row.data.resize(rotated.size() * bytes);
    for (size_t c = 0; c < rotated.size(); ++c) StoreFloat(side.data_type, rotated[c], &row.data[c * bytes]);
  } else if (side.dynamic()) {
    const size_t width = rotated.size() / static_cast<size_t>(side.groups());
    for (size_t c = 0; c < rotated.size(); c += width) {
      EncodeGroup(side, std::span<const float>(rotated).subspan(c, width), row);
    }
  } else {
    for (int c = 0; c < side.head_dim; ++c) {
      const float scale = StaticValue(side, statics.scale, kv_head, c);
      const float zero = StaticValue(side, statics.zero, kv_head, c);
      row.data.push_back(ToCode((rotated[static_cast<size_t>(c)] - zero) * (1.0f / scale)));
    }
  }
  return row;
}

template <typename Real>
std::vector<Real> DecodeRow(const CacheSide& side, const StoredRow& row, const StaticQuant& statics, int kv_head) {
  std::vector<Real> x(static_cast<size_t>(side.head_dim));
  const size_t width = x.size() / static_cast<size_t>(side.groups());
  for (size_t c = 0; c < x.size(); ++c) {
    if (!side.quantized()) {
      const size_t bytes = static_cast<size_t>(ElementBytes(side.data_type));
      x[c] = static_cast<Real>(LoadFloat(side.data_type, &row.data[c * bytes]));
      continue;
    }
    const int channel = static_cast<int>(c);
    const float scale = side.dynamic() ? row.scale[c / width] : StaticValue(side, statics.scale, kv_head, channel);
    float zero = 0.0f;
    if (side.scheme == Scheme::kAsymmetric) {
      zero = side.dynamic() ? row.zero[c / width] : StaticValue(side, statics.zero, kv_head, channel);
    }
    const Real code = static_cast<Real>(static_cast<int8_t>(row.data[c]));
    x[c] = static_cast<Real>(scale) * code + static_cast<Real>(zero);
  }
  Hadamard<Real>(x, side.rotation);
  return x;
}
template std::vector<float> DecodeRow<float>(const CacheSide&, const StoredRow&, const StaticQuant&, int);
template std::vector<double> DecodeRow<double>(const CacheSide&, const StoredRow&, const StaticQuant&, int);

}  // namespace octet::reference
