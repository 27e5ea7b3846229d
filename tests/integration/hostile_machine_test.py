#!/usr/bin/env python3
"""The octet program on a machine that fails it: too little memory, and a model file that shrinks while it is read.

usage: hostile_machine_test.py BUILD_FOLDER [unittest arguments]
"""

import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest

from surroundings import clean_env

octet = ""  # the program
plugins = ""  # folder of the tests' backends
sanitized = False  # a sanitizer reserves far more addresses than any limit here


def string(text):
    return struct.pack("<Q", len(text)) + text


def gguf(words):
    """A GGUF file without tensors, with a vocabulary of so many words."""
    keys = [string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama"),
            string(b"tokenizer.ggml.model") + struct.pack("<I", 8) + string(b"llama"),
            string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, words)
            + b"".join(string(b"word%020d" % i) for i in range(words))]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys)


class HostileMachine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = os.path.join(folder.name, "model.gguf")

    def write_model(self, words):
        with open(self.model, "wb") as file:
            file.write(gguf(words))

    def run_octet(self, *args, limit=None, stack=None, env=None):
        def set_limit():
            if stack is not None:
                resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        return subprocess.run([octet, *args], capture_output=True, text=True, timeout=60, preexec_fn=set_limit,
                              env={**clean_env(), **(env or {})})

    def test_a_model_file_that_shrinks_is_one_sentence(self):
        self.write_model(1000)
        done = self.run_octet("info", "-m", self.model, "--device", "truncates", "--backend-path",
                              os.path.join(plugins, "liboctet_backend_truncates.so"),
                              env={"OCTET_TEST_TRUNCATE": self.model})
        self.assertEqual(done.stderr, f"octet: {self.model} was cut short while octet used it, or its disk could not be "
                         "read; run again once it is whole\n")
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_too_little_memory_is_one_sentence(self):
        if sanitized:
            self.skipTest("sanitizers reserve more addresses than the limit")
        self.write_model(200_000)  # its tokens take tens of MiB
        command = ["tokenize", "-m", self.model, "-p", "x"]
        sentences = set()
        for mib in range(16, 160, 4):
            done = self.run_octet(*command, limit=mib << 20)
            if done.returncode == 127 and not done.stderr.startswith("octet: "):
                continue  # the dynamic linker had no room for the program itself
            with self.subTest(mib=mib):
                self.assertIn(done.returncode, (1, 2, 3), done.stderr)
                self.assertRegex(done.stderr, r"\Aoctet: [^\n]+\n\Z")
                sentences.add((done.returncode, done.stderr))
        self.assertIn((1, "octet: the machine, or the limit that was set for this process, has too little memory for "
                          "this\n"), sentences)

    def test_a_small_stack_is_one_sentence(self):
        for kib in (128, 192, 1000):
            done = self.run_octet("info", stack=kib << 10)
            self.assertEqual(done.stderr, f"octet: the stack limit is {kib} KiB and 1024 KiB are needed; raise it with "
                             "ulimit -s 8192\n")
            self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertEqual(self.run_octet("info", stack=1 << 20).returncode, 0)

    def test_backends_under_too_little_memory(self):
        if sanitized:
            self.skipTest("sanitizers reserve more addresses than the limit")
        codes = set()
        for mib in range(16, 120, 3):
            done = self.run_octet("info", "--threads", "2", limit=mib << 20)
            if done.returncode == 127 and not done.stderr.startswith("octet: "):
                continue
            with self.subTest(mib=mib):
                codes.add(done.returncode)
                self.assertIn(done.returncode, (0, 1), done.stderr)
                if done.returncode == 1:
                    self.assertRegex(done.stderr, r"\Aoctet: [^\n]+\n\Z")
        self.assertEqual(codes, {0, 1}, "the limits reach from too little to enough")


def main():
    global octet, plugins, sanitized
    build = os.path.abspath(sys.argv[1])
    octet = os.path.join(build, "bin", "octet")
    plugins = os.path.join(build, "tests", "plugins")
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as cache:
        sanitized = any(line.startswith("OCTET_SANITIZE:") and not line.endswith("=\n") for line in cache)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])


if __name__ == "__main__":
    main()
