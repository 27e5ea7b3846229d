#!/usr/bin/env python3
"""Decode attention over octet's INT8 cache beside the flash attention of ik_llama.cpp over q8_0 and f16 rows, in turns.

usage: compare_attention.py --ik-llama FOLDER [--rounds 3] [--threads 2]

FOLDER is a checkout of ik_llama.cpp that was built in FOLDER/build (libggml is what is used of it). Shapes are those of
cpu_bench at 8192 keys. The peer's result is compared with double precision on the values of its own cache first: where it
is off, its speed does not count.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = 8192
SHAPES = [(2, 2, 64), (8, 2, 64), (14, 2, 64), (16, 2, 64), (2, 2, 128), (8, 2, 128), (16, 2, 128), (4, 1, 256)]  # q heads, KV heads, head dim
ERROR = 0.02  # 8 bits of q and of weights leave a few thousandths


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def build(folder, out):
    libraries = folder / "build/ggml/src"
    run("c++", "-std=c++20", "-O2", "-I", folder / "ggml/include", ROOT / "tests/perf/ggml_attention.cc", "-L", libraries, "-lggml",
        f"-Wl,-rpath,{libraries}", "-o", out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ik-llama", type=Path, required=True)
    parser.add_argument("--bench", type=Path, default=ROOT / "build/release/bin/cpu_bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    ours = {shape: [] for shape in SHAPES}
    peers = {(shape, cache): [] for shape in SHAPES for cache in ("q8_0", "f16")}
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ggml_attention"
        build(args.ik_llama.resolve(), program)
        for _ in range(args.rounds):
            for line in run(args.bench, args.threads, "decode").splitlines():
                found = re.match(rf"attention int8 heads +(\d+)/(\d+) dim +(\d+) queries +1 keys +{KEYS}: +([\d.]+) us", line)
                if found and (shape := tuple(map(int, found.groups()[:3]))) in ours:
                    ours[shape].append(float(found[4]))
            for shape, cache in peers:
                time, error = map(float, run(program, args.threads, *shape, KEYS, cache).split())
                peers[shape, cache].append(time)
                errors[shape, cache] = max(error, errors.get((shape, cache), 0))

    print(f"{KEYS} keys, microseconds a layer, medians of {args.rounds}; ratios are the peer's time over octet's")
    for shape in SHAPES:
        if not ours[shape]:
            sys.exit(f"{args.bench} printed no line for heads {shape[0]}/{shape[1]}, head dim {shape[2]}")
        time = statistics.median(ours[shape])
        cells = []
        for cache in ("q8_0", "f16"):
            peer, error = statistics.median(peers[shape, cache]), errors[shape, cache]
            ratio = f"ratio {peer / time:.2f}" if error <= ERROR else "wrong, does not count"
            cells.append(f"ik_llama.cpp {cache} {peer:8.1f} (error {error:.1e}): {ratio}")
        print(f"group {shape[0] // shape[1]}, head dim {shape[2]:3}: octet INT8 {time:8.1f}; {'; '.join(cells)}")


if __name__ == "__main__":
    main()
