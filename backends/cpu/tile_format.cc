// Packs stored weight rows into tiles. Source formats: ggml, ggml-common.h; see gguf_blocks.h.
#include "backends/cpu/kernels/tile_format.h"

#include <string.h>

#include "octet/gguf_blocks.h"

namespace octet_cpu {
namespace {

constexpr int kRows = 16;

void PutCodes(uint8_t* codes, int row, const uint8_t* values) {  // values [32], 4 bits each
  for (int i = 0; i < 16; ++i) codes[i * kRows + row] = static_cast<uint8_t>((values[i] & 15) | (values[i + 16] << 4));
}

void PutHalf(uint8_t* at, int row, const uint8_t* stored) { memcpy(at + 2 * row, stored, 2); }

// Blocks of 32: scale, min and fifth bits stand before the codes in the order of the format.
void PackBlock32(int32_t type, const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutHalf(out, row, in);
  in += 2;
  if (f.m >= 0) {
    PutHalf(out + f.m, row, in);
    in += 2;
  }
  if (f.high >= 0) {
    memcpy(out + f.high + 4 * row, in, 4);
    in += 4;
  }
  const int bytes = type == OCTET_Q8_0 ? 32 : 16;
  for (int i = 0; i < bytes; ++i) out[f.codes + i * kRows + row] = in[i];
}

void PackQ45K(int32_t type, const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutHalf(out, row, in);
  PutHalf(out + f.m, row, in + 2);
  const uint8_t* high = in + 16;
  const uint8_t* q = type == OCTET_Q5_K ? in + 48 : in + 16;
  for (int j = 0; j < 8; ++j) {
    int scale, min;
    octet::UnpackScaleMin(in + 4, j, &scale, &min);
    out[f.scales + j * kRows + row] = static_cast<uint8_t>(scale);
    out[f.mins + j * kRows + row] = static_cast<uint8_t>(min);
    uint8_t codes[32];
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(q[j / 2 * 32 + i] >> (j % 2 * 4) & 15);
    PutCodes(out + f.codes + j * 256, row, codes);
    if (type == OCTET_Q5_K) {
      uint32_t bits = 0;
      for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(high[i] >> j & 1) << i;
      memcpy(out + f.high + j * 64 + 4 * row, &bits, 4);
    }
  }
}

void PackQ6K(const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutHalf(out, row, in + 208);
  for (int i = 0; i < 16; ++i) out[f.scales + i * kRows + row] = in[192 + i];
  for (int j = 0; j < 8; ++j) {
    const uint8_t* low = in + 64 * (j / 4) + 32 * (j % 2);
    const uint8_t* high = in + 128 + 32 * (j / 4);
    uint8_t codes[32], upper[32];
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint8_t>(low[i] >> (j % 4 / 2 * 4) & 15);
      upper[i] = static_cast<uint8_t>(high[i] >> (j % 4 * 2) & 3);
    }
    PutCodes(out + f.codes + j * 256, row, codes);
    for (int i = 0; i < 8; ++i) {
      out[f.high + j * 128 + i * kRows + row] =
          static_cast<uint8_t>(upper[i] | upper[i + 8] << 2 | upper[i + 16] << 4 | upper[i + 24] << 6);
    }
  }
}

}  // namespace

void PackTileRow(int32_t type, const uint8_t* stored, int64_t columns, int row, uint8_t* tile) {
  const TileFormat f = TileFormatOf(type);
  const int element = f.bytes / kRows;
  const int64_t stored_bytes = octet::GgufBlockOf(static_cast<octet::DType>(type)).bytes;
  for (int64_t c = 0; c < columns; c += f.columns, stored += stored_bytes, tile += f.bytes) {
    switch (f.columns) {
      case 1:
        memcpy(tile + element * row, stored, static_cast<size_t>(element));
        break;
      case 32:
        PackBlock32(type, stored, row, f, tile);
        break;
      default:
        if (type == OCTET_Q6_K) {
          PackQ6K(stored, row, f, tile);
        } else {
          PackQ45K(type, stored, row, f, tile);
        }
    }
  }
}

}  // namespace octet_cpu
