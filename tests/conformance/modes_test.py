#!/usr/bin/env python3
"""What octet-conformance prints and answers in each mode. usage: modes_test.py KIT BACKEND_FOLDER

Runs on the reference backend: slow, so with few cases. Profiles and expectations: also that each way to fail fails.
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

KIT, BACKENDS = Path(sys.argv[1]), Path(sys.argv[2])
DENSE = "Dense.Add/*"
LATENT = "Honesty.Layout/latent_*:Append.StoresWhatTheReferenceStores/latent_i8_token_rot64*:Dense.Add/f32"


def run(*arguments, backend="reference"):
    library = BACKENDS / f"liboctet_backend_{backend}.so"
    done = subprocess.run([KIT, "--backend", library, "--threads", "1", *map(str, arguments)], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240)
    return done.returncode, done.stdout, done.stderr


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
        missing = self.file("missing.txt", "Dense.Subtract/*\n")
        code, out, _ = run("--profile", good, "--profile", unsupported, "--profile", missing)
        self.assertEqual(code, 1, out)
        self.assertRegex(out, r"profile +profile \S+/latent.txt wants Pages\.\S+/latent_\S+: unsupported: ")
        self.assertRegex(out, r"profile +profile \S+/missing.txt wants 'Dense.Subtract/\*', which matches no case")
        self.assertNotRegex(out, r"profile \S+/good.txt wants")
        self.assertRegex(out, r"profile \S+good.txt\+\S+missing.txt MISSED, ")
        code, _, err = run("--profile", "no-such-profile")
        self.assertEqual(code, 2)
        self.assertIn("there is no profile 'no-such-profile'", err)

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
                               ("[never]\nDense.Gone/* : old\n", "matches no case")):
            code, _, err = run("--filter", DENSE, "--expect", self.file("bad", text))
            self.assertEqual(code, 2)
            self.assertIn(sentence, err)

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
        self.assertEqual({row["area"].split()[0] for row in rows}, {"cache", "attention", "weights"})
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
        code, out, _ = run("--mode", "stress", "--seconds", "60", "--seed", "1", "--options", "fault=lse_base_two")
        self.assertEqual(code, 1, out)
        seed = re.search(r"seed (\d+): attention .*--seed N", out).group(1)
        code, out, _ = run("--mode", "stress", "--seconds", "0", "--seed", seed, "--options", "fault=lse_base_two")
        self.assertEqual(code, 1, out)
        self.assertEqual(run("--mode", "stress", "--seconds", "0", "--seed", seed)[0], 0)

    def test_a_name_that_matches_nothing_is_refused(self):
        code, _, err = run("--filter", "Nothing.*")
        self.assertEqual(code, 2)
        self.assertIn("no case matches", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
