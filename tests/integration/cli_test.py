#!/usr/bin/env python3
"""Runs the built octet as a user would: exit codes, sentences, JSON, streams.

usage: cli_test.py BUILD_FOLDER [--model] [unittest arguments]
Without --model: what needs no model. With it: the tests over SmolLM2; exit code 77 where that file is absent.
"""

import json
import math
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from surroundings import clean_env, model_path

DATA = Path(__file__).resolve().parent.parent / "data"
MODEL = model_path("SmolLM2-135M-Instruct.Q4_1.gguf")
SKIPPED = 77

octet = ""  # the program
PROMPT = "Once upon a time, in a small village by the sea, there lived"


def run(*args, **kwargs):
    return subprocess.run([octet, *map(str, args)], capture_output=True, env=clean_env(), timeout=240, **kwargs)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, content):
        path = os.path.join(self.folder.name, name)
        Path(path).write_bytes(content)
        return path

    def fails(self, code, *args, says=()):
        """One sentence on stderr, nothing on stdout, this exit code."""
        done = run(*args)
        err = done.stderr.decode(errors="replace")
        where = f"octet {' '.join(map(str, args))[:200]}\n{err}"
        self.assertEqual(done.returncode, code, where)
        self.assertEqual(done.stdout, b"", where)
        self.assertRegex(err, r"\Aoctet: \S[^\n]*\n\Z", where)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, err, where)

    def succeeds(self, *args):
        done = run(*args)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return done

    def json_of(self, *args):
        done = self.succeeds(*args, "--json")
        return json.loads(done.stdout)


