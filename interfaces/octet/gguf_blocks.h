// GGUF weight blocks: sizes, and the float32 values that a row of blocks stands for.
//
// Blocks are read as bytes, so a row may start at any address. Every function has internal linkage and calls no library
// template (see half.h): a backend may compile this header once per instruction set. All products below are exact in
// float32 (11 significant bits of scale, at most 7 of sub-scale, at most 5 of weight), so the values do not depend on
// vectorization or on fused multiply-add. Formats: ggml, ggml-common.h and dequantize_row_* in ggml-quants.c.
#ifndef OCTET_GGUF_BLOCKS_H_
#define OCTET_GGUF_BLOCKS_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "octet/half.h"
#include "octet/tensor.h"

namespace octet {
inline namespace v1 {

static_assert(std::endian::native == std::endian::little, "GGUF blocks are little-endian");

struct GgufBlock {
  int32_t elements;  // weights per block; 0: not a GGUF weight type
  int32_t bytes;
};

static constexpr GgufBlock GgufBlockOf(DType type) {
  switch (type) {
    case DType::kF32:
      return {1, 4};
    case DType::kF16:
    case DType::kBF16:
      return {1, 2};
    case DType::kQ4_0:  // f16 d, 16 bytes of nibbles
      return {32, 18};
    case DType::kQ4_1:  // f16 d, f16 m, 16 bytes of nibbles
      return {32, 20};
    case DType::kQ5_0:  // f16 d, 32 fifth bits, 16 bytes of nibbles
      return {32, 22};
    case DType::kQ5_1:  // f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles
      return {32, 24};
    case DType::kQ8_0:  // f16 d, 32 int8
      return {32, 34};
    case DType::kQ4_K:  // f16 d, f16 dmin, 8 x 6 bits of scale and of min, 128 bytes of nibbles
      return {256, 144};
    case DType::kQ5_K:  // f16 d, f16 dmin, 8 x 6 bits of scale and of min, 256 fifth bits, 128 bytes of nibbles
      return {256, 176};
    case DType::kQ6_K:  // 128 bytes of nibbles, 64 bytes of upper two bits, 16 int8 scales, f16 d
      return {256, 210};
    default:
      return {0, 0};
  }
}

// Bytes of a row of `elements` weights; 0 when the type is not a GGUF weight type or a block would be cut.
static constexpr int64_t GgufRowBytes(DType type, int64_t elements) {
  const GgufBlock block = GgufBlockOf(type);
  if (block.elements == 0 || elements % block.elements != 0) return 0;
  return elements / block.elements * block.bytes;
}

static inline uint16_t LoadU16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

static inline uint32_t LoadU32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

static inline float LoadHalf(const uint8_t* bytes) { return HalfToFloat(LoadU16(bytes)); }

static inline void DequantizeF16(const uint8_t* row, int64_t elements, float* out) {
  for (int64_t i = 0; i < elements; ++i) out[i] = LoadHalf(row + 2 * i);
}

static inline void DequantizeBF16(const uint8_t* row, int64_t elements, float* out) {
  for (int64_t i = 0; i < elements; ++i) out[i] = Bf16ToFloat(LoadU16(row + 2 * i));
}

// w[i] = d * (q[i] - 8); the low nibbles are weights 0..15, the high nibbles 16..31, here and in the next three.
static inline void DequantizeQ4_0(const uint8_t* row, int64_t elements, float* out) {
  for (; elements > 0; elements -= 32, row += 18, out += 32) {
    const float d = LoadHalf(row);
    const uint8_t* q = row + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((q[i] & 15) - 8);
      out[i + 16] = d * static_cast<float>((q[i] >> 4) - 8);
    }
  }
}

// w[i] = d * q[i] + m
static inline void DequantizeQ4_1(const uint8_t* row, int64_t elements, float* out) {
  for (; elements > 0; elements -= 32, row += 20, out += 32) {
    const float d = LoadHalf(row);
    const float m = LoadHalf(row + 2);
    const uint8_t* q = row + 4;
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(q[i] & 15) + m;
      out[i + 16] = d * static_cast<float>(q[i] >> 4) + m;
    }
  }
}

// w[i] = d * (q[i] - 16); bit i of the 32 fifth bits belongs to weight i.
static inline void DequantizeQ5_0(const uint8_t* row, int64_t elements, float* out) {
  for (; elements > 0; elements -= 32, row += 22, out += 32) {
    const float d = LoadHalf(row);
    const uint32_t high = LoadU32(row + 2);
    const uint8_t* q = row + 6;
    for (int i = 0; i < 16; ++i) {
      const int low_weight = (q[i] & 15) | static_cast<int>((high >> i & 1) << 4);
      const int high_weight = (q[i] >> 4) | static_cast<int>((high >> (i + 16) & 1) << 4);
      out[i] = d * static_cast<float>(low_weight - 16);
      out[i + 16] = d * static_cast<float>(high_weight - 16);
    }
  }
}

// w[i] = d * q[i] + m
static inline void DequantizeQ5_1(const uint8_t* row, int64_t elements, float* out) {
  for (; elements > 0; elements -= 32, row += 24, out += 32) {
    const float d = LoadHalf(row);
    const float m = LoadHalf(row + 2);
    const uint32_t high = LoadU32(row + 4);
    const uint8_t* q = row + 8;
    for (int i = 0; i < 16; ++i) {
      const int low_weight = (q[i] & 15) | static_cast<int>((high >> i & 1) << 4);
      const int high_weight = (q[i] >> 4) | static_cast<int>((high >> (i + 16) & 1) << 4);
      out[i] = d * static_cast<float>(low_weight) + m;
      out[i + 16] = d * static_cast<float>(high_weight) + m;
    }
  }
}

