#!/usr/bin/env python3
"""Checks which way #include lines point.

  interfaces         -> interfaces and the standard library, nothing else
  core               -> core, interfaces
  backends/X         -> backends/X, interfaces; cuda and rocm also backends/gpu, the source they share
  examples/X         -> examples/X, interfaces: a copy must build without this tree
  tests/reference    -> tests/reference, interfaces
  tests/conformance  -> tests/conformance, tests/reference, interfaces, core/loader, core/base (what the loader stands on)

System and third-party headers are free everywhere but in interfaces. Every file on disk counts, committed or not.
Prints one line per wrong include and exits 1; `--self-test` plants wrong includes in a copy and demands that each is
reported. Needs Python 3.9 or later.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path, PurePosixPath

SUFFIXES = {".h", ".hh", ".hpp", ".inc", ".c", ".cc", ".cpp", ".cu", ".cuh", ".hip"}
AREAS = ("interfaces", "core", "backends", "examples", "tests/reference", "tests/conformance")
INCLUDE = re.compile(r'^\s*#\s*(?:include|include_next|import)\s*(?:"([^"]+)"|<([^>]+)>)')

STANDARD_HEADERS = frozenset("""
    algorithm any array atomic barrier bit bitset charconv chrono codecvt compare complex concepts condition_variable
    coroutine deque exception execution filesystem format forward_list fstream functional future initializer_list iomanip
    ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric
    optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span
    sstream stack stdexcept stop_token streambuf string string_view strstream syncstream system_error thread tuple
    type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
    cassert cctype cerrno cfenv cfloat cinttypes climits clocale cmath csetjmp csignal cstdarg cstddef cstdint cstdio
    cstdlib cstring ctime cuchar cwchar cwctype
    assert.h ctype.h errno.h fenv.h float.h inttypes.h limits.h locale.h math.h setjmp.h signal.h stdalign.h stdarg.h
    stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h stdnoreturn.h string.h tgmath.h time.h uchar.h wchar.h
    wctype.h
