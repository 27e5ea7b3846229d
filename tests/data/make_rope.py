#!/usr/bin/env python3
"""Writes rope.json: RoPE frequencies and attention factors of stretched models, for tests/unit/rope_test.cc.

The formulas are those that transformers publishes for rope_type yarn and llama3 (modeling_rope_utils.py), written down
anew in numpy and float64; the cases are the settings of released models and a few beside them.
"""

import json
import math
from pathlib import Path

import numpy as np


def plain(base, dim):
    return 1.0 / base ** (np.arange(0, dim, 2, dtype=np.float64) / dim)


def yarn(base, dim, factor, original, beta_fast=32.0, beta_slow=1.0):
    def correction_dim(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction_dim(beta_fast)), 0)
    high = min(math.ceil(correction_dim(beta_slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low if high != low else 0.001), 0, 1)
    extrapolated = plain(base, dim)
    frequency = extrapolated / factor * ramp + extrapolated * (1 - ramp)
    return frequency, 0.1 * math.log(factor) + 1.0


def llama3(base, dim, factor, original, low_freq_factor=1.0, high_freq_factor=4.0):
    frequency = plain(base, dim)
    wavelength = 2 * math.pi / frequency
    long_wave, short_wave = original / low_freq_factor, original / high_freq_factor
    scaled = np.where(wavelength > long_wave, frequency / factor, frequency)
    smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
    mixed = (1 - smooth) * frequency / factor + smooth * frequency
    between = ~(wavelength < short_wave) & ~(wavelength > long_wave)
    return np.where(between, mixed, scaled), 1.0


CASES = [
    ("qwen2.5 at 128k tokens", "yarn", yarn, dict(base=1e6, dim=128, factor=4.0, original=32768)),
    ("small yarn", "yarn", yarn, dict(base=1e4, dim=64, factor=16.0, original=4096)),
    ("other betas", "yarn", yarn, dict(base=1e4, dim=32, factor=2.5, original=2048, beta_fast=16.0, beta_slow=2.0)),
    ("short context", "yarn", yarn, dict(base=1e4, dim=16, factor=4.0, original=64)),
    ("llama 3.1", "llama3", llama3, dict(base=5e5, dim=128, factor=8.0, original=8192)),
    ("llama 3.2", "llama3", llama3, dict(base=5e5, dim=64, factor=32.0, original=8192)),
    ("other bands", "llama3", llama3,
     dict(base=1e4, dim=32, factor=3.0, original=2048, low_freq_factor=2.0, high_freq_factor=9.0)),
]


def main():
    cases = []
    for name, kind, formula, settings in CASES:
        frequency, magnitude = formula(**settings)
        cases.append({"name": name, "kind": kind, **settings, "magnitude": magnitude,
                      "frequency": [float(f"{f:.12e}") for f in frequency]})
    path = Path(__file__).with_name("rope.json")
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
