// What octet does to a model's weights at load for the sake of the INT8 cache, decided from the weights alone
// (docs/numerics.md): factors that even out outlying K channel pairs, and the norms that the K offset rule needs.
#ifndef OCTET_CORE_MODEL_WEIGHT_RULES_H_
#define OCTET_CORE_MODEL_WEIGHT_RULES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/gguf/gguf_file.h"
#include "core/kv/k_offsets.h"

namespace octet {

// ||W_i g|| of every row i of a matrix [rows][columns], g the gain of the norm before it. InvalidArgument
// where a row holds a value that is not finite.
absl::StatusOr<std::vector<double>> RowNorms(const GgufTensor& weight, std::span<const float> gain);

// Factors of K's channels: K is divided by them and Q multiplied, equal inside a RoPE pair, so that they commute with
// RoPE; channels that do not rotate stand alone.

// From K's weights alone, per (KV head, channel): a pair's factor is its rms over 3 times the median
// rms of the layer where that exceeds 1, else 1. `row_norm`: [heads * head_dim].
std::vector<float> KPairFactors(std::span<const double> row_norm, int32_t heads, const RopePairs& rope);

// From the gains of K's and Q's own norms, [head_dim] each, which say how large each channel of both is. After the
// rotation every channel of K has the same error, of variance ~ sum (k / f)^2, and Q sees it with weight
// sum (q f)^2: their product is least at f = sqrt(|k| / |q|) (Cauchy-Schwarz). Relative to the median, within 1/8 to 8.
std::vector<float> BalanceGains(std::span<const float> k_gain, std::span<const float> q_gain, const RopePairs& rope);

}  // namespace octet

#endif  // OCTET_CORE_MODEL_WEIGHT_RULES_H_
