// How 16 rows of a stored tensor lie in a weight tile: the stored bits, permuted so that the 16 rows are the innermost
// dimension and a 32-bit word per row holds neighbouring columns: shifts and masks of whole vectors expand it. Padding
// is zero bits. Types of 32-weight blocks and Q6_K take exactly their stored size; Q4_K and Q5_K give each 6-bit scale
// and min a byte (4.625 and 5.625 bits a weight).
//
// Per group of `columns` columns, `bytes` bytes, in the order of the offsets below (-1: not there):
//   d at 0    f16 [16]; where there is a min, u32 [16] with d below and the min (dmin of the K types) above
//   scales    u32 [..][16], 4 bytes each: per 32 columns (Q4_K, Q5_K; unsigned) or 16 columns (Q6_K; signed)
//   mins      u32 [2][16], as scales
//   high      Q5_*: u32 [subs][16], bit 8 b + 2 i + p is the fifth bit of column 8 i + 2 b + p of the sub-block of 32;
//             Q6_K: u32 [subs][2][16], 16 columns of two bits each: those of column 8 i + 2 b + p from bit
//             8 b + 4 i + 2 p on; so a shift and a mask put them above the codes of four columns in bytes
//   codes     u32 [subs][4][16], 8 columns of four bits each; Q8_0: u32 [8][16] of eight bits, columns
//             8 i + 0, 2, 4, 6 in word 2 i and 8 i + 1, 3, 5, 7 in word 2 i + 1
// F32: [columns][16]. F16, BF16: u32 [pairs of columns][16], the even column below.
#ifndef OCTET_BACKENDS_CPU_KERNELS_TILE_FORMAT_H_
#define OCTET_BACKENDS_CPU_KERNELS_TILE_FORMAT_H_

#include <stdint.h>

#include "octet/abi.h"

namespace octet_cpu {

struct TileFormat {
  int32_t columns, bytes;                // of a group; 0 columns: not a weight type
  int32_t m, scales, mins, high, codes;  // m: is there a min (0) or not (-1)
};

static constexpr TileFormat TileFormatOf(int32_t type) {
  switch (type) {
    case OCTET_F32:
      return {1, 64, -1, -1, -1, -1, 0};
    case OCTET_F16:
    case OCTET_BF16:
      return {2, 64, -1, -1, -1, -1, 0};
    case OCTET_Q4_0:
      return {32, 288, -1, -1, -1, -1, 32};
    case OCTET_Q4_1:
      return {32, 320, 0, -1, -1, -1, 64};
    case OCTET_Q5_0:
      return {32, 352, -1, -1, -1, 32, 96};
    case OCTET_Q5_1:
      return {32, 384, 0, -1, -1, 64, 128};
    case OCTET_Q8_0:
      return {32, 544, -1, -1, -1, -1, 32};
    case OCTET_Q4_K:
      return {256, 2368, 0, 64, 192, -1, 320};
    case OCTET_Q5_K:
      return {256, 2880, 0, 64, 192, 320, 832};
    case OCTET_Q6_K:
      return {256, 3360, -1, 32, -1, 288, 1312};
    default:
      return {0, 0, -1, -1, -1, -1, -1};
  }
}

// Are weights of the type stored as codes with scales, or as floats?
static constexpr bool HasCodes(int32_t type) { return TileFormatOf(type).codes > 0; }

// Bytes of a tile; `columns` is a multiple of the group's, but for the last pair of the 16-bit types.
static constexpr int64_t TileBytes(int32_t type, int64_t columns) {
  const TileFormat f = TileFormatOf(type);
  return f.columns == 0 ? 0 : (columns + f.columns - 1) / f.columns * f.bytes;
}

// Writes row `row` (0..15) of a zeroed tile from a stored row of `columns` weights. In tile_format.cc.
void PackTileRow(int32_t type, const uint8_t* stored, int64_t columns, int row, uint8_t* tile);

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_TILE_FORMAT_H_
