// Packs stored weight rows into tiles. Source formats: ggml, ggml-common.h; see gguf_blocks.h.
#include "backends/cpu/kernels/tile_format.h"

#include <string.h>

#include "octet/gguf_blocks.h"

namespace octet_cpu {
namespace {

constexpr int kRows = 16;

// Words [..][16] of one row of a tile.
class Words {
 public:
  Words(uint8_t* at, int row) : at_(at + 4 * row) {}
  // Ors `value` into word `i`.
  void Or(int i, uint32_t value) const {
    uint8_t* p = at_ + 4 * kRows * i;
    value |= octet::LoadU32(p);
    memcpy(p, &value, sizeof value);
  }
  // values[n], `bits` wide each, from word 0 on.
  void Put(const uint8_t* values, int n, int bits) const {
    const int per_word = 32 / bits;
    for (int i = 0; i < n; ++i) Or(i / per_word, uint32_t{values[i]} << (i % per_word * bits));
  }

 private:
  uint8_t* at_;
};

// d, and the min above it where the format has one.
void PutScale(const TileFormat& f, const uint8_t* d, const uint8_t* m, int row, uint8_t* out) {
  if (f.m < 0) {
    memcpy(out + 2 * row, d, 2);
  } else {
    Words(out, row).Or(0, octet::LoadU16(d) | uint32_t{octet::LoadU16(m)} << 16);
  }
}

// Blocks of 32: d, min and fifth bits stand before the codes, 16 bytes whose low nibbles are columns 0..15.
void PackBlock32(int32_t type, const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutScale(f, in, in + 2, row, out);
  in += f.m < 0 ? 2 : 4;
  if (f.high >= 0) {
    Words(out + f.high, row).Or(0, octet::LoadU32(in));
    in += 4;
  }
  uint8_t codes[32];
  if (type == OCTET_Q8_0) {
    for (int i = 0; i < 32; ++i) codes[i] = in[i / 8 * 8 + i % 4 * 2 + i % 8 / 4];
    return Words(out + f.codes, row).Put(codes, 32, 8);
  }
  for (int i = 0; i < 16; ++i) {
    codes[i] = in[i] & 15;
    codes[i + 16] = static_cast<uint8_t>(in[i] >> 4);
  }
  Words(out + f.codes, row).Put(codes, 32, 4);
}

void PackQ45K(int32_t type, const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutScale(f, in, in + 2, row, out);
  const uint8_t* high = in + 16;
  const uint8_t* q = type == OCTET_Q5_K ? in + 48 : in + 16;
  uint8_t scales[8], mins[8];
  for (int j = 0; j < 8; ++j) {
    int scale, min;
    octet::UnpackScaleMin(in + 4, j, &scale, &min);
    scales[j] = static_cast<uint8_t>(scale);
    mins[j] = static_cast<uint8_t>(min);
    uint8_t codes[32], fifth[32];
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint8_t>(q[j / 2 * 32 + i] >> (j % 2 * 4) & 15);
      fifth[i] = static_cast<uint8_t>(high[i] >> j & 1);
    }
    Words(out + f.codes + j * 256, row).Put(codes, 32, 4);
    if (type == OCTET_Q5_K) Words(out + f.high + j * 64, row).Put(fifth, 32, 1);
  }
  Words(out + f.scales, row).Put(scales, 8, 8);
  Words(out + f.mins, row).Put(mins, 8, 8);
}

void PackQ6K(const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutScale(f, in + 208, nullptr, row, out);
  Words(out + f.scales, row).Put(in + 192, 16, 8);
  for (int j = 0; j < 8; ++j) {
    const uint8_t* low = in + 64 * (j / 4) + 32 * (j % 2);
    const uint8_t* high = in + 128 + 32 * (j / 4);
    uint8_t codes[32], upper[32];
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint8_t>(low[i] >> (j % 4 / 2 * 4) & 15);
      upper[i] = static_cast<uint8_t>(high[i] >> (j % 4 * 2) & 3);
    }
    Words(out + f.codes + j * 256, row).Put(codes, 32, 4);
    Words(out + f.high + j * 128, row).Put(upper, 32, 2);
  }
}

}  // namespace

void PackTileRow(int32_t type, const uint8_t* stored, int64_t columns, int row, uint8_t* tile) {
  const TileFormat f = TileFormatOf(type);
  if (type == OCTET_F32) {
    for (int64_t c = 0; c < columns; ++c) memcpy(tile + 4 * (c * kRows + row), stored + 4 * c, 4);
    return;
  }
  if (f.columns == 2) {
    for (int64_t c = 0; c < columns; ++c) memcpy(tile + 4 * (c / 2 * kRows + row) + c % 2 * 2, stored + 2 * c, 2);
    return;
  }
  const int64_t stored_bytes = octet::GgufBlockOf(static_cast<octet::DType>(type)).bytes;
  for (int64_t c = 0; c < columns; c += f.columns, stored += stored_bytes, tile += f.bytes) {
    if (f.columns == 32) {
      PackBlock32(type, stored, row, f, tile);
    } else if (type == OCTET_Q6_K) {
      PackQ6K(stored, row, f, tile);
    } else {
      PackQ45K(type, stored, row, f, tile);
    }
  }
}

}  // namespace octet_cpu
