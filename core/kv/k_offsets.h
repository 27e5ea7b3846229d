// Which layers need a K offset table, and the table: the slowly rotating part of the K-projection bias, taken out of
// the codes and put back exactly in the scores (docs/numerics.md, "Block offset").
#ifndef OCTET_CORE_KV_K_OFFSETS_H_
#define OCTET_CORE_KV_K_OFFSETS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace octet {

// Channel numbers of RoPE pair p, as rope has them: (2p, 2p+1) when interleaved, else (p, p + pairs).
struct RopePairs {
  int32_t head_dim = 0;
  int32_t pairs = 0;  // rotated pairs; channels from 2 * pairs on do not move
  bool interleaved = false;

  int32_t first(int32_t p) const { return interleaved ? 2 * p : p; }
  int32_t second(int32_t p) const { return interleaved ? 2 * p + 1 : p + pairs; }
};

// r of the weights-only rule for one layer, the largest over its KV heads: max_p b_p / median_p sqrt(b_p^2 + w_p^2).
// bias: [kv_heads * head_dim]; row_norm: norm of each K row times the input norm's gain, same shape.
double KOffsetNeed(std::span<const float> bias, std::span<const double> row_norm, int32_t kv_heads,
                   const RopePairs& rope);

// A layer needs offsets when KOffsetNeed exceeds this.
inline constexpr double kOffsetNeedThreshold = 3.0;

// The table f32 [blocks][kv_heads][head_dim]: the bias rotated to the centre of each block of `block` positions, for
// the pairs whose angle moves by at most 0.35 between the centre and the block's edge; 0 for the others. frequency:
// [pairs], radians per position; magnitude: what rotated channels grow by.
std::vector<float> MakeKOffsets(std::span<const float> bias, std::span<const double> frequency, double magnitude,
                                int32_t kv_heads, const RopePairs& rope, int32_t block, int64_t blocks);

}  // namespace octet

#endif  // OCTET_CORE_KV_K_OFFSETS_H_
