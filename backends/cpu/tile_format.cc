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
  void Set(int i, uint64_t value) const {
    const auto word = static_cast<uint32_t>(value);
    memcpy(at_ + 4 * kRows * i, &word, sizeof word);
  }

 private:
  uint8_t* at_;
};

uint64_t LoadU64(const uint8_t* p) { return octet::LoadU32(p) | uint64_t{octet::LoadU32(p + 4)} << 32; }

// The lowest `Bits` bits of each of 8 bytes side by side, those of the first byte lowest.
template <int Bits>
uint64_t Squeeze(uint64_t x) {
  const auto ones = [](int count) { return (uint64_t{1} << count) - 1; };
  x &= 0x0101010101010101u * ones(Bits);
  x = (x | x >> (8 - Bits)) & (0x0001000100010001u * ones(2 * Bits));
  x = (x | x >> 2 * (8 - Bits)) & (0x0000000100000001u * ones(4 * Bits));
  return (x | x >> 4 * (8 - Bits)) & ones(8 * Bits);
}

// Bits whose positions have bit i set change places with those that have bit j > i set instead.
template <int I, int J>
uint32_t SwapPositions(uint32_t x) {
  uint32_t below = 0;  // positions with bit I and without J
  for (int at = 0; at < 32; ++at) below |= (at >> I & ~at >> J & 1) != 0 ? uint32_t{1} << at : 0;
  constexpr int kShift = (1 << J) - (1 << I);
  const uint32_t moved = (x >> kShift ^ x) & below;
  return x ^ moved ^ moved << kShift;
}

// From the order of columns to that of the tile: fifth bits of 32 columns, and two bits each of 16.
uint32_t FifthBits(uint32_t x) { return SwapPositions<2, 4>(SwapPositions<1, 3>(x)); }
uint32_t UpperBits(uint32_t x) { return SwapPositions<2, 3>(SwapPositions<3, 4>(x)); }

// d, and the min above it where the format has one.
void PutScale(const TileFormat& f, const uint8_t* d, const uint8_t* m, int row, uint8_t* out) {
  if (f.m < 0) {
    memcpy(out + 2 * row, d, 2);
  } else {
    Words(out, row).Set(0, octet::LoadU16(d) | uint32_t{octet::LoadU16(m)} << 16);
  }
}

// Codes of four bits: 32 columns, one in each of 32 bytes, at bit `shift`.
void PutNibbles(const Words& words, const uint8_t* bytes, int shift) {
  for (int i = 0; i < 4; ++i) words.Set(i, Squeeze<4>(LoadU64(bytes + 8 * i) >> shift));
}

// Blocks of 32: d, min and fifth bits stand before the codes, 16 bytes whose low nibbles are columns 0..15.
void PackBlock32(int32_t type, const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutScale(f, in, in + 2, row, out);
  in += f.m < 0 ? 2 : 4;
  if (f.high >= 0) {
    Words(out + f.high, row).Set(0, FifthBits(octet::LoadU32(in)));
    in += 4;
  }
  const Words codes(out + f.codes, row);
  if (type == OCTET_Q8_0) {
    const auto even_bytes = [](uint64_t x) {
      x &= 0x00ff00ff00ff00ffu;
      x = (x | x >> 8) & 0x0000ffff0000ffffu;
      return x | x >> 16;
    };
    for (int i = 0; i < 4; ++i) {
      const uint64_t eight = LoadU64(in + 8 * i);
      codes.Set(2 * i, even_bytes(eight));
      codes.Set(2 * i + 1, even_bytes(eight >> 8));
    }
    return;
  }
  for (int i = 0; i < 2; ++i) {
    const uint64_t eight = LoadU64(in + 8 * i);
    codes.Set(i, Squeeze<4>(eight));
    codes.Set(i + 2, Squeeze<4>(eight >> 4));
  }
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
    PutNibbles(Words(out + f.codes + j * 256, row), q + j / 2 * 32, j % 2 * 4);
    if (type == OCTET_Q5_K) {
      uint64_t fifth = 0;
      for (int i = 0; i < 4; ++i) fifth |= Squeeze<1>(LoadU64(high + 8 * i) >> j) << (8 * i);
      Words(out + f.high + j * 64, row).Set(0, FifthBits(static_cast<uint32_t>(fifth)));
    }
  }
  for (int i = 0; i < 2; ++i) {
    Words(out + f.scales, row).Set(i, octet::LoadU32(scales + 4 * i));
    Words(out + f.mins, row).Set(i, octet::LoadU32(mins + 4 * i));
  }
}

void PackQ6K(const uint8_t* in, int row, const TileFormat& f, uint8_t* out) {
  PutScale(f, in + 208, nullptr, row, out);
  for (int i = 0; i < 4; ++i) Words(out + f.scales, row).Set(i, octet::LoadU32(in + 192 + 4 * i));
  for (int j = 0; j < 8; ++j) {
    PutNibbles(Words(out + f.codes + j * 256, row), in + 64 * (j / 4) + 32 * (j % 2), j % 4 / 2 * 4);
    const uint8_t* high = in + 128 + 32 * (j / 4);
    for (int i = 0; i < 2; ++i) {
      const auto pairs = [&](int k) { return Squeeze<2>(LoadU64(high + 16 * i + 8 * k) >> (j % 4 * 2)); };
      Words(out + f.high + j * 128, row).Set(i, UpperBits(static_cast<uint32_t>(pairs(0) | pairs(1) << 16)));
    }
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
