// Attention for few queries at a time over paged INT8 rows (decode_sm90.cu).
#ifndef OCTET_BACKENDS_CUDA_KERNELS_DECODE_H_
#define OCTET_BACKENDS_CUDA_KERNELS_DECODE_H_

#include <cstdint>

#include "backends/gpu/kernels/kernels.h"

namespace octet_gpu {

constexpr int kDecodeTile = kAttentionTile;
constexpr int kDecodeGroup = 8;     // query heads of a KV head at most
constexpr int kDecodeBlocks = 192;  // of a launch at most

struct DecodeParams {
  AttentionParams attention;
  void* partials;    // DecodePartialBytes
  int32_t* arrived;  // [blocks], zeros between launches
  bool whole_pages;  // a page's codes and scales of one head are a tile as it lies in memory
};

int64_t DecodePartialBytes(int head_dim, int blocks);

// head_dim 64, 128 or 256.
void LaunchDecode(const DecodeParams& p, int blocks, runtime::Stream stream);

}  // namespace octet_gpu

#endif  // OCTET_BACKENDS_CUDA_KERNELS_DECODE_H_
