#include "tests/reference/gguf.h"

#include <utility>

#include "tests/reference/float_types.h"

namespace octet::reference {
namespace {

double Half(const uint8_t* at) { return LoadFloat(DType::kF16, at); }
void SetHalf(uint8_t* at, double x) { StoreFloat(DType::kF16, static_cast<float>(x), at); }

// The nibble of element j of 32 that share 16 bytes: the low nibbles are elements 0..15, the high ones 16..31.
int Nibble32(const uint8_t* bytes, int j) { return j < 16 ? bytes[j] & 15 : bytes[j - 16] >> 4; }
// Bit j of a little-endian word.
int Bit(const uint8_t* bytes, int j) { return bytes[j / 8] >> (j % 8) & 1; }

// Blocks of 32: [f16 d] [f16 m, the _1 types] [u32 fifth bits, the Q5 types] [16 bytes of nibbles].
double Q4_0(const uint8_t* b, int j) { return Half(b) * (Nibble32(b + 2, j) - 8); }
double Q4_1(const uint8_t* b, int j) { return Half(b) * Nibble32(b + 4, j) + Half(b + 2); }
double Q5_0(const uint8_t* b, int j) { return Half(b) * ((Nibble32(b + 6, j) | Bit(b + 2, j) << 4) - 16); }
double Q5_1(const uint8_t* b, int j) { return Half(b) * (Nibble32(b + 8, j) | Bit(b + 4, j) << 4) + Half(b + 2); }
double Q8_0(const uint8_t* b, int j) { return Half(b) * static_cast<int8_t>(b[2 + j]); }

// Q4_K and Q5_K: 8 sub-blocks of 32 with a 6-bit scale and a 6-bit minimum each, packed in 12 bytes: sub-blocks 0..3 in
// the low six bits of bytes 0..3 (scale) and 4..7 (minimum); 4..7 have their low four bits in the nibbles of
// bytes 8..11 and their top two bits in the top of bytes 0..3 and 4..7.
std::pair<int, int> ScaleAndMinimum(const uint8_t* packed, int sub) {
  if (sub < 4) return {packed[sub] & 63, packed[sub + 4] & 63};
  const int i = sub - 4;
  return {(packed[8 + i] & 15) | packed[i] >> 6 << 4, packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4};
}
// 64 elements share 32 bytes: the low nibbles are the even sub-block, the high ones the odd.
int Nibble256(const uint8_t* bytes, int j) {
  const int byte = bytes[j / 64 * 32 + j % 32];
  return j / 32 % 2 == 0 ? byte & 15 : byte >> 4;
}
// [f16 d] [f16 dmin] [12 bytes of scales] [128 bytes of nibbles]
double Q4_K(const uint8_t* b, int j) {
  const auto [scale, minimum] = ScaleAndMinimum(b + 4, j / 32);
  return Half(b) * scale * Nibble256(b + 16, j) - Half(b + 2) * minimum;
}
// [f16 d] [f16 dmin] [12 bytes of scales] [32 bytes: bit s of byte l is the fifth bit of element l of sub-block s]
// [128 bytes of nibbles]
double Q5_K(const uint8_t* b, int j) {
  const auto [scale, minimum] = ScaleAndMinimum(b + 4, j / 32);
  const int code = Nibble256(b + 48, j) | (b[16 + j % 32] >> (j / 32) & 1) << 4;
  return Half(b) * scale * code - Half(b + 2) * minimum;
}
// [128 bytes: low four bits] [64 bytes: high two bits] [16 signed scales, one per 16 elements] [f16 d]. Each half of
// 128 elements has 64 low bytes and 32 high bytes; its quarters of 32 take the low nibbles of the first and second 32
// low bytes, then the high nibbles of the same, and the bit pairs of the high bytes from the lowest up.
double Q6_K(const uint8_t* b, int j) {
  const int half = j / 128, quarter = j % 128 / 32, l = j % 32;
  const int low_byte = b[half * 64 + quarter % 2 * 32 + l];
  const int low = quarter < 2 ? low_byte & 15 : low_byte >> 4;
  const int high = b[128 + half * 32 + l] >> (2 * quarter) & 3;
  const int scale = static_cast<int8_t>(b[192 + j / 16]);
  return Half(b + 208) * scale * ((low | high << 4) - 32);
}

}  // namespace

BlockShape BlockOf(DType type) {
  switch (type) {
    case DType::kF32:
      return {1, 4};
    case DType::kF16:
    case DType::kBF16:
      return {1, 2};
    case DType::kQ4_0:
      return {32, 18};
    case DType::kQ4_1:
      return {32, 20};
    case DType::kQ5_0:
      return {32, 22};
    case DType::kQ5_1:
      return {32, 24};
    case DType::kQ8_0:
      return {32, 34};
    case DType::kQ4_K:
      return {256, 144};
    case DType::kQ5_K:
      return {256, 176};
    case DType::kQ6_K:
      return {256, 210};
    default:
      return {};
  }
}

double WeightElement(DType type, const uint8_t* row, int64_t index) {
  const BlockShape shape = BlockOf(type);
  const uint8_t* block = row + index / shape.elements * shape.bytes;
  const int j = static_cast<int>(index % shape.elements);
  switch (type) {
    case DType::kQ4_0:
      return Q4_0(block, j);
    case DType::kQ4_1:
      return Q4_1(block, j);
    case DType::kQ5_0:
      return Q5_0(block, j);
    case DType::kQ5_1:
      return Q5_1(block, j);
    case DType::kQ8_0:
      return Q8_0(block, j);
    case DType::kQ4_K:
      return Q4_K(block, j);
    case DType::kQ5_K:
      return Q5_K(block, j);
    case DType::kQ6_K:
      return Q6_K(block, j);
    default:
      return LoadFloat(type, block);
  }
}

std::vector<uint8_t> RandomWeightRow(DType type, int64_t columns, double size, Random& random) {
  const BlockShape shape = BlockOf(type);
  std::vector<uint8_t> row(static_cast<size_t>(columns / shape.elements * shape.bytes));
  for (uint8_t& byte : row) byte = static_cast<uint8_t>(random.Next());
  for (size_t at = 0; at < row.size(); at += static_cast<size_t>(shape.bytes)) {
    uint8_t* b = &row[at];
    const double d = size * (0.5 + random.Uniform()) * (random.Next() % 2 == 0 ? 1 : -1);
    switch (type) {
      case DType::kQ4_0:
        SetHalf(b, d / 8);
        break;
      case DType::kQ5_0:
        SetHalf(b, d / 16);
        break;
      case DType::kQ8_0:
        SetHalf(b, d / 128);
        break;
      case DType::kQ4_1:
      case DType::kQ5_1:
        SetHalf(b, d / (type == DType::kQ4_1 ? 8 : 16));
        SetHalf(b + 2, -d);
        break;
      case DType::kQ4_K:
      case DType::kQ5_K:
        SetHalf(b, d / (32 * (type == DType::kQ4_K ? 8 : 16)));
        SetHalf(b + 2, d / 32);
        break;
      case DType::kQ6_K:
        SetHalf(b + 208, d / (64 * 32));
        break;
      default:
        StoreFloat(type, static_cast<float>(size) * random.Normal(), b);
    }
  }
  return row;
}

}  // namespace octet::reference