class WithoutModel(Case):
    def test_help_and_version_are_answers(self):
        self.assertRegex(self.succeeds("--version").stdout.decode(), r"\Aoctet \d+\.\d+\.\d+\n\Z")
        for args in (["--help"], ["run", "--help"], ["info", "--help"], ["tokenize", "--help"], ["quality", "--help"],
                     ["bench", "--help"]):
            done = self.succeeds(*args)
            self.assertIn(b"Usage", done.stdout)
            self.assertEqual(done.stderr, b"")
        for code in ("0", "1", "2", "3", "130", "141", "143"):
            self.assertRegex(self.succeeds("--help").stdout.decode(), rf"\b{code}\b")

    def test_the_quickstart_refuses_an_empty_prompt(self):
        script = Path(__file__).resolve().parents[2] / "scripts/quickstart"
        done = subprocess.run([script, ""], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertRegex(done.stderr.decode(), r"\Aquickstart: the prompt is empty[^\n]*\n\Z")

    def test_a_command_line_that_makes_no_sense(self):
        self.fails(2, says="--help")
        self.fails(2, says="a command is missing")
        for command in ("fly", "benchmark", ""):
            self.fails(2, command, "-m", "x", says=["command", "run info tokenize quality bench"])
        self.fails(2, "--model", "x", "run", says="--model")
        self.fails(2, "--threads", "2", "info", says="'--threads' stands before the command; write octet info first")
        self.fails(2, "run", "-p", "x", says="--model")
        self.fails(2, "run", "-m", "x", "--no-such-flag", says="--no-such-flag")
        self.fails(2, "run", "-m", "x", "--kv-layers-16bit", "0,1", says="does not take '--kv-layers-16bit'")
        self.fails(2, "quality", "-m", "x", "-f", "x", "--kv-cache-dtype", "int8", says="--kv-cache-dtype")
        self.fails(2, "run", "-m", "x", "-p", "x", "--logprobs", "2", says="--json")
        self.fails(2, "run", "-m", "x", "-p", "x", "--kv-int8-recipe", "plain", says="--kv-cache-dtype int8")
        self.fails(2, "run", "-m", "x", "-p", "x", "--seed", "abc", says="abc")
        self.fails(2, "run", "-m", "x", "-p", "x", "--max-new-tokens", "many")
        self.fails(2, "run", "-m", "x", "-p", "x", "--max-new-tokens", "99999999999999999999")

    def test_threads_that_cannot_be_started(self):
        def huge_stacks():
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 44, resource.getrlimit(resource.RLIMIT_STACK)[1]))

        if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
            self.skipTest("the stack's size is limited here")
        done = run("info", "--threads", "1000", preexec_fn=huge_stacks)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.decode(), r"\Aoctet: [^\n]*1000 threads[^\n]*\n\Z")

    def test_values_out_of_range(self):
        for flag, value, says in [
            ("--temperature", "-0.5", "temperature"), ("--temperature", "nan", "temperature"),
            ("--temperature", "inf", "temperature"), ("--top-p", "2", "a number above 0 and at most 1"), ("--top-p", "0", "a number above 0 and at most 1"),
            ("--top-p", "nan", "--top-p"), ("--top-k", "-1", "--top-k"), ("--min-p", "-1", "--min-p"),
            ("--min-p", "nan", "--min-p"), ("--repetition-penalty", "0", "--repetition-penalty is '0'; use a number above 0"),
            ("--repetition-penalty", "nan", "--repetition-penalty"), ("--max-new-tokens", "0", "--max-new-tokens"),
            ("--max-new-tokens", "-3", "--max-new-tokens"), ("--logprobs", "-1", "--logprobs"),
            ("--block-size", "0", "--block-size"), ("--block-size", "-16", "--block-size"),
            ("--max-num-seqs", "0", "--max-num-seqs"), ("--max-model-len", "-1", "--max-model-len"),
            ("--threads", "-1", "--threads"), ("--threads", "1025", "from 0 to 1024"),
            ("--max-model-len", "0", "from 1 to"), ("--max-num-seqs", "257", "from 1 to 256"),
            ("--seed", "-1", "--seed is '-1'"), ("--seed", str(1 << 64), "from 0 to 18446744073709551615"),
            ("--max-new-tokens", "0x10", "'0x10'"), ("--max-new-tokens", "", "''"), ("--max-new-tokens", " 1", "' 1'"),
            ("--max-new-tokens", "1.5", "'1.5'"), ("--temperature", "0x1p3", "'0x1p3'"),
            ("--stop-token-id", "0x10", "'0x10'"), ("--stop-token-id", "-1", "'-1'"), ("--compute", "slow", "slow"), ("--kv-cache-dtype", "int4", "int4"),
            ("--kv-int8-recipe", "best", "best"),
        ]:  # yapf: disable
            with self.subTest(flag=flag, value=value):
                self.fails(2, "run", "-m", "no-file.gguf", "-p", "x", f"{flag}={value}", says=says)

    def test_limits_of_quality_are_read_before_anything_runs(self):
        for flag, value in (("--max-kl", "nan"), ("--max-kl", "-1"), ("--min-top1", "2"), ("--min-top1", "-0.1"),
                            ("--tokens", "1"), ("--window", "1"), ("--window", "99999999999")):
            self.fails(2, "quality", "-m", "no-file.gguf", "-f", "x", flag, value, says=f"{flag} is '{value}'")
        self.fails(2, "quality", "-m", "no-file.gguf", "-f", "x", "--window", "65", "--tokens", "64", says=["65", "64"])
        for caches in ("int8,int8", "bf16,int8:default,f32,int8"):
            self.fails(2, "quality", "-m", "no-file.gguf", "-f", "x", "--caches", caches, says=["twice", "'int8'"])

    def test_cases_of_bench_are_read_before_anything_runs(self):
        for flag in ("--batch-size", "--input-len", "--output-len"):
            for value in ("0", "x", "1,,2", "", "-1", "99999999999"):
                self.fails(2, "bench", "-m", "no-file.gguf", f"{flag}={value}", says=[flag, "from 1 to"])
        for value in ("x", "0,,2", "", "-1", "99999999999"):
            self.fails(2, "bench", "-m", "no-file.gguf", f"--depth={value}", says=["--depth", "from 0 to"])
        self.fails(2, "bench", "-m", "no-file.gguf", "--batch-size", "1,513", says=["513", "512"])
        self.fails(2, "bench", "-m", "no-file.gguf", "--batch-size", "2,1,2", says=["--batch-size has 2 twice"])
        self.fails(2, "bench", "-m", "no-file.gguf", "--compare", "int8,int8:default", says=["--compare", "twice"])
        self.fails(2, "bench", "-m", "no-file.gguf", "--compare", "int9", says=["--compare", "int9"])
        self.fails(2, "bench", "-m", "no-file.gguf", "--compare", "auto", says=["--compare", "'auto'"])

    def test_values_that_are_missing_or_given_twice(self):
        self.fails(2, "run", "-m", "x", "--seed", "1", "--seed", "2", says="--seed was given 2 times")
        self.fails(2, "run", "-m", "x", "-m", "y", "-p", "x", says="--model was given 2 times")
        self.fails(2, "run", "-m", "x", "--stop-token-id", says="--stop-token-id needs a value")
        self.fails(2, "run", "-m", "x", "-p", "x", "--json=maybe", says="--json takes no value")
        self.fails(2, "run", "-m", "", "-p", "x", says="--model is empty")

    def test_info_ignores_no_flag(self):
        self.fails(2, "info", "--threads", "1025", says="from 0 to 1024")
        self.fails(2, "info", "--device", "cpu", says=["--device", "--model"])
        self.fails(2, "info", "--backends", "-m", "x", says=["--backends", "--model"])

    def test_output_that_cannot_be_written(self):
        for args in (["--help"], ["run", "--help"], ["--version"], ["info"], ["info", "--json"]):
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                for stdout in ({"stdout": full}, {"preexec_fn": lambda: os.close(1)}):
                    done = subprocess.run([octet, *args], stderr=subprocess.PIPE, env=clean_env(), timeout=60, **stdout)
                    self.assertEqual(done.returncode, 1, stdout)
                    self.assertRegex(done.stderr.decode(), r"\Aoctet: [^\n]*stdout[^\n]*\n\Z")
                # What goes wrong on stderr alone changes no answer.
                for stderr in ({"stderr": full}, {"preexec_fn": lambda: os.close(2)}):
                    done = subprocess.run([octet, *args], stdout=subprocess.PIPE, timeout=60,
                                          env={**clean_env(), "OCTET_VERBOSE": "dispatch"}, **stderr)
                    self.assertEqual(done.returncode, 0, stderr)
                    self.assertTrue(done.stdout)

    def test_each_line_of_the_dispatch_log_comes_once(self):
        done = subprocess.run([octet, "info"], capture_output=True, timeout=60,
                              env={**clean_env(), "OCTET_VERBOSE": "dispatch"})
        lines = done.stderr.decode().splitlines()
        self.assertTrue(any("chosen" in line for line in lines))
        self.assertEqual(len(lines), len(set(lines)), lines)

    def test_bytes_of_a_path_are_escaped(self):
        done = run("info", "-m", os.fsdecode(b"\xff\x1b[31m\n\xc2\x9b"))
        self.assertEqual(done.returncode, 2)
        self.assertIn(rb"\xff\x1b[31m\x0a\xc2\x9b", done.stderr)

    def test_scales_of_a_checkpoint_are_refused(self):
        self.fails(3, "run", "-m", "no-file.gguf", "-p", "x", "--kv-scales", "checkpoint", says="checkpoint")

    def test_files_that_are_no_model(self):
        text = self.file("text.gguf", b"This is not a model.\n" * 100)
        empty = self.file("empty.gguf", b"")
        magic = self.file("magic.gguf", b"GGUF")
        for command in (["run", "-p", "x"], ["tokenize", "-p", "x"], ["info"], ["quality", "-f", text]):
            for path in (os.path.join(self.folder.name, "missing.gguf"), text, empty, magic, self.folder.name):
                with self.subTest(command=command[0], path=path):
                    self.fails(2, *command, "-m", path, says=os.path.basename(path))

    def test_a_backend_path_that_is_not_there(self):
        missing = os.path.join(self.folder.name, "nowhere")
        self.fails(2, "info", "--backend-path", missing, says=missing)

    def test_variables_that_have_no_effect_are_one_sentence_each(self):
        cpu = [b for b in self.json_of("info")["backends"] if b["name"] == "cpu"][0]["file"]
        missing = os.path.join(self.folder.name, "nowhere")
        for name, value, says in [
            ("OCTET_BACKEND_PATH", missing, [f"'{missing}', which does not exist"]),
            ("OCTET_BACKEND_PATH", f"relative:{missing}", ["'relative', which is not absolute", "does not exist"]),
            ("OCTET_BACKEND_PATH", f"{self.folder.name}:{cpu}", []),
            ("OCTET_BACKENDS", "-nosuch", ["'-nosuch'"]), ("OCTET_BACKENDS", "cpu,-", ["'-'"]), ("OCTET_BACKENDS", "cpu", []),
            ("OCTET_VERBOSE", "disptch,dispatch", ["'disptch'"]), ("OCTET_VERBOSE", "", []),
        ]:  # yapf: disable
            with self.subTest(name=name, value=value):
                done = subprocess.run([octet, "info", "--json"], capture_output=True, env={**clean_env(), name: value}, timeout=60)
                self.assertEqual(done.returncode, 0)
                warnings = [l for l in done.stderr.decode().splitlines() if "warning" in l]
                self.assertEqual(len(warnings), len(says), warnings)
                for line, text in zip(warnings, says):
                    self.assertTrue(line.startswith(f"octet: warning: {name} has " if name != "OCTET_BACKENDS" else
                                                    "octet: warning: OCTET_BACKENDS names "), line)
                    self.assertIn(text, line)
                states = [b["state"] for b in json.loads(done.stdout)["backends"] if b["file"] == cpu]
                self.assertEqual(states, ["ready"])

    def test_info_lists_backends(self):
        document = self.json_of("info")
        cpu = [b for b in document["backends"] if b["name"] == "cpu"]
        self.assertEqual(len(cpu), 1)
        self.assertEqual(cpu[0]["state"], "ready")
        self.assertEqual(cpu[0]["devices"][0]["id"], "cpu:0")
        self.assertGreater(cpu[0]["devices"][0]["memory_bytes"], 1 << 20)
        self.assertTrue(document["searched"])
        done = self.succeeds("info")
        self.assertIn("cpu:0", done.stdout.decode())
        self.assertIn(cpu[0]["file"], done.stdout.decode())


    def test_paths_that_are_not_text(self):
        folder = os.path.join(self.folder.name.encode(), b"\xff\n\x1b[31m")
        self.fails(2, "tokenize", "-p", "x", "-m", os.fsdecode(folder), says="cannot open")
        os.mkdir(folder)
        self.assertTrue(self.json_of("info", "--backend-path", os.fsdecode(folder))["searched"])


