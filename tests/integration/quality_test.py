#!/usr/bin/env python3
"""Holds the INT8 cache to its bounds on a real model and text, by octet quality.

usage: quality_test.py BUILD_FOLDER MODEL_FILE TEXT --tokens N --max-kl X --min-top1 Y
       [--times-below-group32 T] [--beside CACHES]
MODEL_FILE is looked for where scripts/fetch-model puts it (exit code 77 where it is absent), TEXT under tests/data.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from surroundings import model_path

DATA = Path(__file__).resolve().parent.parent / "data"
SKIPPED = 77


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--max-kl", required=True)
    parser.add_argument("--min-top1", required=True)
    parser.add_argument("--times-below-group32", type=float, default=1.0)
    parser.add_argument("--beside", default="", help="caches that are measured and printed only")
    args = parser.parse_args()
    model = model_path(args.model)
    if not model.exists():
        print(f"skipped: {model} is not here; scripts/fetch-model gets it")
        return SKIPPED

    window = min(2048, args.tokens)
    wanted = ["int8", "int8:group32"] + [cache for cache in args.beside.split(",") if cache]
    command = [os.path.join(args.build, "bin", "octet"), "quality", "-m", model, "-f", str(DATA / args.text), "--json",
               "--compute", "exact", "--tokens", str(args.tokens), "--window", str(window), "--against", "f32",
               "--caches", ",".join(wanted), "--max-kl", args.max_kl, "--min-top1", args.min_top1]
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        print(f"octet quality ended with exit code {done.returncode} and without a document")
        return 1
    document = json.loads(done.stdout)
    caches = {cache["cache"]: cache for cache in document["caches"]}
    print(f"{document['scored_tokens']} scored tokens, {time.monotonic() - start:.0f} s")
    for name, cache in caches.items():
        print(f"{name:<14} mean KL {cache['mean_kl']:.2e} +- {cache['standard_error']:.1e}, top-1 "
              f"{100 * cache['top1_agreement']:.2f} %, perplexity {cache['perplexity']:.4f}")

    windows = -(-args.tokens // window)
    failures = []
    if document["scored_tokens"] != args.tokens - windows:
        failures.append(f"{document['scored_tokens']} tokens were scored, not {args.tokens - windows}")
    if done.returncode != 0:
        failures.append(f"octet quality ended with exit code {done.returncode}: a bound does not hold")
    if caches["f32"]["mean_kl"] != 0 or caches["f32"]["top1_agreement"] != 1:
        failures.append("the reference differs from itself")
    ours, group32 = caches["int8"]["mean_kl"], caches["int8:group32"]["mean_kl"]
    if not 0 < ours <= group32 / args.times_below_group32:
        failures.append(f"int8 has {ours:.2e}, and groups of 32 have {group32:.2e}: not {args.times_below_group32:g} "
                        "times below")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
