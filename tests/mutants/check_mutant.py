#!/usr/bin/env python3
"""The test of the tests: usage: check_mutant.py KIT BACKEND_FOLDER MUTANT

The case that mutants.txt names for MUTANT must fail on it and pass on the reference without a fault.
"""

import re
import sys
from fnmatch import fnmatchcase

from mutant_table import read_table, reference_arguments, run


def main():
    kit, backends, name = sys.argv[1:]
    mutant = next(m for m in read_table() if m.name == name.removeprefix("lib:"))
    if mutant.case == "open":
        code, output = run(kit, mutant.arguments(backends))
        if code != 2 or "rule A" not in output:
            sys.exit(f"the kit should have refused to open {name} and named a rule; exit code {code}\n{output}")
        return
    chosen = ["--threads", "2", "--filter", mutant.case]
    code, output = run(kit, mutant.arguments(backends) + chosen)
    if " 1 not run" in output:
        print(output)
        sys.exit(77)
    failed = re.findall(r"^fail +(\S+)", output, re.MULTILINE)
    if code == 0 or not any(fnmatchcase(case, mutant.case) for case in failed):
        sys.exit(f"{name} was not caught by {mutant.case}; exit code {code}\n{output}")
    code, output = run(kit, reference_arguments(backends) + chosen)
    if code != 0 or " 0 passed" in output or " 0 unsupported" not in output:
        sys.exit(f"the reference without a fault should pass {mutant.case}; exit code {code}\n{output}")


if __name__ == "__main__":
    main()
