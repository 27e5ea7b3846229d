#!/usr/bin/env python3
"""A vendor's path: installs octet, moves it, copies the backend template out of it, builds and judges the copy.

usage: template_test.py BUILD_FOLDER [unittest arguments]

The template is built by g++, and by clang++ with a private libstdc++ where that compiler is installed; both must use
nothing but installed headers, export one symbol, pass the profile that they claim and, where SmolLM2 is present, write
the CPU backend's text. BUILD_FOLDER must have built octet, octet-conformance and the CPU backend.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from surroundings import clean_env, model_path

SOURCE = Path(__file__).resolve().parents[2]
ENTRY = "octet_backend_query_v1"
PRIVATE_RUNTIME = "-static-libstdc++ -static-libgcc"
VARIABLES = ("CXX", "CXXFLAGS", "LDFLAGS", "CMAKE_PREFIX_PATH", "CMAKE_BUILD_TYPE")  # would change the build

build_folder = Path()


def run(*command, **variables):
    return subprocess.run([str(c) for c in command], text=True, env={**clean_env(*VARIABLES), **variables}, timeout=300, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def must(*command, **variables):
    done = run(*command, **variables)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def exports(library):
    return [line.split()[-1] for line in must("nm", "-D", "--defined-only", library).splitlines()]


class Vendor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="octet-vendor-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        must("cmake", "--install", build_folder, "--prefix", cls.folder / "first")
        cls.prefix = cls.folder / "octet"
        (cls.folder / "first").rename(cls.prefix)

        flags = {"g++": [], "clang++": [f"-DCMAKE_MODULE_LINKER_FLAGS={PRIVATE_RUNTIME}"]}
        cls.compilers = [c for c in flags if shutil.which(c)]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda c: cls.build(c, flags[c]), cls.compilers))

    @classmethod
    def build(cls, compiler, flags):
        shutil.copytree(cls.prefix / "share/octet/examples/backend_template", cls.folder / compiler)
        must("cmake", "-S", cls.folder / compiler, "-B", cls.folder / compiler / "build", "-G", "Ninja",
             f"-DCMAKE_PREFIX_PATH={cls.prefix}", f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
             "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", *flags)  # -O3 takes twice as long to compile
        must("cmake", "--build", cls.folder / compiler / "build")

    def library(self, compiler):
        if compiler not in self.compilers:
            self.skipTest(f"{compiler} is not installed")
        return self.folder / compiler / "build/liboctet_backend_template.so"

    def judge(self, compiler):
        library = self.library(compiler)
        self.assertEqual(exports(library), [ENTRY])
        text = must("ctest", "--test-dir", library.parent, "--verbose", "--no-tests=error")
        line = re.search(r"backend template .*, profile (.*), \d+ cases \w+: (\d+) passed, (\d+) failed, .*, (\d+) passed "
                         "unexpectedly", text)
        self.assertIsNotNone(line, text)
        self.assertEqual((line[1], line[3], line[4]), ("decode-int8", "0", "0"), text)

        # Nothing but the copy, the installed headers and the compiler's own.
        own = [str(self.folder.resolve() / compiler), str(self.prefix.resolve() / "include" / "octet")]
        depends = [line.strip() for line in must("ninja", "-C", library.parent, "-t", "deps").splitlines() if line[:1] == " "]
        files = {os.path.realpath(library.parent / name) for name in depends}
        ours = {name for name in files if any(name.startswith(folder + "/") for folder in own)}
        self.assertIn(str(self.prefix.resolve() / "include/octet/plugin.hpp"), ours)
        self.assertEqual([name for name in files - ours if not name.startswith("/usr/")], [])
        self.assertEqual([name for name in files if name.startswith(f"{SOURCE}/")], [])

        model = model_path("SmolLM2-135M-Instruct.Q4_1.gguf")
        if not model.is_file():
            self.skipTest(f"{model} is absent: no text compared")
        must("cmake", "--install", library.parent, "--prefix", self.prefix)  # where octet finds it by itself
        texts = [self.generate(model, device) for device in ("template", "cpu")]
        self.assertEqual(texts[0], texts[1])
        self.assertTrue(texts[0].strip())

    def generate(self, model, device):
        command = [self.prefix / "bin/octet", "run", "-m", model, "-p", "Gravity is", "-n", "4", "--temperature", "0",
                   "--kv-cache-dtype", "int8", "--device", device]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=clean_env(), timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{device}:0", done.stderr)
        return done.stdout

    def test_gcc_builds_a_backend_that_passes(self):
        self.judge("g++")

    def test_clang_builds_one_with_a_private_standard_library(self):
        needed = must("readelf", "-d", self.library("clang++"))
        self.assertNotRegex(needed, r"NEEDED.*lib(stdc\+\+|gcc_s)")
        self.judge("clang++")

    def test_the_moved_program_finds_its_backends(self):
        text = must(self.prefix / "bin/octet", "info")
        self.assertIn(str(self.prefix / "lib/octet/backends"), text)
        self.assertRegex(text, r"cpu:0")
        self.assertEqual([p.name for p in (self.prefix / "lib/octet/backends").glob("*_reference.so")], [])

    def test_another_version_is_not_taken(self):
        project = self.folder / "later"
        project.mkdir()
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(later LANGUAGES NONE)\n"
                                                "find_package(octet 99 REQUIRED)\n")
        done = run("cmake", "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('not find a configuration file for package "octet" that is compatible', done.stdout)

    def test_a_mistake_is_named_and_pkg_config_suffices_to_make_it(self):
        if not shutil.which("pkg-config"):
            self.skipTest("pkg-config is not installed")
        copy = self.folder / "mistake"
        shutil.copytree(self.prefix / "share/octet/examples/backend_template", copy)
        quant = copy / "quant.h"
        text = quant.read_text()
        self.assertIn("std::nearbyint", text)
        quant.write_text(text.replace("std::nearbyint", "std::round"))  # ties away from zero
        flags = {f: must("pkg-config", f, "octet", PKG_CONFIG_PATH=str(self.prefix / "share/pkgconfig")).split()
                 for f in ("--cflags", "--libs")}
        library = copy / "liboctet_backend_template.so"
        must("g++", "-shared", "-fPIC", *flags["--cflags"], copy / "backend.cc", *flags["--libs"], "-o", library)
        self.assertEqual(exports(library), [ENTRY])
        done = run(self.prefix / "bin/octet-conformance", "--backend", library, "--filter", "Append.*")
        self.assertEqual(done.returncode, 1, done.stdout)
        failed = {name.split("/")[0] for name in re.findall(r"^fail +(\S+)", done.stdout, re.MULTILINE)}
        self.assertIn("Append.RoundsHalfToEven", failed)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build_folder = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
