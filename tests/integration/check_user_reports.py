#!/usr/bin/env python3
"""Every test that docs/user-reports.md names must exist: in a GoogleTest file, the conformance kit or a Python test."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def names_in(pattern, text):
    return set(re.findall(pattern, text))


def main():
    known = set()
    for path in (ROOT / "tests").rglob("*.cc"):
        text = path.read_text()
        known |= {f"{suite}.{case}" for suite, case in names_in(r"\bTEST(?:_P|_F)?\((\w+),\s*(\w+)\)", text)}
        known |= names_in(r'"([A-Z]\w+\.[A-Z]\w+)[/"]', text)  # cases of the kit
    for path in (ROOT / "tests").rglob("*.py"):
        known |= {f"{path.name}: {name}" for name in names_in(r"def (test_\w+)", path.read_text())}
    lists = (ROOT / "tests/integration/CMakeLists.txt").read_text()
    known |= {f"quality_test.py: kv_quality_{name}" for name in names_in(r"set\((\w+) \S+\.gguf", lists)}

    rows = [line for line in (ROOT / "docs/user-reports.md").read_text().splitlines() if line.startswith("| ")]
    named, missing = 0, []
    for row in rows:
        for name in names_in(r"`((?:[A-Z]\w+\.[A-Z]\w+)|(?:\w+\.py: \w+))`", row):
            named += 1
            if name not in known:
                missing.append(name)
    for name in sorted(missing):
        print(f"docs/user-reports.md names {name}, which is no test")
    if named == 0:
        print("docs/user-reports.md names no test")
    return 1 if missing or named == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
