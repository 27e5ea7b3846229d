"""Reads mutants.txt and runs the kit on its lines."""

import subprocess
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent


class Mutant(NamedTuple):
    name: str  # of the fault or the library
    library: bool
    case: str  # glob, or "open"
    wrong: str
    section: str

    def arguments(self, backends):
        """Arguments of octet-conformance that choose this mutant."""
        if self.library:
            return ["--backend", str(Path(backends) / f"liboctet_backend_{self.name}.so")]
        return reference_arguments(backends) + ["--options", f"fault={self.name}"]


def reference_arguments(backends):
    return ["--backend", str(Path(backends) / "liboctet_backend_reference.so")]


def read_table():
    mutants, section = [], ""
    lines = (FOLDER / "mutants.txt").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            section = line[1:].strip()
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split(" : ")
        if len(fields) != 3 or not all(field.strip() for field in fields):
            raise SystemExit(f"mutants.txt:{number}: a line is 'mutant : case : what is wrong'")
        name, case, wrong = (field.strip() for field in fields)
        mutants.append(Mutant(name.removeprefix("lib:"), name.startswith("lib:"), case, wrong, section))
    return mutants


def run(kit, arguments):
    """Exit code and output of the kit, both streams together."""
    done = subprocess.run([str(kit), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout
