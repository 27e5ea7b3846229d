#!/usr/bin/env python3
"""Finds names of the standard library, abseil, fmt and nlohmann-json whose header a file does not reach.

The test builds compile several files at once and precompile headers, where a missing #include goes unnoticed that breaks a
plain build. A file reaches what it includes, and what the project's own headers that it includes reach; that one library
header includes another does not count. Covers the names below, no others. Prints one line per header and file and exits 1;
`--self-test` plants missing includes and demands that each is reported.
"""

import re
import sys
import tempfile
from pathlib import Path

from check_includes import INCLUDE, project_path, run, source_files

# header: names of namespace std, as regular expressions
STANDARD = {
    "algorithm": "sort|stable_sort|find|find_if|find_if_not|any_of|all_of|none_of|min_element|max_element|nth_element|clamp|"
                 "copy_n|fill|fill_n|reverse|lower_bound|upper_bound|count_if|equal|remove_if|transform|unique|partial_sort",
    "array": "array", "atomic": r"atomic|atomic_\w+|memory_order\w*", "bit": "bit_cast|bit_ceil|has_single_bit|popcount|countl_zero",
    "charconv": "from_chars|to_chars", "chrono": "chrono", "cmath": "exp|log|sqrt|isfinite|isnan|isinf|lround|llround|tanh|cos|sin",
    "condition_variable": "condition_variable", "deque": "deque", "filesystem": "filesystem", "fstream": "[io]?fstream",
    "functional": "function|hash|less|greater", "initializer_list": "initializer_list", "iostream": "cout|cerr|cin",
    "limits": "numeric_limits", "map": "map|multimap", "memory": r"unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared",
    "mutex": "mutex|lock_guard|unique_lock|once_flag|call_once|scoped_lock", "new": "nothrow|align_val_t|bad_alloc",
    "numeric": "accumulate|iota", "optional": "optional|nullopt|make_optional", "random": r"mt19937\w*|\w+_distribution",
    "set": "set|multiset", "span": "span", "sstream": r"[io]?stringstream", "string": "string|to_string|stoi|getline",
    "string_view": "string_view", "thread": "thread|this_thread", "tuple": "tuple|tie|make_tuple",
    "type_traits": r"is_same_v|is_\w+_v|enable_if_t|decay_t|conditional_t|remove_\w+_t",
    "unordered_map": "unordered_map", "unordered_set": "unordered_set", "utility": "pair|exchange|index_sequence|make_index_sequence",
    "variant": "variant|visit|monostate|holds_alternative|get_if", "vector": "vector",
    "cstring": "memcpy|memset|memcmp|memmove|strlen|strcmp|strerror", "cstdlib": "getenv|abort|exit|strtol|strtod",
    "cstdio": "printf|fprintf|snprintf|fputs|fflush|fwrite|fopen|FILE",
}
# Headers that promise the names of others: the standard says so.
ALSO = {"string_view": {"string"}, "initializer_list": {"string", "vector", "map", "set", "utility", "optional", "variant"},
        "utility": {"map", "tuple", "unordered_map"}, "cmath": {"math.h"}, "cstring": {"string.h"},
        "cstdlib": {"stdlib.h"}, "cstdio": {"stdio.h"}}
OTHERS = [
    (r"absl::(?:StrCat|StrAppend)\b", ["absl/strings/str_cat.h"]),
    (r"absl::(?:StrSplit)\b", ["absl/strings/str_split.h"]),
    (r"absl::(?:StrJoin)\b", ["absl/strings/str_join.h"]),
    (r"absl::StatusOr\b", ["absl/status/statusor.h"]),
    (r"absl::(?:Status|OkStatus|StatusCode|\w+Error)\b", ["absl/status/status.h", "absl/status/statusor.h"]),
    (r"absl::flat_hash_map\b", ["absl/container/flat_hash_map.h"]),
    (r"absl::flat_hash_set\b", ["absl/container/flat_hash_set.h"]),
    (r"fmt::(?:format|format_to|to_string|memory_buffer)\b", ["fmt/format.h", "fmt/ranges.h"]),
    (r"nlohmann::\w+", ["nlohmann/json.hpp", "nlohmann/json_fwd.hpp"]),
]
# (names, the header to include, headers that do)
RULES = [(re.compile(rf"(?<![\w:])std::(?:{names})\b"), header, {header} | ALSO.get(header, set()))
         for header, names in STANDARD.items()]
RULES += [(re.compile(names), headers[0], set(headers)) for names, headers in OTHERS]
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


class Reach:
    """Library headers that a file reaches."""

    def __init__(self, root):
        self.root, self.known = root, {}

    def of(self, path):
        if path not in self.known:
            self.known[path] = set()  # of a circle of headers: what the others reach
            reached = set()
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                match = INCLUDE.match(line)
                if match is None:
                    continue
                header = match[1] or match[2]
                target = project_path(self.root, path, header)
                if target is None:
                    reached.add(header)
                elif (self.root / target).is_file():
                    reached |= self.of(self.root / target)
            self.known[path] = reached
        return self.known[path]


def check(root):
    root = root.resolve()
    reach = Reach(root)
    complaints = []
    files = list(source_files(root)) + sorted(
        p for folder in ("tests/unit", "tests/integration", "tests/mutants", "tests/fuzz", "tests/perf")
        for p in (root / folder).rglob("*") if p.suffix in {".h", ".cc", ".cpp", ".hpp"})
    for path in files:
        if path.suffix in {".c", ".cu", ".cuh", ".hip"}:
            continue
        text = NOISE.sub(lambda m: "\n" * m[0].count("\n") if m[0].startswith(("//", "/*", "R")) else '""',
                         path.read_text(encoding="utf-8", errors="replace"))
        reached = reach.of(path)
        for pattern, header, headers in RULES:
            match = pattern.search(text)
            if match and not headers & reached:
                line = text.count("\n", 0, match.start()) + 1
                complaints.append(f"{path.relative_to(root)}:{line}: {match[0]} without <{header}>")
    return len(files), complaints


PLANTS = [
    ("#include <vector>\nstd::vector<int> v;\n", False),
    ("#include <string>\nstd::vector<int> v;\n", True),
    ("#include <string>\n// std::vector\nconst char* s = \"std::vector\";\n", False),
    ("#include <string>\nstd::string_view s;\n", False),
    ("#include <memory>\nauto s = absl::StrCat(1);\n", True),
    ("#include <memory>\nabsl::StatusOr<int> s;\n", True),
    ('#include "core/base/planted.h"\nstd::vector<int> v;\n', False),
    ('#include "core/base/planted.h"\nstd::map<int, int> v;\n', True),
    ("auto s = fmt::format(1);\n", True),
]


def self_test(_):
    failures = []
    for text, wrong in PLANTS:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "core/base"
            base.mkdir(parents=True)
            (base / "planted.h").write_text("#include <vector>\n")
            (base / "planted.cc").write_text(text)
            found = check(Path(folder))[1]
            if (len(found) == 1) != wrong or len(found) > 1:
                failures.append(f"{text!r}: expected {'one complaint' if wrong else 'none'}, got {found}")
    return failures


if __name__ == "__main__":
    sys.exit(run("Finds names whose header a file does not reach.", check, " reach the headers of what they name", self_test,
                 f"{len(PLANTS)} planted files"))
