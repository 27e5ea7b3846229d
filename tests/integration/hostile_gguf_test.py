#!/usr/bin/env python3
"""Model files that are wrong on purpose, through the built octet: one sentence, exit code 2, and no more memory than a
good file of the same size takes.

usage: hostile_gguf_test.py BUILD_FOLDER [unittest arguments]
"""

import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "data"))
from make_fuzz_seeds import (ARRAY, BOOL, F32, I32, I64, STRING, U8, U32, U64, gguf, text, value_of)  # noqa: E402

octet = ""  # the program
SLACK_KIB = 64 << 10  # how much more memory than for the good file

KEYS = {
    "general.architecture": (STRING, "llama"),
    "llama.block_count": (U32, 1),
    "llama.embedding_length": (U32, 8),
    "llama.feed_forward_length": (U32, 8),
    "llama.context_length": (U32, 64),
    "llama.attention.head_count": (U32, 1),
    "llama.attention.head_count_kv": (U32, 1),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "tokenizer.ggml.model": (STRING, "gpt2"),
    "tokenizer.ggml.pre": (STRING, "gpt-2"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["a", "b", "ab", "c"])),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [1, 1, 1, 1])),
    "tokenizer.ggml.merges": (ARRAY, (STRING, ["a b"])),
}
SENTENCE_PIECE = {
    "tokenizer.ggml.model": (STRING, "llama"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "<s>", "</s>", "<0x61>"])),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [2, 3, 3, 6])),
    "tokenizer.ggml.scores": (ARRAY, (F32, [0, 0, 0, 0])),
    "tokenizer.ggml.merges": None,
}
SHAPES = {
    "token_embd.weight": [8, 4],
    "output_norm.weight": [8],
    "blk.0.attn_norm.weight": [8],
    "blk.0.attn_q.weight": [8, 8],
    "blk.0.attn_k.weight": [8, 8],
    "blk.0.attn_v.weight": [8, 8],
    "blk.0.attn_output.weight": [8, 8],
    "blk.0.ffn_norm.weight": [8],
    "blk.0.ffn_gate.weight": [8, 8],
    "blk.0.ffn_up.weight": [8, 8],
    "blk.0.ffn_down.weight": [8, 8],
}


