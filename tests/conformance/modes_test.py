#!/usr/bin/env python3
"""What octet-conformance prints and answers in each mode. usage: modes_test.py KIT BACKEND_FOLDER

Runs on the reference backend: slow, so with few cases. Profiles and expectations: also that each way to fail fails.
"""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

KIT, BACKENDS = Path(sys.argv[1]), Path(sys.argv[2])
REFERENCE = BACKENDS / "liboctet_backend_reference.so"
DENSE = "Dense.Add/*"
LATENT = "Honesty.Layout/latent_*:Append.StoresWhatTheReferenceStores/latent_i8_token_rot64*:Dense.Add/f32"


def kit(*arguments, **options):
    done = subprocess.run([KIT, *map(str, arguments)], text=True, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=240, **options)
    return done.returncode, done.stdout, done.stderr


def run(*arguments, backend=REFERENCE, **options):
    return kit("--backend", backend, "--threads", "1", *arguments, **options)


def again(out):
    """Runs what the first "again:" line says, as a shell does."""
    program, *arguments = shlex.split(re.search(r"^  again: (.*)$", out, re.MULTILINE).group(1))
    assert program == "octet-conformance"
    return kit(*arguments)


class Modes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_the_closing_line_can_be_published(self):
        code, out, _ = run("--filter", DENSE)
        self.assertEqual(code, 0, out)
        self.assertRegex(out.splitlines()[-1],
                         r"^backend reference \S+, device 0 \(.+\), ABI \S+, kit \S+, profile none, "
                         r"3 cases [0-9a-f]{16}: 3 passed, 0 failed, 0 unsupported$")

    def test_json_says_what_the_text_says(self):
        target = self.folder / "out.json"
        code, out, _ = run("--filter", LATENT, "--json", target)
        self.assertEqual(code, 0, out)
        report = json.loads(target.read_text())
        self.assertEqual(report["backend"]["name"], "reference")
        self.assertIn(report["case_list"], out)
        unsupported = [c for c in report["cases"] if c["result"] == "unsupported"]
        self.assertEqual(report["counts"]["unsupported"], len(unsupported))
        self.assertEqual(report["counts"]["pass"], len(report["cases"]) - len(unsupported))
        self.assertIn(f"{report['counts']['pass']} passed, 0 failed, {len(unsupported)} unsupported", out)
        self.assertIn("MLA", unsupported[0]["text"])

    def test_a_profile_demands_that_its_cases_pass(self):
        good = self.file("good.txt", "Dense.Add/*\n")
        unsupported = self.file("latent.txt", "Dense.Add/*\nPages.*/latent_*\n")
        code, out, _ = run("--profile", good, "--profile", unsupported)
        self.assertEqual(code, 1, out)
        self.assertRegex(out, r"profile +profile \S+/latent.txt wants Pages\.\S+/latent_\S+: unsupported: ")
        self.assertNotRegex(out, r"profile \S+/good.txt wants")
        self.assertRegex(out, r"profile \S+good.txt\+\S+latent.txt MISSED, ")

    def test_profiles_that_make_no_sense_are_refused_before_the_run(self):
        self.refuses("--profile", "no-such-profile", says="there is no profile 'no-such-profile'")
        for text, sentence in (("Dense.Add/*\nDense.Subtract/*\n", ":2: 'Dense.Subtract/*' matches no case"),
                               ("# all\ninclude\nDense.Add/*\n", ":2: 'include' is neither")):
            bad = self.file("bad.txt", text)
            self.refuses("--profile", bad, says=f"{bad}{sentence}")
            self.refuses("--profile", self.file("outer.txt", f"Dense.Add/*\ninclude {bad}"), says=f"{bad}{sentence}")

    def test_expected_failures_pass_and_unexpected_passes_fail(self):
        fault = ["--options", "fault=bias_ignored", "--filter", "Dense.Linear/f32_t5_c256_r24_exact_bias:Dense.Add/f32"]
        code, out, _ = run(*fault)
        self.assertEqual(code, 1, out)
        listed = self.file("bias", "[not yet]\nDense.Linear/*_exact_bias : the bias is not added yet\n")
        code, out, _ = run(*fault, "--expect", listed)
        self.assertEqual(code, 0, out)
        self.assertIn("1 passed, 0 failed, 0 unsupported, 1 expected to fail, 0 passed unexpectedly", out)
        code, out, _ = run("--filter", DENSE, "--expect", self.file("add", "[never]\nDense.Add/f16 : no f16 here\n"))
        self.assertEqual(code, 1, out)
        self.assertRegex(out, r"unexpected-pass Dense\.Add/f16\n .*line 2, says never: no f16 here")

    def test_expectations_that_make_no_sense_are_refused(self):
        for text, sentence in (("[never]\nDense.Add/f16\n", "has no reason"),
                               ("[never]\nDense.Gone/* : old\n", "matches no case"),
                               ("[never]\nDense.Add/* : a\n[not yet]\nDense.Add/* : b\n", "line 2 already")):
            code, _, err = run("--filter", DENSE, "--expect", self.file("bad", text))
            self.assertEqual(code, 2)
            self.assertIn(sentence, err)

    def test_lists_that_cannot_be_read(self):
        for path in ("/", "/dev/zero", self.folder / "missing"):
            self.refuses("--expect", path, says=str(path))
        self.refuses("--profile", "/", says="cannot read /")
        self.refuses("--expect", "", says="--expect is ''")
        self.refuses("--profile", "", says="there is no profile ''")
        self.assertEqual(run("--filter", DENSE, "--expect", self.file("none", ""))[0], 0)

    def test_no_unsupported(self):
        self.assertEqual(run("--filter", LATENT, "--no-unsupported")[0], 1)
        self.assertEqual(run("--filter", DENSE, "--no-unsupported")[0], 0)

    def test_support_prints_kernels_and_reasons(self):
        target = self.folder / "support.json"
        code, out, _ = run("--mode", "support", "--json", target)
        self.assertEqual(code, 0, out)
        self.assertRegex(out, r"i8_token_rot64_p16_kv2_d64 +slow +reference")
        self.assertRegex(out, r"latent_\S+ +no +.*MLA")
        rows = json.loads(target.read_text())["support"]
        self.assertEqual({row["area"].split()[0] for row in rows}, {"cache", "attention", "weights", "fused"})
        self.assertTrue(all(row.get("kernel") or row.get("reason") for row in rows))

    def test_perf_measures_shares(self):
        target = self.folder / "perf.json"
        code, out, err = run("--mode", "perf", "--filter", "*kv2_d64*_t8", "--seconds", "0.01", "--json", target)
        self.assertEqual(code, 0, out + err)
        report = json.loads(target.read_text())
        self.assertGreater(report["copy_bytes_per_second"], 0)
        (row,) = report["perf"]
        self.assertAlmostEqual(row["share"], row["bytes"] / row["seconds"] / report["copy_bytes_per_second"])
        # 8 tokens, 2 heads: 64 floats of K and V in, 64 codes and a scale of each out.
        self.assertEqual(row["bytes"], 8 * 2 * 2 * (64 * 4 + 64 + 4))
        self.assertEqual(run("--mode", "perf", "--filter", "nothing")[0], 2)

    def test_stress_runs_a_seed_again(self):
        code, out, _ = run("--mode", "stress", "--seconds", "0", "--seed", "7")
        self.assertEqual(code, 0, out)
        self.assertIn("stress: 1 random cases from seed 7", out)
        code, out, _ = run("--mode", "stress", "--seconds", "60", "--seed", "2", "--options", "fault=lse_base_two")
        self.assertEqual(code, 1, out)
        seed = re.search(r"^  seed (\d+): attention ", out, re.MULTILINE).group(1)
        self.assertGreater(int(seed), 2)  # not the one that the run began with
        self.assertIn(f" --mode stress --seed {seed} --seconds 0\n", out)
        code, repeated, _ = again(out)
        self.assertEqual(code, 1, repeated)
        self.assertIn(f"stress: 1 random cases from seed {seed}", repeated)
        self.assertIn(f"  seed {seed}: attention ", repeated)
        self.assertEqual(run("--mode", "stress", "--seconds", "0", "--seed", seed)[0], 0)

    def test_a_failure_says_the_command_that_repeats_it(self):
        library = self.folder / "it's here"
        library.mkdir()
        library /= REFERENCE.name
        shutil.copy(REFERENCE, library)
        code, out, _ = run("--filter", "Dense.Linear/f32_t5_c256_r24*", "--options", "fault=bias_ignored",
                           backend=library)
        self.assertEqual(code, 1, out)
        (case,) = re.findall(r"^fail +(\S+)$", out, re.MULTILINE)[:1]
        code, repeated, _ = again(out)
        self.assertEqual(code, 1, repeated)
        self.assertEqual(re.findall(r"^fail +(\S+)$", repeated, re.MULTILINE), [case])
        self.assertIn("1 case ", repeated)

    def test_every_name_is_the_filter_of_its_case_alone(self):
        names = kit("--list")[1].split()
        self.assertGreater(len(names), 1000)
        self.assertEqual(len(set(names)), len(names))
        for name in names:
            self.assertRegex(name, r"\A\w+\.[\w+./]+\Z")  # nothing that a filter reads as more than itself
        for name in names[::50] + [name for name in names if "Run/k_bf16_" in name]:
            self.assertEqual(kit("--list", "--filter", name)[1].split(), [name])
        some = names[3::200]
        self.assertEqual(kit("--list", "--filter", ":".join(some))[1].split(), some)
        self.assertEqual(kit("--list", "--filter", f"{':'.join(some)}-{some[0]}:{some[2]}")[1].split(),
                         [some[1], *some[3:]])

    def test_threads_that_cannot_be_started_are_no_fault_of_the_backend(self):
        def no_threads():  # a stack of this size fits into no address space
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 47, resource.getrlimit(resource.RLIMIT_STACK)[1]))

        if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
            self.skipTest("the stack limit cannot be raised far enough")
        cases = "Abi.AnswersEveryQueryAlike/*:Threads.*:Dense.Add/f32"
        code, out, err = run("--filter", cases, "--verbose", preexec_fn=no_threads)
        self.assertEqual((code, err), (0, ""), out)
        self.assertRegex(out, r"not-run +\S+ and \d+ more: not run: the machine starts no further thread: ")
        self.assertRegex(out, r"(?m)^not-run +Threads\.WorkMovesBetweenThreads/attention$")
        self.assertRegex(out, r": 1 passed, 0 failed, 0 unsupported, \d+ not run\n\Z")
        code, out, err = kit("--backend", REFERENCE, "--threads", "3", "--filter", cases, preexec_fn=no_threads)
        self.assertEqual((code, out), (3, ""), err)
        self.assertRegex(err, r"\Aoctet-conformance: the system starts no further thread: [^\n]+\n\Z")

    def test_memory_that_runs_out_is_no_fault_of_the_backend(self):
        if any(mark in KIT.read_bytes() for mark in (b"__asan_report_load", b"__tsan_func_entry")):
            self.skipTest("a sanitizer needs more address space than any limit that would be short")
        codes = set()
        for mebibytes in (*range(18, 48, 3), 512):
            limit = mebibytes << 20
            code, out, err = run("--filter", "Abi.*:Honesty.Layout/*:Metamorphic.SameRows*", "--verbose",
                                 preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            if code == 127:  # the dynamic linker had too little for the kit itself
                continue
            self.assertIn(code, (0, 3), f"{mebibytes} MiB\n{out[-2000:]}{err}")
            self.assertNotRegex(out, r"(?m)^fail ")
            self.assertRegex(out + err, "too little memory|cannot map|no further thread" if code else " 0 failed, ")
            codes.add(code)
        self.assertEqual(codes, {0, 3})

    def refuses(self, *arguments, says, program=run):
        """One sentence on stderr, nothing on stdout, exit code 2."""
        code, out, err = program(*arguments)
        self.assertEqual((code, out), (2, ""), f"{arguments}\n{err}")
        self.assertRegex(err, r"\Aoctet-conformance: [^\n]+\n\Z")
        self.assertIn(says, err)

    def test_a_name_that_matches_nothing_is_refused(self):
        self.refuses("--filter", "Nothing.*", says="no case matches")
        self.refuses("--filter", "Nothing.*", "--list", says="no case matches", program=kit)
        self.refuses("--filter", "", "--list", says="no case matches", program=kit)
        self.assertEqual(kit("--filter", DENSE, "--list")[:2],
                         (0, "Dense.Add/f32\nDense.Add/f16\nDense.Add/bf16\n"))

    def test_a_command_line_that_makes_no_sense(self):
        for option, value in (("--seconds", "-1"), ("--seconds", "nan"), ("--seconds", "inf"), ("--seconds", "1e99"),
                              ("--seed", "-1"), ("--seed", str(1 << 64)), ("--seed", "0x10"), ("--device", "-1"),
                              ("--device", "x"), ("--device", "")):
            self.refuses("--mode", "stress", option, value, says=f"{option} is '{value}'")
        self.refuses("--threads", "2", says="--threads was given 2 times")
        self.refuses("--mode", "fast", says="--mode is 'fast'; use test, support, perf or stress")
        self.refuses("--mode", says="--mode needs a value")
        self.refuses("--no-such-option", says="does not take '--no-such-option'")
        self.refuses("--list=maybe", says="--list takes no value")
        self.refuses("--filter", "*", "--profile", "full-model", says="--profile")
        for mode, option, value in (("test", "--seed", 1), ("support", "--seconds", 1), ("perf", "--expect", "x"),
                                    ("support", "--filter", "*")):
            self.refuses("--mode", mode, option, value, says=f"{option} has no use in --mode {mode}")
        self.refuses("--mode", "perf", "--list", says="--list has no use")
        for option in (["--backend", REFERENCE], ["--profile", "full-model"], ["--json", "/dev/null"], ["--verbose"]):
            self.refuses("--list", *option, says=f"leave out {option[0]}", program=kit)

    def test_version(self):
        code, out, _ = kit("--version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"\Aoctet-conformance \d+\.\d+\.\d+\n\Z")

    def test_a_report_that_cannot_be_written_is_noticed_before_the_run(self):
        for path in (self.folder / "none/out.json", self.folder, ""):
            self.refuses("--json", path, says=f"'{path}'")  # no filter: a run would take minutes
        kept = self.file("kept.json", "old")
        self.refuses("--json", kept, "--filter", "Nothing.*", says="no case matches")
        self.assertEqual(kept.read_text(), "old")
        self.file("kept.json", "long" * 10000)
        self.assertEqual(run("--json", kept, "--filter", DENSE)[0], 0)
        self.assertEqual(json.loads(kept.read_text())["counts"]["pass"], 3)
        code, _, err = run("--json", "/dev/full", "--filter", DENSE)
        self.assertEqual(code, 1)
        self.assertIn("/dev/full", err)

    def test_a_report_never_takes_the_place_of_what_the_run_reads(self):
        library = self.folder / REFERENCE.name
        shutil.copy(REFERENCE, library)
        before = library.read_bytes()
        os.link(library, self.folder / "hard")
        (self.folder / "soft").symlink_to(library)
        for path in (library, self.folder / "hard", self.folder / "soft"):
            self.refuses("--filter", DENSE, "--json", path, says="the run reads that file",
                         program=lambda *arguments: run(*arguments, backend=library))
        self.assertEqual(library.read_bytes(), before)
        expectations = self.file("expect", "[never]\nAttention.* : none\n")
        self.refuses("--filter", DENSE, "--expect", expectations, "--json", expectations, says="the run reads")
        with expectations.open() as stdin:
            self.refuses("--expect", "-", "--json", expectations, says="the run reads",
                         program=lambda *arguments: run(*arguments, stdin=stdin))
        self.assertIn("[never]", expectations.read_text())
        profile = self.file("profile", DENSE)
        self.refuses("--profile", profile, "--json", profile, says="the run reads")
        self.assertEqual(profile.read_text(), DENSE)

    def test_a_run_that_is_interrupted_leaves_no_report(self):
        new, link = self.folder / "new.json", self.folder / "link.json"
        link.symlink_to(new)
        for path in (new, link):
            process = subprocess.Popen([KIT, "--backend", REFERENCE, "--threads", "1", "--verbose", "--json", path],
                                       stdout=subprocess.PIPE, text=True)
            self.assertTrue(process.stdout.readline())  # a case is done
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, -signal.SIGINT)
            self.assertFalse(new.exists())
            self.assertEqual(run("--filter", DENSE, "--json", path)[0], 0)
            self.assertEqual(json.loads(new.read_text())["counts"]["pass"], 3)
            new.unlink()

    def test_output_that_cannot_be_written(self):
        for arguments in (["--help"], ["--version"], ["--list"], ["--filter", DENSE], ["--mode", "support"]):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                choice = [] if "--list" in arguments else ["--backend", REFERENCE]
                command = [KIT, *choice, *arguments]
                for stdout in ({"stdout": full}, {"preexec_fn": lambda: os.close(1)}):
                    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False, **stdout)
                    self.assertEqual(done.returncode, 1, stdout)
                    self.assertRegex(done.stderr.decode(), r"\Aoctet-conformance: [^\n]*stdout[^\n]*\n\Z")
                for stderr in ({"stderr": full}, {"preexec_fn": lambda: os.close(2)}):
                    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False, **stderr)
                    self.assertEqual(done.returncode, 0, stderr)

    def test_the_environment_leaves_no_case_out(self):
        whole = run("--filter", DENSE)[1]
        hostile = {"GTEST_TOTAL_SHARDS": "2", "GTEST_SHARD_INDEX": "0", "GTEST_REPEAT": "2", "GTEST_FILTER": "*f32",
                   "GTEST_OUTPUT": f"xml:{self.folder}/out.xml", "GTEST_LIST_TESTS": "1"}
        os.environ.update(hostile)
        try:
            self.assertEqual(run("--filter", DENSE)[1], whole)
        finally:
            for name in hostile:
                del os.environ[name]
        self.assertFalse((self.folder / "out.xml").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
