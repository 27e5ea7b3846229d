#!/usr/bin/env python3
"""Writes tests/data/gguf_blocks/<TYPE>.bin: rows of random GGUF blocks and the floats that Python's gguf makes of them.

Layout, little-endian: int32 elements, int32 bytes, the block bytes, the elements as float32.
half.bin: int32 count, then count records {float32 input, float16 bits, bfloat16 bits} as numpy and gguf round them.
"""
import os
import struct

import numpy as np
import gguf
from gguf.constants import GGMLQuantizationType as T, GGML_QUANT_SIZES

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf_blocks")
F16_FIELDS = {  # offsets of the f16 scales in a block: random bits there would mostly be absurd, and some NaN
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def blocks(rng, kind):
    per_block, size = GGML_QUANT_SIZES[kind]
    count = 2048 // per_block if per_block > 1 else 300
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in F16_FIELDS.get(kind, []):
        scale = rng.normal(0, 0.05, count).astype(np.float16)
        scale[0] = np.float16(6e-8)   # the smallest subnormal
        scale[1] = np.float16(65504)  # the largest
        scale[2] = np.float16(-0.0)
        raw[:, offset:offset + 2] = scale.view(np.uint8).reshape(count, 2)
    if kind == T.F32:
        raw = rng.normal(0, 1, count).astype(np.float32).view(np.uint8).reshape(count, 4)
    if kind == T.BF16:
        raw = rng.normal(0, 1, count).astype(np.float32).view(np.uint16)[1::2].copy().view(np.uint8).reshape(count, 2)
    if kind == T.F16:
        raw = rng.normal(0, 1, count).astype(np.float16).view(np.uint8).reshape(count, 2)
    return raw.reshape(-1), per_block * count


def main():
    os.makedirs(OUT, exist_ok=True)
    rng = np.random.default_rng(20)
    for kind in [T.F32, T.F16, T.BF16, *F16_FIELDS]:
        raw, elements = blocks(rng, kind)
        values = np.asarray(gguf.dequantize(raw, kind), dtype=np.float32).reshape(-1)
        assert values.size == elements and np.isfinite(values).all(), kind
        with open(os.path.join(OUT, kind.name + ".bin"), "wb") as f:
            f.write(struct.pack("<ii", elements, raw.size) + raw.tobytes() + values.tobytes())

    special = np.array([0, 1, 0x33000000, 0x33000001, 0x32ffffff, 0x33800000, 0x33c00000, 0x387fc000, 0x387fdfff,
                        0x387fe000, 0x387fe001, 0x387fffff, 0x38800000, 0x3f801000, 0x3f803000, 0x3f801001,
                        0x477fdfff, 0x477fe000, 0x477fefff, 0x477ff000, 0x47800000, 0x3f808000, 0x3f818000, 0x3f808001,
                        0x7f7fffff, 0x7f7f7fff, 0x7f800000, 0x00000001, 0x007fffff, 0x00008000, 0x00018000],
                       dtype=np.uint32)
    # Exponents around and outside half's range, each with random mantissas and with exact ties.
    exponents = np.repeat(np.arange(95, 150, dtype=np.uint32), 16)
    mantissas = rng.integers(0, 1 << 23, exponents.size, dtype=np.uint32)
    mantissas[::2] &= np.uint32(0x7ff000)
    bits = np.concatenate([special, (exponents << np.uint32(23)) | mantissas])
    bits = np.concatenate([bits, bits | np.uint32(0x80000000)])
    values = bits.view(np.float32)
    with np.errstate(over="ignore"):
        half = values.astype(np.float16).view(np.uint16)
    bf16 = gguf.quantize(values, T.BF16).view(np.uint16).reshape(-1)
    table = np.rec.fromarrays([values, half, bf16], dtype=[("x", "<f4"), ("h", "<u2"), ("b", "<u2")])
    with open(os.path.join(OUT, "half.bin"), "wb") as f:
        f.write(struct.pack("<i", len(table)) + table.tobytes())


if __name__ == "__main__":
    main()
