#include "core/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace octet {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Pairs that turn often inside the original context keep their frequency, slow ones are stretched, those between are
// mixed.
double Llama3(double frequency, const RopeScaling& s) {
  const double turns = static_cast<double>(s.original_context_length) * frequency / kTwoPi;
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double mix = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - mix) * frequency / s.factor + mix * frequency;
}

// The share of each pair's own frequency: 1 up to the pair that turns beta_fast times inside the original context, 0
// from the pair on that turns beta_slow times, linear between.
class YarnRamp {
 public:
  YarnRamp() = default;
  YarnRamp(const RopeConfig::Base& base, int rotary_dims) {
    const RopeScaling& s = base.scaling;
    const auto pair_of = [&](double turns) {
      return rotary_dims * std::log(static_cast<double>(s.original_context_length) / (turns * kTwoPi)) /
             (2 * std::log(base.theta));
    };
    low_ = std::max(0.0, std::floor(pair_of(s.beta_fast)));
    high_ = std::min(rotary_dims - 1.0, std::ceil(pair_of(s.beta_slow)));
  }
  double At(size_t pair) const {
    return 1 - std::clamp((static_cast<double>(pair) - low_) / std::max(0.001, high_ - low_), 0.0, 1.0);
  }

 private:
  double low_ = 0, high_ = 0;
};

}  // namespace

RopeAngles MakeRopeAngles(const RopeConfig::Base& base, int rotary_dims, std::span<const float> factors) {
  const RopeScaling& s = base.scaling;
  RopeAngles angles;
  angles.magnitude = s.attn_factor;
  const bool yarn = s.kind == RopeScalingKind::kYarn;
  if (yarn && s.ext_factor != 0) angles.magnitude *= 1 + 0.1 * std::log(s.factor);
  const YarnRamp ramp = yarn ? YarnRamp(base, rotary_dims) : YarnRamp();
  angles.frequency.resize(static_cast<size_t>(rotary_dims / 2));
  for (size_t p = 0; p < angles.frequency.size(); ++p) {
    double& f = angles.frequency[p];
    f = std::pow(base.theta, -2.0 * static_cast<double>(p) / rotary_dims);
    if (s.kind == RopeScalingKind::kLinear) f /= s.factor;
    if (s.kind == RopeScalingKind::kLlama3) f = Llama3(f, s);
    if (yarn) {
      const double own = ramp.At(p) * s.ext_factor;
      f = (1 - own) * f / s.factor + own * f;
    }
    if (!factors.empty()) f /= factors[p];
  }
  return angles;
}

}  // namespace octet
