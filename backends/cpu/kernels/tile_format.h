// How 16 rows of a stored tensor lie in a weight tile: the stored bits, permuted so that the 16 rows are the innermost
// dimension and one vector of codes expands to one vector of weights. Padding rows are zero bytes. Types of 32-weight
// blocks take exactly their stored size; Q4_K and Q5_K give each 6-bit scale and min a byte (4.625 and 5.625 bits a
// weight).
//
// Per group of `columns` columns, `bytes` bytes in the order of the offsets below (-1: not there):
//   d, m      f16 [16]            scale, and min (dmin of the K types)
//   scales    u8 or i8 [..][16]   one per 32 columns (Q4_K, Q5_K) or 16 columns (Q6_K)
//   mins      u8 [8][16]
//   high      Q5_*: u32 [subs][16], bit c is the fifth bit of column c; Q6_K: u8 [subs][8][16], bits 2f, 2f+1 of byte i
//             are the upper bits of column i + 8 f
//   codes     u8 [subs][16][16]: low nibble column c, high nibble column c + 16 of the sub-block of 32; Q8_0: i8
//   [32][16]
// F32, F16, BF16: elements [columns][16], any number of columns.
#ifndef OCTET_BACKENDS_CPU_KERNELS_TILE_FORMAT_H_
#define OCTET_BACKENDS_CPU_KERNELS_TILE_FORMAT_H_

#include <stdint.h>

#include "octet/abi.h"

namespace octet_cpu {

struct TileFormat {
  int32_t columns, bytes;                // of a group; 0 columns: not a weight type
  int32_t m, scales, mins, high, codes;  // d is at 0
};

static constexpr TileFormat TileFormatOf(int32_t type) {
  switch (type) {
    case OCTET_F32:
      return {1, 64, -1, -1, -1, -1, 0};
    case OCTET_F16:
    case OCTET_BF16:
      return {1, 32, -1, -1, -1, -1, 0};
    case OCTET_Q4_0:
      return {32, 288, -1, -1, -1, -1, 32};
    case OCTET_Q4_1:
      return {32, 320, 32, -1, -1, -1, 64};
    case OCTET_Q5_0:
      return {32, 352, -1, -1, -1, 32, 96};
    case OCTET_Q5_1:
      return {32, 384, 32, -1, -1, 64, 128};
    case OCTET_Q8_0:
      return {32, 544, -1, -1, -1, -1, 32};
    case OCTET_Q4_K:
      return {256, 2368, 32, 64, 192, -1, 320};
    case OCTET_Q5_K:
      return {256, 2880, 32, 64, 192, 320, 832};
    case OCTET_Q6_K:
      return {256, 3360, -1, 32, -1, 288, 1312};
    default:
      return {0, 0, -1, -1, -1, -1, -1};
  }
}

// Bytes of a tile; `columns` is a multiple of the group's.
static constexpr int64_t TileBytes(int32_t type, int64_t columns) {
  const TileFormat f = TileFormatOf(type);
  return f.columns == 0 ? 0 : columns / f.columns * f.bytes;
}

// Writes row `row` (0..15) of a zeroed tile from a stored row of `columns` weights. In tile_format.cc.
void PackTileRow(int32_t type, const uint8_t* stored, int64_t columns, int row, uint8_t* tile);

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_KERNELS_TILE_FORMAT_H_