""".split())


def project_path(root, source, header):
    """The included file's path in the project, or None for a header from outside.

    A name counts as the project's by its first folder even where no such file exists, so that a wrong arrow is seen
    before the file it points at is written.
    """
    beside = (source.parent / header).resolve()
    if beside.is_file() and beside.is_relative_to(root):
        return PurePosixPath(beside.relative_to(root).as_posix())
    path = PurePosixPath(os.path.normpath(header))
    if path.parts[0] == "octet":
        return PurePosixPath("interfaces") / path
    return path if path.parts[0] in ("interfaces", "core", "backends", "tests", "examples") else None


def within(path, *folders):
    return any(path.is_relative_to(folder) for folder in folders)


def complaint(source, target, header):
    """Why `source` (a path in the project) may not include `target`; None if it may."""
    if within(source, "interfaces"):
        if target is None:
            return None if header in STANDARD_HEADERS else "interfaces may include only itself and the standard library"
        return None if within(target, "interfaces") else "interfaces may include only itself and the standard library"
    if target is None or within(target, "interfaces"):
        return None
    if within(source, "core"):
        return None if within(target, "core") else "core may include only core and interfaces"
    if within(source, "backends"):
        own = PurePosixPath(*source.parts[:2])
        shared = ["backends/gpu"] if own.name in ("cuda", "rocm") else []
        return None if within(target, own, *shared) else f"{own} may include only itself and interfaces"
    if within(source, "examples"):
        own = PurePosixPath(*source.parts[:2])
        return None if within(target, own) else f"{own} may include only itself and interfaces"
    if within(source, "tests/reference"):
        return None if within(target, "tests/reference") else "tests/reference may include only itself and interfaces"
    allowed = ("tests/conformance", "tests/reference", "core/loader", "core/base")
    return None if within(target, *allowed) else f"tests/conformance may include only {', '.join(allowed)} and interfaces"


def source_files(root):
    for area in AREAS:
        for path in sorted((root / area).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def check(root):
    """Returns (number of files read, list of complaints as 'file:line: text')."""
    root = root.resolve()
    complaints = []
    files = 0
    for path in source_files(root):
        files += 1
        source = PurePosixPath(path.relative_to(root).as_posix())
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            match = INCLUDE.match(line)
            if match is None:
                continue
            header = match[1] or match[2]
            reason = complaint(source, project_path(root, path, header), header)
            if reason is not None:
                complaints.append(f"{source}:{number}: includes {header}: {reason}")
    return files, complaints


# (file, include line, whether it must be reported)
PLANTS = [
    ("interfaces/octet/planted.h", '#include "core/base/mapped_file.h"', True),
    ("interfaces/octet/planted.h", '#include "absl/status/status.h"', True),
    ("interfaces/octet/planted.h", "#include <boost/config.hpp>", True),
    ("interfaces/octet/planted.h", "#include <unistd.h>", True),
    ("interfaces/octet/planted.h", "#include <span>", False),
    ("interfaces/octet/planted.h", '#include "octet/abi.h"', False),
    ("core/base/planted.cc", '#include "backends/cpu/planted.h"', True),
    ("core/base/planted.cc", '#  include  "../../backends/cpu/planted.h"', True),
    ("core/base/planted.cc", "#include <backends/cpu/planted.h>", True),
    ("core/base/planted.cc", '#include "tests/reference/planted.h"', True),
    ("core/base/planted.cc", '#include "octet/abi.h"', False),
    ("core/base/planted.cc", '#include "absl/status/status.h"', False),
    ("backends/cpu/planted.cc", '#include "core/base/thread_pool.h"', True),
    ("backends/cpu/planted.cc", '#include "backends/cuda/planted.h"', True),
    ("backends/cpu/planted.cc", '#include "tests/reference/planted.h"', True),
    ("backends/cpu/planted.cc", '#include "planted.h"', False),
    ("backends/cpu/planted.cc", "#include <immintrin.h>", False),
    ("backends/cuda/planted.cu", '#include "backends/gpu/runtime.h"', False),
    ("backends/gpu/planted.cuh", '#include "backends/cuda/planted.h"', True),
    ("examples/backend_template/planted.cc", '#include "core/base/mapped_file.h"', True),
    ("examples/backend_template/planted.cc", '#include "backends/cpu/planted.h"', True),
    ("examples/backend_template/planted.cc", '#include "octet/plugin.hpp"', False),
    ("tests/reference/planted.cc", '#include "core/loader/registry.h"', True),
    ("tests/reference/planted.cc", '#include "octet/tensor.h"', False),
    ("tests/conformance/planted.cc", '#include "core/base/thread_pool.h"', False),
    ("tests/conformance/planted.cc", '#include "core/model/runner.h"', True),
    ("tests/conformance/planted.cc", '#include "core/loader/../model/runner.h"', True),
    ("tests/conformance/planted.cc", '#include "backends/cpu/planted.h"', True),
    ("tests/conformance/planted.cc", '#include "core/loader/registry.h"', False),
    ("tests/conformance/planted.cc", '#include "tests/reference/planted.h"', False),
]


def self_test(root):
    """Returns a list of failures."""
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve()
        for path in source_files(root):
            target = copy / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        header = copy / "backends/cpu/planted.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text("#pragma once\n")
        _, before = check(copy)
        for file, line, wrong in PLANTS:
            path = copy / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#include <cstdint>\n{line}\n")
            found = [c for c in check(copy)[1] if c not in before]
            path.unlink()
            as_planted = len(found) == 1 and found[0].startswith(f"{file}:2: ") if wrong else not found
            if not as_planted:
                failures.append(f"{file} with {line}: expected {'one complaint about line 2' if wrong else 'none'}, got {found}")
    return failures


def run(description, check, good, self_test, planted):
    """A check of source files as a program. check(root): number of files and complaints, `good` is printed where there are
    none; self_test(root): failures among what was `planted`. Returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    root = args.root.resolve()
    if args.self_test:
        failures = self_test(root)
        print("\n".join(failures) if failures else f"{planted} judged as expected")
        return 1 if failures else 0
    files, complaints = check(root)
    if files == 0:
        print(f"{root} holds no source files to check: is --root the project's top folder?")
        return 1
    print("\n".join(complaints) if complaints else f"{files} files{good}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(run("Checks which way #include lines point.", check, ", every include points the right way", self_test,
                 f"{len(PLANTS)} planted includes"))