class WithModel(Case):
    def setUp(self):
        super().setUp()
        self.model = MODEL

    def run_json(self, *args, tokens=12, prompt=PROMPT):
        return self.json_of("run", "-m", self.model, "-p", prompt, "-n", tokens, *args)

    def run_fails(self, code, *args, says=()):
        self.fails(code, "run", "-m", self.model, *args, says=says)

    # Errors

    def test_devices_that_are_not_there(self):
        self.run_fails(3, "-p", "x", "--device", "nosuch", says=["nosuch", "cpu"])
        self.run_fails(3, "-p", "x", "--device", "cpu:7", says="cpu:7")
        self.run_fails(2, "-p", "x", "--device", "cpu:seven", says="cpu:seven")
        self.run_fails(2, "-p", "x", "--device", "auto:1", says=["auto:1", "takes no number"])

    def test_a_model_file_cut_short(self):
        whole = Path(self.model).read_bytes()
        for size in (100, 100_000, 3_000_000, len(whole) - 1):
            with self.subTest(size=size):
                cut = self.file("cut.gguf", whole[:size])
                self.fails(2, "run", "-m", cut, "-p", "x", says="cut.gguf")
                os.remove(cut)

    def test_prompts_that_do_not_fit(self):
        long = self.file("long.txt", b"hello " * 9000)
        self.run_fails(2, "-f", long, says=["9001", "8192"])
        start = time.monotonic()
        self.run_fails(2, "-f", self.file("spaces.txt", b" " * (32 << 20)), says=["at least", "8192"])
        self.assertLess(time.monotonic() - start, 10)  # encoding it takes a minute
        self.run_fails(2, "-p", PROMPT, "--max-model-len", "15", says=["15 tokens", "raise --max-model-len", "shorten"])
        done = run("run", "-m", self.model, "-p", "hi", "--max-model-len", "1")
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"raise --max-model-len", done.stderr)
        self.assertNotIn(b"shorten", done.stderr)
        self.run_fails(2, "-p", PROMPT, "--max-model-len", "8193", says=["8193", "8192"])

    def test_prompts_that_are_none(self):
        self.run_fails(2, says=["--prompt", "--file"])
        self.run_fails(2, "-p", "x", "-f", self.model, says=["--prompt", "--file"])
        self.run_fails(2, "-p", "", says="empty")
        self.run_fails(2, "-f", os.path.join(self.folder.name, "missing.txt"), says="missing.txt")
        self.run_fails(2, "-f", self.folder.name, says=os.path.basename(self.folder.name))
        self.run_fails(2, "-p", "x", "--system", "y", says="--apply-chat-template")
        self.run_fails(2, "-p", "x", "--stop", "")
        self.run_fails(2, "-p", "x", "--stop-token-id", "49152", says=["49152", "vocabulary"])

    def test_a_stdout_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([octet, "run", "-m", self.model, "-p", PROMPT, "-n", "2"], stdout=full,
                                  stderr=subprocess.PIPE, env=clean_env(), timeout=240)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode().splitlines()[-1], r"\Aoctet: .*(stdout|output)")

    def test_a_stderr_that_cannot_be_written_changes_nothing(self):
        command = [octet, "run", "-m", self.model, "-p", PROMPT, "-n", "2"]
        expected = self.succeeds(*command[1:]).stdout
        with open("/dev/full", "wb") as full:
            for stderr in ({"stderr": full}, {"preexec_fn": lambda: os.close(2)}):
                done = subprocess.run(command, stdout=subprocess.PIPE, env=clean_env(), timeout=240, **stderr)
                self.assertEqual((done.returncode, done.stdout), (0, expected))

    # octet run

    def test_prompts_from_pipes(self):
        expected = self.run_json(tokens=2)["prompt_ids"]
        command = ["run", "-m", self.model, "-n", "2", "--json", "-f"]
        done = run(*command, "-", input=PROMPT.encode())
        self.assertEqual(json.loads(done.stdout)["prompt_ids"], expected)
        pipe = os.path.join(self.folder.name, "pipe")
        os.mkfifo(pipe)
        process = subprocess.Popen([octet, *command, pipe], stdout=subprocess.PIPE, env=clean_env())
        Path(pipe).write_text(PROMPT)
        self.assertEqual(json.loads(process.communicate(timeout=240)[0])["prompt_ids"], expected)
        self.assertEqual(self.json_of("tokenize", "-m", self.model, "-f", self.file("p.txt", PROMPT.encode()))["ids"],
                         json.loads(run("tokenize", "-m", self.model, "--json", "-f", "-", input=PROMPT.encode()).stdout)["ids"])
        for command, says in (("run", b"octet: the prompt is empty"), ("quality", b"octet: the text has 0 tokens")):
            done = run(command, "-m", self.model, "-f", "-", input=b"")
            self.assertEqual(done.returncode, 2)
            self.assertIn(says, done.stderr)
        self.assertEqual(run("tokenize", "-m", self.model, "-f", "-", input=b"").stdout, b"\n")
        self.run_fails(2, "-f", "/dev/zero", says="64 MiB")

    def test_one_token_has_no_speed(self):
        self.assertIsNone(self.run_json(tokens=1)["timing"]["decode_tokens_per_s"])
        err = self.succeeds("run", "-m", self.model, "-p", "x", "-n", "010").stderr.decode()
        self.assertRegex(err, r"(?m)^choice   auto chose cpu:0 ")
        self.assertRegex(err, r"(?m)^prompt   1 token, [\d.]+ tokens/s$")
        self.assertRegex(err, r"(?m)^decode   10 tokens, [\d.]+ tokens/s$")
        err = self.succeeds("run", "-m", self.model, "-p", "x", "-n", "1", "--device", "cpu").stderr.decode()
        self.assertRegex(err, r"(?m)^decode   1 token$")
        self.assertNotIn("choice", err)

    def test_many_more_threads_than_cpus_are_usable(self):
        start = time.monotonic()
        expected = self.run_json(tokens=4)["ids"]
        self.assertEqual(self.run_json("--threads", 512, tokens=4)["ids"], expected)
        self.assertLess(time.monotonic() - start, 60)

    def test_the_json_document_is_whole(self):
        answer = self.run_json("--kv-cache-dtype", "int8", tokens=100)
        self.assertEqual(set(answer), {"prompt_ids", "ids", "text", "finish_reason", "device", "kv_cache_dtype",
                                       "kv_bytes", "timing"})
        self.assertEqual(len(answer["prompt_ids"]), 15)
        self.assertEqual(len(answer["ids"]), 100)
        self.assertEqual(answer["finish_reason"], "length")
        self.assertEqual(answer["device"], "cpu:0")
        self.assertEqual(answer["kv_cache_dtype"], ["int8"] * 30)
        self.assertGreater(answer["timing"]["prompt_tokens_per_s"], 0)
        self.assertGreater(answer["timing"]["decode_tokens_per_s"], 0)
        kv = answer["kv_bytes"]
        self.assertEqual(kv["planned"], kv["allocated"])
        self.assertEqual(kv["planned"], kv["data"] + kv["scales"] + kv["padding"] + kv["k_offsets"])
        self.assertEqual(kv["data"], 128 * 30 * 3 * 2 * 64)  # two pages of 64 tokens, one byte per element
        self.assertGreaterEqual(1 - kv["planned"] / (2 * kv["data"]), 0.46)

    def test_every_kv_dtype_takes_what_it_says(self):
        taken = {}
        for dtype, size in (("f32", 4), ("f16", 2), ("bf16", 2), ("auto", 2), ("int8", 1)):
            answer = self.run_json("--kv-cache-dtype", dtype, "--max-model-len", 256, tokens=2)
            kv = answer["kv_bytes"]
            self.assertEqual(kv["planned"], kv["allocated"])
            self.assertEqual(kv["data"], 256 * 30 * 3 * 2 * 64 * size)
            self.assertEqual(answer["kv_cache_dtype"], [{"auto": "bf16"}.get(dtype, dtype)] * 30)
            taken[dtype] = kv["planned"]
        self.assertGreaterEqual(1 - taken["int8"] / taken["bf16"], 0.46)

    def test_text_goes_to_stdout_and_all_else_to_stderr(self):
        done = self.succeeds("run", "-m", self.model, "-p", PROMPT, "-n", 12, "--kv-cache-dtype", "int8")
        self.assertEqual(done.stdout.decode(), self.run_json("--kv-cache-dtype", "int8")["text"] + "\n")
        err = done.stderr.decode()
        for word in ("device", "cpu:0", "prompt", "decode", "tokens/s", "KV cache", "int8", "planned", "allocated",
                     "saved"):
            self.assertIn(word, err)
        self.assertNotIn("\r", err)  # no progress line in a pipe
        planned, allocated = re.search(r"(\d+) planned, (\d+) allocated", err).groups()
        self.assertEqual(planned, allocated)

    def test_text_arrives_in_pieces(self):
        process = subprocess.Popen([octet, "run", "-m", self.model, "-p", PROMPT, "-n", "48"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env=clean_env())
        pieces = []
        while piece := os.read(process.stdout.fileno(), 65536):
            pieces.append(piece)
        process.stdout.close()
        self.assertEqual(process.wait(), 0)
        self.assertGreater(len(pieces), 10)

    def test_no_progress_line_is_left_beside_the_text(self):
        master, terminal = pty.openpty()
        process = subprocess.Popen([octet, "run", "-m", self.model, "-p", PROMPT + " a" * 600, "-n", "4", "--stop-token-id",
                                    "2", "--threads", "1", "--compute", "exact"],
                                   stdout=terminal, stderr=terminal, env=clean_env())
        os.close(terminal)
        shown = b""
        try:
            while piece := os.read(master, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(master)
        self.assertEqual(process.wait(), 0, shown)
        text = shown[max(shown.rfind(b"\x1b[K"), 0):]
        self.assertNotIn(b"reading the prompt", text)
        self.assertRegex(text, rb"(?s)\A(\x1b\[K)?.*\S.*\r\n.*device   cpu:0")
        self.assertLess(text.index(b"\r\n"), text.index(b"device   cpu:0"))

    def test_the_seed_decides(self):
        sampled = ["--temperature", "1.2", "--seed"]
        first = self.run_json(*sampled, "1")
        self.assertEqual(self.run_json(*sampled, "1")["ids"], first["ids"])
        self.assertNotEqual(self.run_json(*sampled, "2")["ids"], first["ids"])

    def test_threads_and_pages_do_not_change_the_text(self):
        expected = self.run_json("--kv-cache-dtype", "int8")["ids"]
        self.assertEqual(self.run_json("--kv-cache-dtype", "int8", "--threads", "1")["ids"], expected)
        self.assertEqual(self.run_json("--kv-cache-dtype", "int8", "--block-size", "16")["ids"], expected)

    def test_stop_texts_and_tokens(self):
        whole = self.run_json(tokens=24)
        word = whole["text"].split()[6]
        stopped = self.run_json("--stop", word, "--stop", "never in there", tokens=24)
        self.assertEqual(stopped["text"], whole["text"][:whole["text"].index(word)])
        self.assertEqual(stopped["finish_reason"], "stop")
        token = whole["ids"][7]
        stopped = self.run_json("--stop-token-id", token, tokens=24)
        self.assertEqual(stopped["ids"], whole["ids"][:whole["ids"].index(token) + 1])
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_a_chat_ends_at_the_models_end_token(self):
        items = json.loads((DATA / "oracles/smollm2_greedy.json").read_text())["items"]
        item = next(i for i in items if i["name"] == "chat_hello")
        args = ["--apply-chat-template", "--compute", "exact", "--kv-cache-dtype", "f32"]
        for message in item["messages"]:
            if message["role"] == "system":
                args += ["--system", message["content"]]
            else:
                user = message["content"]
        answer = self.run_json(*args, tokens=40, prompt=user)
        self.assertEqual(answer["prompt_ids"], item["prompt_ids"])
        recorded = item["float32"]["ids"]
        self.assertEqual(answer["ids"][:len(recorded)], recorded)
        self.assertEqual(answer["finish_reason"], "stop")
        on = self.run_json(*args, "--ignore-eos", tokens=40, prompt=user)
        self.assertEqual(len(on["ids"]), 40)
        self.assertEqual(on["finish_reason"], "length")
        self.assertEqual(on["ids"][:len(answer["ids"])], answer["ids"])

    def test_logprobs_come_with_every_step(self):
        answer = self.run_json("--logprobs", 3, tokens=5)
        self.assertEqual(len(answer["logprobs"]), len(answer["ids"]))
        for step, chosen in zip(answer["logprobs"], answer["ids"]):
            self.assertEqual(len(step), 3)
            self.assertEqual(step[0][0], chosen)  # greedy
            values = [value for _, value in step]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertLessEqual(sum(map(math.exp, values)), 1 + 1e-9)

    def test_any_bytes_are_a_prompt(self):
        strange = self.file("strange.bin", bytes(range(256)) * 3)
        done = run("run", "-m", self.model, "-f", strange, "-n", 3, "--json")
        self.assertIn(done.returncode, (0, 2), done.stderr)
        if done.returncode == 0:
            json.loads(done.stdout)

    # octet info, octet tokenize, octet quality

    def test_info_describes_the_model(self):
        model = self.json_of("info", "-m", self.model)["model"]
        for key, value in {"architecture": "llama", "layers": 30, "hidden_size": 576, "q_heads": 9, "kv_heads": 3,
                           "k_head_dim": 64, "v_head_dim": 64, "vocab_size": 49152, "context_length": 8192,
                           "k_offset_layers": [], "device": "cpu:0"}.items():
            self.assertEqual(model[key], value, key)
        per_token = {row["dtype"]: row["bytes_per_token"] for row in model["kv_cache"]}
        rows = 30 * 3 * 2
        self.assertEqual(per_token, {"f32": rows * 256, "bf16": rows * 128, "f16": rows * 128, "int8": rows * 68})
        self.assertIn("30 layers", self.succeeds("info", "-m", self.model).stdout.decode())
        self.fails(3, "info", "-m", self.model, "--json", "--device", "nosuch", says="nosuch")

    def test_tokenize_equals_the_recorded_ids(self):
        answers = json.loads((DATA / "oracles/smollm2_tok.json").read_text())["items"]
        some = [a for a in answers if "\0" not in a["text"]][:8] + [a for a in answers if a["ids"] != a["ids_noparse"]][:2]
        for answer in some:
            with self.subTest(text=answer["text"]):
                command = ["tokenize", "-m", self.model, "--prompt", answer["text"]]
                for flags, key in (([], "ids"), (["--no-special"], "ids_noparse"), (["--add-special"], "ids_addspecial")):
                    document = self.json_of(*command, *flags)
                    self.assertEqual(document["ids"], answer[key])
                    self.assertEqual(document["text"], answer["text"])

    def test_tokenize_goes_both_ways(self):
        text = "Grüße, 世界! 🙂 def f(x):\n\treturn x  # 1234567"
        path = self.file("text.txt", text.encode())
        ids = self.succeeds("tokenize", "-m", self.model, "-f", path).stdout.decode().strip()
        self.assertRegex(ids, r"\A\d+(,\d+)+\Z")
        self.assertEqual(self.succeeds("tokenize", "-m", self.model, "--decode", ids).stdout.decode(), text + "\n")
        document = self.json_of("tokenize", "-m", self.model, "--decode", ids)
        self.assertEqual(document["text"], text)
        self.assertEqual(document["ids"], list(map(int, ids.split(","))))
        self.fails(2, "tokenize", "-m", self.model, "--decode", "1,two", says="two")
        self.fails(2, "tokenize", "-m", self.model, "--decode", "49152", says="49152")
        self.fails(2, "tokenize", "-m", self.model, "--decode", "1,,2", says="''")
        self.fails(2, "tokenize", "-m", self.model, "--decode", "0x10", says="'0x10'")
        self.assertEqual(self.json_of("tokenize", "-m", self.model, "--decode", " 1, 002")["ids"], [1, 2])
        self.fails(2, "tokenize", "-m", self.model, "--decode=-1")
        self.fails(2, "tokenize", "-m", self.model, "-p", "x", "--decode", "1")
        self.fails(2, "tokenize", "-m", self.model)

    def test_an_empty_value_after_the_equals_sign_is_a_value(self):
        document = self.json_of("tokenize", "-m", self.model, "--prompt=")
        self.assertEqual(document, {"ids": [], "text": ""})
        self.run_fails(2, "--prompt=", "-n", "3", says="empty")
        for text in ("--file=", "-x", "--"):
            self.assertEqual(self.json_of("tokenize", "-m", self.model, "--prompt", text)["text"], text)

    def test_more_sequences_than_a_step_takes(self):
        self.run_fails(2, "-p", "x", "--max-num-seqs", "300", says=["300", "256"])

    def test_quality_refuses_what_it_cannot_measure(self):
        text = self.file("short.txt", b"Too short.")
        self.fails(2, "quality", "-m", self.model, "-f", text, "--tokens", 64, says="64")
        self.fails(2, "quality", "-m", self.model, "-f", text, "--tokens", 9000, "--window", 8193, says=["8193", "8192"])
        self.fails(2, "quality", "-m", self.model, "-f", text, "--tokens", 3, "--window", 2, says=["a window of its own", "2 or 4"])
        for cache, says in (("int8:worst", "'worst'"), ("bf16:plain", "'bf16:plain'"), ("int8:plain:x", "'int8:plain:x'"),
                            ("", "''")):
            self.fails(2, "quality", "-m", self.model, "-f", text, "--tokens", 2, "--caches", cache, says=says)
        self.fails(2, "quality", "-m", self.model, "-f", os.path.join(self.folder.name, "no.txt"), says="no.txt")

    def test_a_named_backend_that_is_not_used_is_told(self):
        path = self.file("liboctet_backend_other.so", b"no library")
        done = self.succeeds("run", "-m", self.model, "-p", "x", "-n", 1, "--backend-path", path)
        self.assertRegex(done.stderr.decode(), rf"(?m)^octet: warning: {re.escape(path)} of --backend-path is not used: \S")

    def test_loading_leaves_no_second_copy_of_the_weights(self):
        # Started by a small process: a child's peak counts what its parent had when it was started.
        program = "import os, sys\n_, status, usage = os.wait4(os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0)\n" \
                  "print()\nprint(usage.ru_maxrss)\nsys.exit(os.waitstatus_to_exitcode(status))"
        done = subprocess.run([sys.executable, "-c", program, octet, "run", "-m", self.model, "-p", "x", "-n", "1",
                               "--max-model-len", "64"], capture_output=True, env=clean_env())
        self.assertEqual(done.returncode, 0, done.stderr)
        peak = int(done.stdout.split()[-1]) * 1024
        # The packed weights are about as large as the file; tokenizer, libraries and activations are the rest.
        self.assertLess(peak, 1.8 * os.path.getsize(self.model))

    def test_bench_measures_each_case(self):
        document = self.json_of("bench", "-m", self.model, "--batch-size", "1,3", "--depth", "0,40", "--input-len", "20",
                                "--output-len", "2,4", "--compare", "int8,bf16", "--repeats", 2, "--warm-up", 0)
        rows = document["cases"]
        self.assertEqual([(r["batch_size"], r["depth"], r["output_len"], r["cache"]) for r in rows],
                         [(b, d, o, c) for b in (1, 3) for d in (0, 40) for o in (2, 4) for c in ("int8", "bf16")])
        for row in rows:
            self.assertEqual(row["kv_bytes"]["planned"], row["kv_bytes"]["allocated"])
            for what in ("prefill_tokens_per_s", "decode_tokens_per_s", "total_ms"):
                self.assertLess(0, row[what]["min"])
                self.assertTrue(row[what]["min"] <= row[what]["median"] <= row[what]["max"], row)
            self.assertLess(1e8, row["read_bytes_per_s"])
            # Each step reads the weights, and of the cache no more than all of it.
            step_s = row["batch_size"] / row["decode_tokens_per_s"]["median"]
            read = row["read_bandwidth_share"] * row["read_bytes_per_s"] * step_s
            least = document["step_weight_bytes"]
            self.assertTrue(least < read < least + row["kv_bytes"]["planned"], row)
        for int8, bf16 in zip(rows[::2], rows[1::2]):
            self.assertLess(int8["kv_bytes"]["planned"], bf16["kv_bytes"]["planned"] * 0.6)
        self.assertLess(50e6, document["step_weight_bytes"])
        text = self.succeeds("bench", "-m", self.model, "--input-len", 4, "--output-len", 1, "--repeats", 1).stdout.decode()
        self.assertRegex(text, r"(?m)^ +1 +0 +4 +1  int8 ")

    def test_bench_refuses_what_does_not_fit(self):
        self.fails(2, "bench", "-m", self.model, "--input-len", 8192, "--output-len", 1, says=["8193", "8192"])
        self.fails(2, "bench", "-m", self.model, "--depth", 8000, "--input-len", 192, "--output-len", 1,
                   says=["8193", "8192"])

    def test_quality_fails_when_a_limit_is_passed(self):
        command = ["quality", "-m", self.model, "-f", DATA / "text/english.txt", "--tokens", 96, "--caches", "int8"]
        self.assertEqual(run(*command, "--max-kl", 0.5).returncode, 0)
        done = run(*command, "--max-kl", 1e-12)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--max-kl", done.stderr.decode())
        self.assertEqual(run(*command, "--max-kl", 0).returncode, 1)


def main():
    global octet
    octet = os.path.join(os.path.abspath(sys.argv[1]), "bin", "octet")
    arguments = sys.argv[2:]
    suite = "WithoutModel"
    if arguments[:1] == ["--model"]:
        suite, arguments = "WithModel", arguments[1:]
        if not MODEL.exists():
            print(f"skipped: {MODEL} is not here; scripts/fetch-model smollm2 gets it")
            return SKIPPED
    names = [f"{suite}.{a}" if "." not in a and not a.startswith("-") else a for a in arguments]
    if not any(not n.startswith("-") for n in names):
        names.append(suite)
    program = unittest.main(argv=[sys.argv[0], *names], exit=False)
    return 0 if program.result.wasSuccessful() and program.result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