def model(keys=(), shapes=(), values=(), entries=(), counts=None):
    """The good file with changes: `keys` and `shapes` replace (None: leave out), `values` are first floats by tensor,
    `entries` are [shape, type, offset] by tensor, None as computed, `counts` the header's tensors and keys."""
    keys = {name: pair for name, pair in {**KEYS, **dict(keys)}.items() if pair}
    shapes = {name: shape for name, shape in {**SHAPES, **dict(shapes)}.items() if shape is not None}
    values, entries = dict(values), dict(entries)
    out = b"".join(text(name) + struct.pack("<I", kind) + value_of(kind, value) for name, (kind, value) in keys.items())
    offset, data = 0, b""
    for name, shape in shapes.items():
        changed = list(entries.get(name, [None, None, None]))
        shown = changed[0] if changed[0] is not None else shape
        out += text(name) + struct.pack("<I", len(shown)) + struct.pack(f"<{len(shown)}Q", *shown)
        out += struct.pack("<IQ", changed[1] or 0, changed[2] if changed[2] is not None else offset)
        floats = [0.5] * math.prod(shape)
        floats[0] = values.get(name, floats[0])
        data = data.ljust(offset, b"\0") + struct.pack(f"<{len(floats)}f", *floats)
        offset = (len(data) + 31) // 32 * 32
    tensors, count = counts or (len(shapes), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + out
    return head + b"\0" * (-len(head) % 32) + data


def with_first_key(kind, raw):
    """A file whose first key has this value, byte by byte."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("key") + struct.pack("<I", kind) + raw


def key(name, kind, value):
    return model({name: (kind, value)})


def llama(name, kind, value):
    return key("llama." + name, kind, value)


def vocabulary(name, kind, value, base=()):
    return model({**dict(base), "tokenizer.ggml." + name: (kind, value)})


NESTED = b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(1000)) + struct.pack("<IQB", U8, 1, 0)
NAN, INFINITY = float("nan"), float("inf")

# What octet info and octet run refuse, with a word of the sentence.
FILES = {
    "more keys than bytes": (model(counts=(11, 1 << 60)), "keys"),
    "more tensors than bytes": (model(counts=(1 << 60, 13)), "tensors"),
    "counts of all ones": (model(counts=((1 << 64) - 1, (1 << 64) - 1)), "more than fit"),
    "a key's name past the end": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40) + bytes(20), "incomplete"),
    "a text past the end": (with_first_key(STRING, struct.pack("<Q", 1 << 62) + bytes(8)), "incomplete"),
    "an array past the end": (with_first_key(ARRAY, struct.pack("<IQ", U8, (1 << 64) - 1) + bytes(8)), "more than fit"),
    "an array of texts past the end": (with_first_key(ARRAY, struct.pack("<IQ", STRING, 1 << 60) + bytes(8)), "more than fit"),
    "arrays inside one another": (with_first_key(ARRAY, NESTED), "nests"),
    "a value of no type": (with_first_key(77, bytes(8)), "unknown type 77"),
    "an array of no type": (with_first_key(ARRAY, struct.pack("<IQ", 99, 1) + bytes(8)), "unknown type 99"),
    "a truth value of seven": (with_first_key(BOOL, b"\7"), "truth value"),
    "a key twice": (gguf([("key", U8, 1), ("key", U8, 2)]), "twice"),
    "a tensor twice": (gguf([], [("t", "F32", [1]), ("t", "F32", [1])]), "twice"),
    "tensors that overlap": (model(entries={"blk.0.attn_k.weight": [None, None, 0]}), "overlap"),
    "a tensor off its alignment": (model(entries={"blk.0.attn_k.weight": [None, None, 4]}), "alignment"),
    "a tensor past the end": (model(entries={"blk.0.attn_k.weight": [None, None, 1 << 20]}), "needs"),
    "a tensor at the end of the world": (model(entries={"blk.0.attn_k.weight": [None, None, (1 << 64) - 32]}), "needs"),
    "a tensor of too many elements": (model(entries={"blk.0.attn_k.weight": [[1 << 40, 1 << 40], None, None]}), "impossible"),
    "a tensor of no elements": (model(entries={"blk.0.attn_k.weight": [[0, 8], None, None]}), "impossible"),
    "a tensor of nine dimensions": (model(entries={"blk.0.attn_k.weight": [[1] * 9, None, None]}), "dimensions"),
    "a tensor of no dimensions": (model(entries={"blk.0.attn_k.weight": [[], None, None]}), "dimensions"),
    "an alignment of zero": (key("general.alignment", U32, 0), "alignment"),
    "an alignment of three": (key("general.alignment", U32, 3), "alignment"),
    "an alignment as text": (key("general.alignment", STRING, "32"), "type"),
    "an architecture that is a number": (key("general.architecture", U32, 1), "type"),
    "no architecture": (model({"general.architecture": None}), "general.architecture"),
    "a layer count that is text": (llama("block_count", STRING, "1"), "type"),
    "no layers": (llama("block_count", U32, 0), "block_count"),
    "four billion layers": (llama("block_count", U32, 0xffffffff), "block_count"),
    "layers beyond the integers": (llama("block_count", U64, (1 << 64) - 1), "block_count"),
    "more layers than tensors": (llama("block_count", U32, 4096), "blk.1."),
    "a hidden size in an array": (llama("embedding_length", ARRAY, (U32, [8])), "type"),
    "a negative hidden size": (llama("embedding_length", I64, -8), "embedding_length"),
    "another hidden size than the embeddings": (llama("embedding_length", U32, 16), "embedding_length"),
    "no context": (llama("context_length", U32, 0), "context_length"),
    "no heads": (llama("attention.head_count", U32, 0), "head_count"),
    "heads that KV heads do not divide": (llama("attention.head_count_kv", U32, 3), "head_count"),
    "heads that do not divide the width": (llama("attention.head_count", U32, 3), "head_count"),
    "heads of no channels": (llama("attention.key_length", U32, 0), "key_length"),
    "heads of other sizes than their weights": (llama("attention.key_length", U32, 16), "attn_q"),
    "a norm's epsilon that is no number": (llama("attention.layer_norm_rms_epsilon", F32, NAN), "epsilon"),
    "a norm's epsilon of zero": (llama("attention.layer_norm_rms_epsilon", F32, 0.0), "epsilon"),
    "a norm's epsilon below zero": (llama("attention.layer_norm_rms_epsilon", F32, -1.0), "epsilon"),
    "an infinite RoPE base": (llama("rope.freq_base", F32, INFINITY), "freq_base"),
    "a RoPE base of zero": (llama("rope.freq_base", F32, 0.0), "freq_base"),
    "more rotated channels than there are": (llama("rope.dimension_count", U32, 64), "dimension_count"),
    "an odd number of rotated channels": (llama("rope.dimension_count", U32, 3), "dimension_count"),
    "a RoPE stretch that is no number": (llama("rope.scaling.factor", F32, NAN), "scaling.factor"),
    "a negative window": (llama("attention.sliding_window", I32, -1), "sliding_window"),
    "a vocabulary size of its own": (llama("vocab_size", U32, 5), "vocab_size"),
    "no embeddings": (model(shapes={"token_embd.weight": None}), "token_embd.weight"),
    "a tensor missing": (model(shapes={"blk.0.ffn_up.weight": None}), "ffn_up"),
    "a tensor of another shape": (model(shapes={"blk.0.ffn_up.weight": [8, 9]}), "ffn_up"),
    "a norm that is no number": (model(values={"blk.0.attn_norm.weight": NAN}), "not finite"),
    "infinite K weights": (model(values={"blk.0.attn_k.weight": INFINITY}), "not finite"),
    "a RoPE factor of zero": (model(shapes={"rope_freqs.weight": [4]}, values={"rope_freqs.weight": 0.0}), "positive"),
}

# What octet run and octet tokenize refuse; octet info does not look at vocabularies.
VOCABULARIES = {
    "no kind": (model({"tokenizer.ggml.model": None}), "tokenizer.ggml.model"),
    "a kind that is a number": (vocabulary("model", U32, 1), "type"),
    "no tokens": (model({"tokenizer.ggml.tokens": None}), "tokenizer.ggml.tokens"),
    "an empty list of tokens": (vocabulary("tokens", ARRAY, (STRING, [])), "no tokens"),
    "tokens that are numbers": (vocabulary("tokens", ARRAY, (U32, [1, 2])), "type"),
    "an empty token": (vocabulary("tokens", ARRAY, (STRING, ["a", "b", "ab", ""])), "empty"),
    "a token twice": (vocabulary("tokens", ARRAY, (STRING, ["a", "b", "ab", "a"])), "both"),
    "fewer types than tokens": (vocabulary("token_type", ARRAY, (I32, [1, 1])), "token types"),
    "a type that does not exist": (vocabulary("token_type", ARRAY, (I32, [1, 1, 1, 9])), "type 9"),
    "a merge of unknown tokens": (vocabulary("merges", ARRAY, (STRING, ["a z"])), "merge 0"),
    "a merge of one token": (vocabulary("merges", ARRAY, (STRING, ["ab"])), "merge 0"),
    "merges that are numbers": (vocabulary("merges", ARRAY, (U32, [1])), "type"),
    "a BOS outside the vocabulary": (vocabulary("bos_token_id", U32, 4), "BOS"),
    "a negative EOS": (vocabulary("eos_token_id", I32, -1), "EOS"),
    "an end of turn beyond the integers": (vocabulary("eot_token_id", U64, (1 << 64) - 1), "eot"),
    "a BOS that is wanted and not named": (vocabulary("add_bos_token", BOOL, True), "BOS"),
    "no byte tokens": (vocabulary("tokens", ARRAY, (STRING, ["xa", "xb", "xc", "xd"])), "byte"),
    "fewer scores than tokens": (vocabulary("scores", ARRAY, (F32, [0]), SENTENCE_PIECE), "scores"),
    "a score that is no number": (vocabulary("scores", ARRAY, (F32, [0, NAN, 0, 0]), SENTENCE_PIECE), "score"),
    "a byte token of no byte": (vocabulary("tokens", ARRAY, (STRING, ["<unk>", "<s>", "</s>", "<0xZZ>"]), SENTENCE_PIECE), "<0x"),
    "a chat template that is a number": (key("tokenizer.chat_template", U32, 1), "type"),
}


class HostileGguf(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "bad.gguf")

    def run_octet(self, data, command):
        """Exit code, stdout and stderr of one run over a file of these bytes."""
        Path(self.path).write_bytes(data)
        args = {"info": ["info"], "run": ["run", "-p", "a", "-n", "1"], "tokenize": ["tokenize", "-p", "a"]}[command]
        env = {k: v for k, v in os.environ.items() if k not in ("OCTET_BACKENDS", "OCTET_BACKEND_PATH")}
        done = subprocess.run([octet, *args, "-m", self.path], capture_output=True, env=env, timeout=60)
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def refused(self, cases, commands):
        for what, (data, says) in cases.items():
            for command in commands:
                with self.subTest(what=what, command=command):
                    code, out, err = self.run_octet(data, command)
                    self.assertEqual(code, 2, err)
                    self.assertEqual(out, b"")
                    self.assertRegex(err, r"\Aoctet: \S[^\n]*\n\Z")
                    self.assertIn(says, err)

    def test_every_file_ends_in_one_sentence(self):
        for command in ("info", "run", "tokenize"):
            code, _, err = self.run_octet(model(), command)
            self.assertEqual(code, 0, err)
        good = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.refused(FILES, ("info", "run"))
        self.refused(VOCABULARIES, ("run", "tokenize"))
        self.refused({"more tokens than embeddings": (model(shapes={"token_embd.weight": [8, 3]}), "embeddings")}, ("run",))
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, good + SLACK_KIB)


if __name__ == "__main__":
    octet = os.path.join(sys.argv[1], "bin", "octet")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
