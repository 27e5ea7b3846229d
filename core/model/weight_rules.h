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

// Per (KV head, channel): what K is divided by and Q multiplied by. A pair's factor is its rms over 3 times the median
// rms of the layer where that exceeds 1, else 1; equal inside a pair, so that it commutes with RoPE. `size` is the row
// norm (or the K norm's gain) of each channel, [heads * head_dim]; channels that do not rotate stand alone.
std::vector<float> KPairFactors(std::span<const double> size, int32_t heads, const RopePairs& rope);

}  // namespace octet

#endif  // OCTET_CORE_MODEL_WEIGHT_RULES_H_