// w[i] = d * q[i]
static inline void DequantizeQ8_0(const uint8_t* row, int64_t elements, float* out) {
  for (; elements > 0; elements -= 32, row += 34, out += 32) {
    const float d = LoadHalf(row);
    const uint8_t* q = row + 2;
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(q[i]));
  }
}

// The 6-bit scale and min of sub-block `j` (0..7) out of the 12 packed bytes of Q4_K and Q5_K.
static inline void UnpackScaleMin(const uint8_t* packed, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *min = packed[j + 4] & 63;
  } else {
    *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    *min = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
  }
}

// w[i] = d * scale[i / 32] * q[i] - dmin * min[i / 32]; 32 bytes hold two sub-blocks, low nibbles first. Q5_K has a
// plane of fifth bits before the nibbles: bit j of its byte i belongs to weight i of sub-block j.
template <DType kType>
static inline void DequantizeQ45_K(const uint8_t* row, int64_t elements, float* out) {
  static_assert(kType == DType::kQ4_K || kType == DType::kQ5_K);
  constexpr bool kFifthBits = kType == DType::kQ5_K;
  for (; elements > 0; elements -= 256, row += GgufBlockOf(kType).bytes) {
    const float d = LoadHalf(row);
    const float dmin = LoadHalf(row + 2);
    const uint8_t* high = row + 16;
    const uint8_t* q = kFifthBits ? high + 32 : high;
    const auto fifth = [high](int i, int j) { return kFifthBits ? (high[i] >> j & 1) << 4 : 0; };
    for (int j = 0; j < 8; j += 2, q += 32, out += 64) {
      int scale[2], min[2];
      UnpackScaleMin(row + 4, j, &scale[0], &min[0]);
      UnpackScaleMin(row + 4, j + 1, &scale[1], &min[1]);
      const float d0 = d * static_cast<float>(scale[0]), m0 = dmin * static_cast<float>(min[0]);
      const float d1 = d * static_cast<float>(scale[1]), m1 = dmin * static_cast<float>(min[1]);
      for (int i = 0; i < 32; ++i) out[i] = d0 * static_cast<float>((q[i] & 15) | fifth(i, j)) - m0;
      for (int i = 0; i < 32; ++i) out[i + 32] = d1 * static_cast<float>((q[i] >> 4) | fifth(i, j + 1)) - m1;
    }
  }
}

// w[i] = d * scale[i / 16] * (q[i] - 32); each half of a block holds 128 weights as four runs of 32.
static inline void DequantizeQ6_K(const uint8_t* row, int64_t elements, float* out) {
  for (; elements > 0; elements -= 256, row += 210) {
    const float d = LoadHalf(row + 208);
    for (int half = 0; half < 2; ++half, out += 128) {
      const uint8_t* low = row + 64 * half;
      const uint8_t* high = row + 128 + 32 * half;
      const uint8_t* scales = row + 192 + 8 * half;
      float s[8];
      for (int i = 0; i < 8; ++i) s[i] = d * static_cast<float>(static_cast<int8_t>(scales[i]));
      for (int k = 0; k < 2; ++k) {
        for (int i = 16 * k; i < 16 * k + 16; ++i) {
          out[i] = s[k] * static_cast<float>(((low[i] & 15) | (high[i] & 3) << 4) - 32);
          out[i + 32] = s[k + 2] * static_cast<float>(((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4) - 32);
          out[i + 64] = s[k + 4] * static_cast<float>(((low[i] >> 4) | (high[i] >> 4 & 3) << 4) - 32);
          out[i + 96] = s[k + 6] * static_cast<float>(((low[i + 32] >> 4) | high[i] >> 6 << 4) - 32);
        }
      }
    }
  }
}

// Writes out[elements] from GgufRowBytes(type, elements) bytes at `row`. False, with nothing written, when the type is
// not a GGUF weight type or `elements` is negative or would cut a block.
static inline bool DequantizeRow(DType type, const void* row, int64_t elements, float* out) {
  const GgufBlock block = GgufBlockOf(type);
  if (block.elements == 0 || elements < 0 || elements % block.elements != 0) return false;
  const uint8_t* bytes = static_cast<const uint8_t*>(row);
  switch (type) {
    case DType::kF32:
      if (elements > 0) std::memcpy(out, bytes, static_cast<size_t>(elements) * sizeof(float));
      return true;
    case DType::kF16:
      DequantizeF16(bytes, elements, out);
      return true;
    case DType::kBF16:
      DequantizeBF16(bytes, elements, out);
      return true;
    case DType::kQ4_0:
      DequantizeQ4_0(bytes, elements, out);
      return true;
    case DType::kQ4_1:
      DequantizeQ4_1(bytes, elements, out);
      return true;
    case DType::kQ5_0:
      DequantizeQ5_0(bytes, elements, out);
      return true;
    case DType::kQ5_1:
      DequantizeQ5_1(bytes, elements, out);
      return true;
    case DType::kQ8_0:
      DequantizeQ8_0(bytes, elements, out);
      return true;
    case DType::kQ4_K:
      DequantizeQ45_K<DType::kQ4_K>(bytes, elements, out);
      return true;
    case DType::kQ5_K:
      DequantizeQ45_K<DType::kQ5_K>(bytes, elements, out);
      return true;
    case DType::kQ6_K:
      DequantizeQ6_K(bytes, elements, out);
      return true;
    default:
      return false;
  }
}

}  // namespace v1
}  // namespace octet

#endif  // OCTET_GGUF_BLOCKS_H_
