#!/usr/bin/env python3
"""Greedy text of a real model on a device, f32 cache and exact compute, against what another program recorded.

usage: oracle_device_test.py BUILD_FOLDER MODEL_FILE ORACLE --device DEVICE
ORACLE is a file of tests/data/oracles, whose README.md says how near a run must come: the likeliest tokens of the first
step keep their distances, and greedy ids are the same up to the first step whose recorded top two are closer than 0.01.
Exit code 77, with the reason, where the device or the model is not here.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from surroundings import clean_env, model_path

DATA = Path(__file__).resolve().parent.parent / "data/oracles"
SKIPPED = 77
UNAVAILABLE = 3  # octet's exit code
LOGIT_TOLERANCE = 5e-3
TIE = 0.01


def common(ids, step_tops):
    """How many steps must agree: those before the first near tie."""
    for step, tops in enumerate(step_tops[:len(ids)]):
        if tops[0][1] - tops[1][1] < TIE:
            return step
    return len(ids)


def check(item, document):
    expected, failures = item["float32"], []
    if document["prompt_ids"] != item["prompt_ids"]:
        failures.append("the prompt's ids differ")
    steps = common(expected["ids"], expected["top5"])
    if document["ids"][:steps] != expected["ids"][:steps]:
        failures.append(f"ids {document['generated_ids'][:steps]} instead of {expected['ids'][:steps]}")
    first = dict(map(tuple, document["logprobs"][0]))
    (best, logit), *others = expected["first_top10"]
    for token, other in others:
        if token not in first or abs((first[token] - first[best]) - (other - logit)) > 2 * LOGIT_TOLERANCE:
            failures.append(f"first step: token {token} is {first.get(token)} beside {first.get(best)}, not {other - logit:.4f} from it")
    return steps, failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("model")
    parser.add_argument("oracle")
    parser.add_argument("--device", required=True)
    args = parser.parse_args()
    model = model_path(args.model)
    if not model.exists():
        print(f"skipped: {model} is not here; scripts/fetch-model gets it")
        return SKIPPED

    failed = compared = 0
    for item in json.loads((DATA / args.oracle).read_text())["items"]:
        if "float32" not in item:
            continue
        done = subprocess.run(
            [args.build / "bin/octet", "run", "-m", model, "--device", args.device, "--kv-cache-dtype", "f32", "--compute", "exact", "-p",
             item["prompt"], "-n", str(len(item["float32"]["ids"])), "--ignore-eos", "--json", "--logprobs", "10"],
            capture_output=True, text=True, env=clean_env())
        if done.returncode == UNAVAILABLE:
            print(f"skipped: {done.stderr.strip()}")
            return SKIPPED
        if done.returncode != 0:
            print(f"FAILED: {item['name']}: exit code {done.returncode}: {done.stderr.strip()}")
            return 1
        steps, failures = check(item, json.loads(done.stdout))
        print(f"{item['name']:<14} {steps} steps: {'; '.join(failures) or 'the same'}")
        compared += steps
        failed += bool(failures)
    if compared == 0:
        print("FAILED: nothing was compared")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
