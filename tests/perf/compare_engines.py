#!/usr/bin/env python3
"""octet beside llama.cpp and ik_llama.cpp on the same model, depths and threads.

usage: compare_engines.py -m MODEL.gguf [--llama-cpp FOLDER] [--ik-llama FOLDER] [--depths 0,7168] [--rounds 3] ...

FOLDER is where a build of the engine has its programs (build/bin): llama-bench, llama-perplexity and llama-completion of
llama.cpp; llama-sweep-bench, llama-perplexity and llama-cli of ik_llama.cpp. build_llama_cpp.sh builds the first.
The engines take turns, round by round, so that a machine that slows down slows all; printed are medians, the peers' best
cache and octet's ratio to it. A peer's perplexity on a text is compared with octet's first, for every cache, in steps as
long as the prompts that are timed and in steps of a few tokens: the speed of prompts or decoding whose perplexity is off
is printed in parentheses and does not count. Peak memory and the time from the start of a process to its first byte of
text follow, from a file cache that is warm.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/integration"))
from surroundings import clean_env  # noqa: E402

PERPLEXITY_TOLERANCE = 1.15  # windows are scored a little differently; what is wrong is off by far more
FEW_TOKENS = 16  # of a step whose result stands for decoding: one after the other would take long
MEMORY_CONTEXT = 8192


def output_of(command):
    # Some write logs where they are started.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(c) for c in command], capture_output=True, env=clean_env(), cwd=folder)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


class Engine:
    """Subclasses have name, caches, rates(cache), perplexity(cache, step) and run(cache, *more): a command that prints text."""

    def short_run(self, cache):
        return self.run(cache, "-p", "The", "-n", 1)

    def memory_run(self, cache, prompt):
        return self.run(cache, "-f", prompt, "-n", 8)


class Octet(Engine):
    name = "octet"

    def __init__(self, args):
        self.args, self.program = args, args.octet
        self.caches, self.perplexities = ["int8"], {}

    def _bench(self, cache, depths, input_len, output_len):
        document = json.loads(output_of(
            [self.program, "bench", "-m", self.args.model, "--threads", self.args.threads, "--compare", cache, "--json",
             "--depth", ",".join(map(str, depths)), "--input-len", input_len, "--output-len", output_len,
             "--repeats", 1, "--warm-up", 1])[0])
        return {case["depth"]: case for case in document["cases"]}

    def rates(self, cache):
        """{("prompt" or "decode", depth): tokens/s}"""
        prompts = self._bench(cache, self.args.depths, self.args.prompt, 1)
        # Decoding starts behind the prompt: one token of it, and the rest as depth.
        behind = {depth: max(0, depth - 1) for depth in self.args.depths}
        decodes = self._bench(cache, sorted(set(behind.values())), 1, self.args.output)
        rates = {("prompt", d): case["prefill_tokens_per_s"]["median"] for d, case in prompts.items()}
        rates |= {("decode", d): decodes[b]["decode_tokens_per_s"]["median"] for d, b in behind.items()}
        return rates

    def perplexity(self, cache, _):
        if cache not in self.perplexities:  # the same in steps of any length
            document = json.loads(output_of(
                [self.program, "quality", "-m", self.args.model, "-f", self.args.text, "--tokens", 1024, "--window", 512,
                 "--caches", cache, "--json"])[0])
            self.perplexities[cache] = document["caches"][0]["perplexity"]
        return self.perplexities[cache]

    def run(self, cache, *more):
        return [self.program, "run", "-m", self.args.model, "--temperature", 0, "--threads", self.args.threads,
                "--kv-cache-dtype", cache, "--max-model-len", MEMORY_CONTEXT, *more]


class Peer(Engine):
    """What both peers share."""

    def __init__(self, args, folder, caches):
        self.args, self.folder, self.caches = args, Path(folder), caches

    def perplexity(self, cache, step):
        out, err = output_of([self.folder / "llama-perplexity", "-m", self.args.model, "-f", self.args.text, "-c", 512,
                              "-b", 512, "-ub", step, "--chunks", 2, "-t", self.args.threads, "-fa", "on",
                              "-ctk", cache, "-ctv", cache])
        found = re.search(r"Final estimate: PPL(?: over \d+ chunks for n_ctx=\d+)? = ([0-9.naif]+)", out + err)
        return float(found.group(1)) if found else float("nan")

    def run(self, cache, *more):
        return [self.folder / self.text_program, "-m", self.args.model, "--temp", 0, "-t", self.args.threads, "-fa", "on",
                "-c", MEMORY_CONTEXT, "-ctk", cache, "-ctv", cache, *self.run_options, *more]


class LlamaCpp(Peer):
    name, text_program, run_options = "llama.cpp", "llama-completion", ["-no-cnv", "--no-display-prompt"]

    def rates(self, cache):
        rows = json.loads(output_of(
            [self.folder / "llama-bench", "-m", self.args.model, "-t", self.args.threads, "-fa", 1, "-ctk", cache, "-ctv",
             cache, "-p", self.args.prompt, "-n", self.args.output, "-d", ",".join(map(str, self.args.depths)), "-r", 1,
             "-o", "json"])[0])
        return {("prompt" if row["n_prompt"] else "decode", row["n_depth"]): row["avg_ts"] for row in rows}


class IkLlama(Peer):
    name, text_program, run_options = "ik_llama.cpp", "llama-cli", ["--no-display-prompt"]

    def rates(self, cache):
        # The sweep goes up in steps of the prompt's length; rows that are wanted are measured.
        step = self.args.prompt
        wanted = sorted({d // step for d in self.args.depths})
        stride = max(1, wanted[1] if wanted[0] == 0 and len(wanted) == 2 else 1)
        out, err = output_of(
            [self.folder / "llama-sweep-bench", "-m", self.args.model, "-t", self.args.threads, "-fa", "on", "-ctk", cache,
             "-ctv", cache, "-c", (wanted[-1] + 1) * step, "-b", step, "-ub", step, "-n", self.args.output,
             "--sweep-stride", stride, "--output-format", "jsonl", *self.args.ik_options.split()])
        rates = {}
        for line in (out + err).splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                for depth in self.args.depths:
                    if depth == row["n_kv"]:
                        rates[("prompt", depth)] = row["speed_pp"]
                        rates[("decode", depth)] = row["speed_tg"]
        return rates


def peak_memory(command):
    """MiB."""
    child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, env=clean_env(), cwd=tempfile.gettempdir())
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {status}")
    return usage.ru_maxrss / 1024


def first_byte(command):
    """Seconds from the start of the process to the first byte of its text."""
    start = time.monotonic()
    child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, env=clean_env(), cwd=tempfile.gettempdir())
    if not child.stdout.read(1):
        sys.exit(f"{' '.join(map(str, command))}: no text")
    seconds = time.monotonic() - start
    child.stdout.read()
    child.wait()
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--octet", default=ROOT / "build/release/bin/octet")
    parser.add_argument("--llama-cpp", metavar="FOLDER")
    parser.add_argument("--llama-cpp-caches", type=lambda s: s.split(","), default=["f16", "q8_0"])
    parser.add_argument("--ik-llama", metavar="FOLDER")
    parser.add_argument("--ik-llama-caches", type=lambda s: s.split(","), default=["f16", "q8_0"])
    parser.add_argument("--ik-options", default="", help="more options for llama-sweep-bench, such as '-rtr'")
    parser.add_argument("--depths", type=lambda s: [int(d) for d in s.split(",")], default=[0, 7168])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text", default=ROOT / "tests/data/text/english.txt")
    parser.add_argument("--json", action="store_true", help="every measured value, on stdout")
    args = parser.parse_args()
    if args.prompt > 512:
        parser.error("--prompt is at most 512: perplexities are those of windows of 512 tokens")
    if args.ik_llama and any(depth % args.prompt for depth in args.depths):
        parser.error("with --ik-llama, --depths are multiples of --prompt: its sweep goes in such steps")
    for name in ("model", "octet", "text", "llama_cpp", "ik_llama"):
        if getattr(args, name):
            setattr(args, name, Path(getattr(args, name)).resolve())
    engines = [Octet(args)]
    if args.llama_cpp:
        engines.append(LlamaCpp(args, args.llama_cpp, args.llama_cpp_caches))
    if args.ik_llama:
        engines.append(IkLlama(args, args.ik_llama, args.ik_llama_caches))
    subjects = [(engine, cache) for engine in engines for cache in engine.caches]

    steps = {"prompt": args.prompt, "decode": FEW_TOKENS}
    perplexities = {(what, e.name, c): e.perplexity(c, step) for what, step in steps.items() for e, c in subjects}
    right = {s: p <= perplexities[s[0], "octet", "int8"] * PERPLEXITY_TOLERANCE for s, p in perplexities.items()}
    measured, memory, start = {}, {}, {}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
        prompt.write(Path(args.text).read_text()[:20000])
        prompt.flush()
        for round_number in range(args.rounds):
            for engine, cache in subjects:
                key = (engine.name, cache)
                print(f"round {round_number + 1} of {args.rounds}: {engine.name} {cache}", file=sys.stderr)
                for what, rate in engine.rates(cache).items():
                    measured.setdefault(what, {}).setdefault(key, []).append(rate)
                if round_number == 0:  # it does not change
                    memory[key] = [peak_memory(engine.memory_run(cache, prompt.name))]
                start.setdefault(key, []).append(first_byte(engine.short_run(cache)))

    def table(title, what, values, unit, best_of):
        medians = {key: statistics.median(v) for key, v in values.items()}
        ours = medians["octet", "int8"]
        print(f"{title:<24}", end="")
        for engine, cache in subjects:
            value = medians.get((engine.name, cache))
            text = "-" if value is None else f"{value:.{unit}f}"
            print(f"{text if right[what, engine.name, cache] else f'({text})':>20}", end="")
        for engine in engines[1:]:
            peers = [v for (name, cache), v in medians.items() if name == engine.name and right[what, name, cache]]
            print(f"{ours / best_of(peers):>20.2f}" if peers else f"{'-':>20}", end="")
        print()

    heads = [f"{e.name} {c}" for e, c in subjects] + [f"octet / {e.name}" for e in engines[1:]]
    print(f"{'':<24}" + "".join(f"{h:>20}" for h in heads))
    for what, step in steps.items():
        print(f"{f'perplexity, steps of {step}':<24}" + "".join(f"{perplexities[what, e.name, c]:>20.3f}" for e, c in subjects))
    for what in ("prompt", "decode"):
        length = args.prompt if what == "prompt" else args.output
        for depth in args.depths:
            table(f"{what} {length} at {depth}, tok/s", what, measured[what, depth], 1, max)
    table(f"peak MiB, context {MEMORY_CONTEXT}", "decode", memory, 0, min)
    table("first byte, s", "decode", start, 3, min)
    if args.json:
        rows = [{"what": what[0], "depth": what[1], "engine": key[0], "cache": key[1], "tokens_per_s": values}
                for what, by in measured.items() for key, values in by.items()]
        print(json.dumps({"model": str(args.model), "rates": rows,
                          "perplexity": [{"steps": steps[w], "engine": e, "cache": c, "value": p} for (w, e, c), p in perplexities.items()],
                          "peak_mib": [{"engine": e, "cache": c, "values": v} for (e, c), v in memory.items()],
                          "first_byte_s": [{"engine": e, "cache": c, "values": v} for (e, c), v in start.items()]}, indent=2))


if __name__ == "__main__":
    main()
