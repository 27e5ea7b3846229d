#!/usr/bin/env python3
"""Writes docs/mutants.md: which case each mutant of mutants.txt is for, and how many others caught it too.

usage: mutants_doc.py KIT BACKEND_FOLDER    runs the whole kit on every mutant and writes the file
       mutants_doc.py --check               fails where mutants.txt, the file and the faults in the sources do not agree
"""

import collections
import re
import sys

from mutant_table import FOLDER, read_table, run

DOC = FOLDER.parent.parent / "docs" / "mutants.md"
HEAD = """# Mutants: who tests the kit

Each mutant is the reference backend with one fault. The case named for it must fail on it and pass on the reference;
`ctest -R mutant_` checks every line. The last column says which behaviours failed when the whole kit ran on the mutant (a `+N`
stands for N more). Written by `tests/mutants/mutants_doc.py` from `tests/mutants/mutants.txt`.
"""
COLUMNS = "| mutant | what is wrong | named case | caught by |\n|---|---|---|---|"
SHOWN = 4


def key(mutant):
    """A row up to what only a run can tell."""
    name = f"`{mutant.name}`" + (" (library)" if mutant.library else "")
    case = "refused when opened" if mutant.case == "open" else f"`{mutant.case}`"
    return f"| {name} | {mutant.wrong} | {case} | "


def caught_by(kit, backends, mutant):
    _, output = run(kit, mutant.arguments(backends) + ["--threads", "2"])
    if mutant.case == "open":
        return output.strip().removeprefix("octet-conformance: ").replace(f"{backends}/", "").replace("|", "\\|")
    failed = collections.Counter(case.split("/")[0] for case in re.findall(r"^fail +(\S+)", output, re.MULTILINE))
    ranked = [behaviour for behaviour, _ in failed.most_common()]
    more = f" +{len(ranked) - SHOWN}" if len(ranked) > SHOWN else ""
    return ", ".join(f"`{b}` {failed[b]}" for b in ranked[:SHOWN]) + more


def write(kit, backends):
    text, section = HEAD, None
    for mutant in read_table():
        if mutant.section != section:
            section = mutant.section
            text += f"\n## {section}\n\n{COLUMNS}\n"
        text += key(mutant) + caught_by(kit, backends, mutant) + " |\n"
    DOC.write_text(text)


def check():
    wrong = []
    mutants = read_table()
    listed = {m.name for m in mutants if not m.library}
    planted = set()
    for source in [*FOLDER.glob("*.cc"), *FOLDER.glob("*.h")]:
        planted |= set(re.findall(r'Faulty\("(\w+)"\)', source.read_text()))
    wrong += [f"mutants.txt lists {name}, which no source has" for name in sorted(listed - planted)]
    wrong += [f"the fault {name} is planted but not in mutants.txt" for name in sorted(planted - listed)]
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| `")] if DOC.exists() else []
    for mutant in mutants:
        if not any(row.startswith(key(mutant)) and row != key(mutant) + " |" for row in rows):
            wrong.append(f"docs/mutants.md has no row, or an old one, for {mutant.name}")
    if len(rows) != len(mutants):
        wrong.append(f"docs/mutants.md has {len(rows)} rows for {len(mutants)} mutants")
    if wrong:
        sys.exit("\n".join(wrong) + "\nwrite it again: tests/mutants/mutants_doc.py build/release/bin/octet-conformance "
                 "build/release/lib/octet/test_backends")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    elif len(sys.argv) == 3:
        write(*sys.argv[1:])
    else:
        sys.exit(__doc__)
