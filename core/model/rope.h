// RoPE's angles: what a base and the scaling that a model was stretched with make of each channel pair.
// Reference: ggml's rope_yarn (yarn), transformers' modeling_rope_utils.py (llama3); https://arxiv.org/abs/2309.00071.
#ifndef OCTET_CORE_MODEL_ROPE_H_
#define OCTET_CORE_MODEL_ROPE_H_

#include <span>
#include <vector>

#include "core/model/config.h"

namespace octet {

struct RopeAngles {
  std::vector<double> frequency;  // [rotary_dims / 2], radians per position
  double magnitude = 1;           // factor of cos and sin: rotated channels of Q and K grow by it
};

// `factors`: [rotary_dims / 2], each pair's frequency is divided by it; or empty.
RopeAngles MakeRopeAngles(const RopeConfig::Base& base, int rotary_dims, std::span<const float> factors);

}  // namespace octet

#endif  // OCTET_CORE_MODEL_ROPE_H_
