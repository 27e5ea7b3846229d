#!/usr/bin/env python3
"""Writes the seeds of the fuzz corpora, tests/data/fuzz/<target>/seed-*; other files there are found inputs and stay.

Usage: make_fuzz_seeds.py. Needs nothing but Python; the same bytes every time. What an input means stands at the top of
tests/fuzz/<target>_fuzz.cc.
"""
import json
import random
import struct
from pathlib import Path

DATA = Path(__file__).resolve().parent
OUT = DATA / "fuzz"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
# ggml numbers: name, block elements, block bytes
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
         "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
         "Q6_K": (14, 256, 210)}


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value_of(kind, value):
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(value_of(element, item) for item in items)
    return struct.pack("<" + CODES[kind], value)


def gguf(keys, tensors=(), version=3, alignment=32):
    """keys: (name, kind, value); tensors: (name, type, shape in GGUF order)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, value in keys:
        out += text(name) + struct.pack("<I", kind) + value_of(kind, value)
    offset, data = 0, b""
    for index, (name, kind, shape) in enumerate(tensors):
        number, elements, block = TYPES[kind]
        count = 1
        for size in shape:
            count *= size
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", number, offset)
        body = bytes((index * 31 + i * 7) % 61 for i in range(count // elements * block))
        data = data.ljust(offset, b"\0") + body
        offset = (len(data) + alignment - 1) // alignment * alignment
    return out + (b"\0" * (-len(out) % alignment) + data if tensors else b"")


def model(architecture, hidden=8, heads=2, kv_heads=1, ffn=8, vocab=4, kind="F32", extra=(), bias=False, qk_norm=False,
          post=False, more=()):
    head = hidden // heads
    a = architecture + "."
    keys = [("general.architecture", STRING, architecture), (a + "block_count", U32, 1),
            (a + "embedding_length", U32, hidden), (a + "feed_forward_length", U32, ffn),
            (a + "context_length", U32, 64), (a + "attention.head_count", U32, heads),
            (a + "attention.head_count_kv", U32, kv_heads),
            (a + "attention.layer_norm_rms_epsilon", F32, 1e-5)]
    keys += [(a + name, what, value) for name, what, value in extra]
    b = "blk.0."
    tensors = [("token_embd.weight", kind, [hidden, vocab]), ("output_norm.weight", "F32", [hidden]),
               (b + "attn_norm.weight", "F32", [hidden]), (b + "attn_q.weight", kind, [hidden, hidden]),
               (b + "attn_k.weight", kind, [hidden, kv_heads * head]),
               (b + "attn_v.weight", kind, [hidden, kv_heads * head]),
               (b + "attn_output.weight", kind, [hidden, hidden]), (b + "ffn_norm.weight", "F32", [hidden]),
               (b + "ffn_gate.weight", kind, [hidden, ffn]), (b + "ffn_up.weight", kind, [hidden, ffn]),
               (b + "ffn_down.weight", kind, [ffn, hidden])]
    if bias:
        tensors += [(b + "attn_q.bias", "F32", [hidden]), (b + "attn_k.bias", "F32", [kv_heads * head]),
                    (b + "attn_v.bias", "F32", [kv_heads * head])]
    if qk_norm:
        tensors += [(b + "attn_q_norm.weight", "F32", [head]), (b + "attn_k_norm.weight", "F32", [head])]
    if post:
        tensors += [(b + "post_attention_norm.weight", "F32", [hidden]), (b + "post_ffw_norm.weight", "F32", [hidden])]
    return gguf(keys, tensors + list(more))


def gguf_seeds():
    yield "empty", b""
    yield "header", gguf([])
    yield "version2", gguf([("k", U32, 1)], version=2)
    yield "kinds", gguf([("u8", U8, 1), ("i8", I8, -1), ("u16", U16, 2), ("i16", I16, -2), ("u32", U32, 3), ("i32", I32, -3),
                         ("f32", F32, 1.5), ("bool", BOOL, True), ("string", STRING, "text"), ("u64", U64, 1 << 63),
                         ("i64", I64, -(1 << 63)), ("f64", F64, 0.1)])
    yield "arrays", gguf([("i8s", ARRAY, (I8, [1, -2, 3])), ("f32s", ARRAY, (F32, [0.5])), ("bools", ARRAY, (BOOL, [True])),
                          ("strings", ARRAY, (STRING, ["a", "", "bc"])), ("u64s", ARRAY, (U64, [1 << 63])),
                          ("nested", ARRAY, (ARRAY, [(U8, [1]), (ARRAY, [(STRING, ["x"])])]))])
    yield "types", gguf([("general.alignment", U32, 8)],
                        [(name, name, [elements, 2]) for name, (_, elements, _) in TYPES.items()], alignment=8)
    yield "llama", model("llama")
    yield "llama-q8", model("llama", hidden=32, heads=4, kv_heads=2, ffn=32, kind="Q8_0")
    yield "llama-scaled", model("llama", extra=[("rope.scaling.type", STRING, "llama3"), ("rope.scaling.factor", F32, 8),
                                               ("rope.scaling.original_context_length", U32, 16),
                                               ("attention.sliding_window", U32, 8), ("vocab_size", U32, 4)])
    yield "llama-freqs", model("llama", more=[("rope_freqs.weight", "F32", [2]), ("output.weight", "F32", [8, 4])])
    yield "qwen2", model("qwen2", bias=True, extra=[("rope.scaling.type", STRING, "yarn"), ("rope.scaling.factor", F32, 4),
                                                    ("rope.freq_base", F32, 1e6)])
    yield "qwen3", model("qwen3", qk_norm=True, extra=[("attention.key_length", U32, 4)])
    yield "gemma3", model("gemma3", qk_norm=True, post=True,
                          extra=[("attention.sliding_window", U32, 8), ("final_logit_softcapping", F32, 30)])
    yield "split", gguf([("split.count", U16, 2)])


SPELLINGS = ["a", "b", "ab", "abc", "Ġ", "Ġa"]


def vocabulary(kind, tokens, **changes):
    keys = {"tokenizer.ggml.model": (STRING, kind), "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
            "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * len(tokens))),
            "tokenizer.chat_template": (STRING, "ab abc <s> \u00e9")}
    if kind == "gpt2":
        keys["tokenizer.ggml.pre"] = (STRING, "qwen2")
        keys["tokenizer.ggml.merges"] = (ARRAY, (STRING, ["a b", "ab c"]))
    else:
        keys["tokenizer.ggml.scores"] = (ARRAY, (F32, [float(-i) for i in range(len(tokens))]))
    keys.update({"tokenizer.ggml." + name: value for name, value in changes.items()})
    return gguf([(name, *value) for name, value in keys.items()])


def tokenizer_seeds():
    bytewise = ["a", "b", "c", "Ġ", "ab", "abc", "<s>"]
    yield "gguf-bpe", vocabulary("gpt2", bytewise, bos_token_id=(U32, 6), eos_token_id=(U32, 6), add_bos_token=(BOOL, True))
    yield "gguf-bpe-types", vocabulary("gpt2", bytewise, token_type=(ARRAY, (I32, [1, 1, 1, 1, 1, 4, 3])))
    pieces = ["<unk>", "<s>", "</s>", "<0x61>", "<0x0A>", "▁", "a", "b", "ab", "▁ab"]
    yield "gguf-spm", vocabulary("llama", pieces, token_type=(ARRAY, (I32, [2, 3, 3, 6, 6, 1, 1, 1, 1, 1])))
    yield "gguf-bert", vocabulary("bert", pieces)
    bpe = b"t10ab\nt10abc\nt10\xc4\xa0a\nt30<|im_end|>\nt40<tool>\nma b\nmab c\nm\xc4\xa0 a\n"
    for index, name in enumerate(["default", "smollm", "qwen2", "llama-bpe", "gpt-2"]):
        # The second character modulo 6 picks the pre-tokenizer.
        head = b"b" + bytes([ord("0") + index]) + b"--~0be-"
        yield "bpe-" + name, head + b"\nab abc 12345 <|im_end|> don't\t  <tool>\xc3\xa9\xff\n*\n" + bpe
    spm = b"t20<unk>\nt30<s>\nt30</s>\nt60<0x20>\nt60<0xC3>\nt60<0xA9>\nt1\x7f\xe2\x96\x81\nt1\x05a\nt1\x06b\nt1\x20ab\nt1\x30\xe2\x96\x81ab\n"
    yield "spm", b"s012--bes\nab  abab<s>\xc3\xa9\n*\n" + spm
    yield "spm-poor", b"s0----0-s\nab xyz\n" + spm
    yield "broken", b"b1\x7f~-5be-\nabc\nt10a\nt10a\nt90x\nt10\nma\n"


TEMPLATES = [
    "{{ messages[0]['content'] | trim | upper | replace('BE', \"x\") }}{{ messages | length }}",
    "{%- set ns = namespace(n=0, last='') -%}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ loop.index0 }}"
    "{{ loop.previtem.role if loop.previtem else '-' }}{% else %}none{% endfor %}{{ ns.n }}",
    "{% macro show(x, d='?', *, k=1) %}{{ x }}{% endmacro %}{{ show('a') }}",
    "{% macro show(x, d='?') %}[{{ x }}{{ d }}]{% endmacro %}{{ show('a') }}{{ show(d=2, x=messages[-1]) }}",
    "{{ tools | tojson(indent=2) }}{{ tools[0] | tojson | safe }}{{ {'a': [1, 2.5, none, true], 'b': {}} | tojson }}",
    "{% for k, v in tools[0].function | items %}{{ k ~ '=' ~ v }}{% if loop.last %}.{% endif %}{% endfor %}",
    "{# comment #}{% raw %}{{ raw }}{% endraw %}{%- if a is defined and not b is none or 1 in [1, 2] %}x{% elif 1 < 2 <= 3 %}y{% else %}z{% endif -%}",
    "{{ 'a,b,c'.split(',') | join('-') }}{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ [3, 1, 2] | sort | first }}{{ (1, 2) | last }}",
    "{{ 7 // 2 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 1 / 4 }}{{ 'ab' * 3 }}{{ [1] + [2] }}{{ 1.5e3 | int }}{{ '7' | int + 1 }}",
    "{% set x %}block {{ number }}{% endset %}{{ x | upper }}{% set y | trim %} z {% endset %}{{ y }}",
    "{% for i in range(5) if i % 2 %}{% if i == 3 %}{% break %}{% endif %}{% continue %}{% endfor %}{{ range(3) | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}{{ messages | rejectattr('tool_calls') | list | length }}",
    "{{ strftime_now('%Y-%m-%d') }}{{ '%s and %d' | format('a', 2) }}{{ messages is mapping }}{{ 'x' is string }}{{ ratio is float }}",
    "{{ raise_exception('no ' + messages[0].role) }}",
    "{% generation %}{{ bos_token }}{% endgeneration %}{{ 'x'.startswith('x') and 'y'.endswith('z') }}{{ 'a b'.title() | indent(2, true) }}",
    "{{ dict(a=1, **{'b': 2}) }}", "{{ dict(a=1).get('b', 'c') }}{{ {'k': 1}.items() | list }}{{ {'k': 1}.keys() | list }}",
    "{{ '\\u00e9\\x41\\101\\n\\'' }}{{ \"\\\"\" }}{{ 'é' | length }}{{ 'a' 'b' }}",
    "{{ (((((((((((1))))))))))) }}{{ not not not true }}{{ - - 1 }}{{ a.b.c }}",
    "{{ [[[[1]]]] }}{{ 1 if 2 else 3 if 4 else 5 }}{{ messages | batch(2) }}{{ 'a' | default('b', true) }}",
]


def chat_template_seeds():
    golden = json.loads((DATA / "chat" / "golden.json").read_text())
    seen = []
    for case in golden["cases"] + golden["failing"]:
        if case["template"] not in seen:
            seen.append(case["template"])
    # The long ones and every fifth of the short ones; the rest say the same.
    kept = [t for i, t in enumerate(seen) if len(t) > 300 or i % 5 == 0]
    for index, template in enumerate(TEMPLATES + kept):
        yield f"{index:02}", template.encode()


def json_seeds():
    hello = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, True]}}}]}
    documents = [
        {"messages": hello}, {"messages": hello + [call], "tools": [tool]}, {"messages": []}, {"messages": {}, "tools": 1},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "é🙂\u0000"}]}], "extra": {"enable_thinking": True}},
        {"messages": hello, "extra": {"date": "x", "messages": [], "big": 2**63 - 1, "small": -2**63, "f": 1e300}},
        {"messages": hello, "extra": []}, {"messages": [1, "two", None, [3]], "tools": None}, [], "text", 1.5,
    ]
    for index, document in enumerate(documents):
        yield f"{index:02}", json.dumps(document, ensure_ascii=index % 2 == 0).encode()
    yield "too-large", b'{"messages": [18446744073709551615]}'
    yield "deep", b'{"messages": ' + b"[" * 120 + b"]" * 120 + b"}"
    yield "not-utf8", b'{"messages": [{"role": "\xff", "content": "\xc3"}]}'
    yield "twice", b'{"messages": [{"role": "a", "role": "b"}], "messages": []}'
    yield "cut", b'{"messages": [{"role": "us'


def elf(names=("octet_backend_query_v1",), needed=("libc.so.6",), machine=62, kind=3, sysv=False, first=1):
    """A shared library with nothing but what the loader looks at."""
    strings = b"\0"
    offsets = {}
    for name in (*names, *needed):
        offsets[name] = len(strings)
        strings += name.encode() + b"\0"
    symbols = bytes(24)
    for name in names:
        symbols += struct.pack("<IBBHQQ", offsets[name], 0x12, 0, 1, 0x1000, 16)
    count = 1 + len(names)
    if sysv:
        table = struct.pack("<II", 1, count) + struct.pack("<I", 1) + struct.pack(f"<{count}I", *range(1, count), 0)
    else:
        chain = [2 * i for i in range(count - 1)]
        if chain:
            chain[-1] |= 1
        table = struct.pack("<IIII", 1, first, 1, 6) + bytes(8) + struct.pack("<I", first if chain else 0)
        table += struct.pack(f"<{len(chain)}I", *chain)
    header = 64 + 2 * 56
    at = {}
    body = b""
    for name, part in (("strings", strings), ("symbols", symbols), ("table", table)):
        body += bytes(-len(body) % 8)
        at[name] = header + len(body)
        body += part
    body += bytes(-len(body) % 8)
    dynamic = [(1, offsets[name]) for name in needed]
    dynamic += [(5, at["strings"]), (10, len(strings)), (6, at["symbols"]), (11, 24),
                (4 if sysv else 0x6FFFFEF5, at["table"]), (0, 0)]
    start = header + len(body)
    body += b"".join(struct.pack("<QQ", *entry) for entry in dynamic)
    size = header + len(body)
    out = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    out += struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    out += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    out += struct.pack("<IIQQQQQQ", 2, 6, start, start, start, 16 * len(dynamic), 16 * len(dynamic), 8)
    return out + body


def elf_seeds():
    yield "gnu", elf()
    yield "sysv", elf(sysv=True)
    yield "many", elf(["a", "octet_backend_query_v2", "octet_backend_query_v1", "octet_backend_query_vX"],
                      ["libm.so.6", "libcudart.so.12"])
    yield "none", elf([], [])
    yield "aarch64", elf(machine=183)
    yield "program", elf(kind=2)
    yield "cut", elf()[:150]
    yield "text", b"#!/bin/sh\n"


def case_lists_seeds():
    profiles = [path.read_bytes() for path in sorted((DATA.parent / "conformance" / "profiles").glob("*.txt"))]
    for index, profile in enumerate(profiles):
        yield f"profile-{index}", profile
    yield "include", b"include 1\nQuant.*\n\0include 2\nAbi.?ables*\0# last\n*int8\n"
    yield "cycle", b"include 1\n\0include 0\n"
    yield "expectations", b"# why\n[never]\nQuant.*/int8 : no such type\n[not yet]\nAttention.Run* : later\n"
    yield "bad-section", b"[maybe]\nx : y\n"
    yield "stars", b"[never]\na*a*a*a*a*a*a*b : slow\n"


def descriptors_seeds():
    source = random.Random(1)
    for operation in range(12):
        for kind in range(4):
            # Bytes below 192 make small numbers and structs as this side knows them.
            size = 200 if kind < 2 else 400
            most = 192 if kind % 2 == 0 else 256
            yield f"{operation:02}-{kind}", bytes([kind, operation]) + bytes(source.randrange(most) for _ in range(size))


def main():
    for target, seeds in (("gguf", gguf_seeds), ("tokenizer", tokenizer_seeds), ("chat_template", chat_template_seeds),
                          ("json", json_seeds), ("elf", elf_seeds), ("case_lists", case_lists_seeds),
                          ("descriptors", descriptors_seeds)):
        folder = OUT / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*"):
            old.unlink()
        for name, data in seeds():
            (folder / f"seed-{name}").write_bytes(data)


if __name__ == "__main__":
    main()
