#!/usr/bin/env python3
"""The CUDA backend's library: loads, and where there is a GPU passes the kit; where there is none, says what is missing.

usage: cuda_test.py BUILD_FOLDER      exit code 77 where the backend was not built
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from surroundings import clean_env

SKIPPED = 77
UNAVAILABLE = 3  # octet's exit code
REASONS = ("no NVIDIA driver: ", "the NVIDIA driver supports CUDA ", "the NVIDIA driver finds no GPU", "this build has code for ")


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=clean_env())


def main():
    build = Path(sys.argv[1])
    library = build / "lib/octet/backends/liboctet_backend_cuda.so"
    if not library.exists():
        print("skipped: the CUDA backend was not built; configure says why")
        return SKIPPED
    info = run(build / "bin/octet", "info")
    found = re.search(r"^cuda +\S+ +\S+ +(ready|unavailable) +(.*)$", info.stdout, re.MULTILINE)
    if not found:
        print(f"FAILED: octet info has no line for cuda:\n{info.stdout}{info.stderr}")
        return 1
    state, reason = found.groups()
    print(f"cuda is {state}: {reason}")
    if state == "ready":
        kit = run(build / "bin/octet-conformance", "--backend", library)
        print(kit.stdout)
        return kit.returncode

    if not reason.startswith(REASONS):
        print("FAILED: the reason is none of those that a user can act on")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([build / "bin/write_tiny_chat_model", folder], check=True)
        model = Path(folder) / "chat.gguf"
        named = run(build / "bin/octet", "run", "-m", model, "--device", "cuda", "-p", "a", "-n", "1")
        automatic = run(build / "bin/octet", "run", "-m", model, "--device", "auto", "-p", "a", "-n", "1")
    if named.returncode != UNAVAILABLE or reason not in named.stderr or named.stdout:
        print(f"FAILED: --device cuda ended with {named.returncode}: {named.stdout}{named.stderr}")
        return 1
    if automatic.returncode != 0:
        print(f"FAILED: --device auto ended with {automatic.returncode}: {automatic.stderr}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
