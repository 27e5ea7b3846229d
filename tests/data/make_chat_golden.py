#!/usr/bin/env python3
"""Writes tests/data/chat/golden.json: templates, their input and what Python's jinja2 makes of them.

The environment is that of transformers' apply_chat_template. Usage: make_chat_golden.py FOLDER_WITH_MODELS
(the three files of tests/data/oracles/README.md; only their chat templates are read). Needs jinja2 and gguf.
"""
import json
import os
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from gguf import GGUFReader


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def template_of(path):
    return bytes(GGUFReader(path).fields["tokenizer.chat_template"].parts[-1]).decode()


TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter für <Ort> & \"Zeit\"\n🙂",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3, "maximum": 1e22,
                                                                "step": 0.5, "none": None, "flag": True}},
            "required": ["city"],
        },
    },
}, {"type": "function", "function": {"name": "empty", "parameters": {}}}]

HELLO = [{"role": "user", "content": "Hello! Who are you?"}]
MULTI = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "My name is Ada. \u201e你好\u201c"},
    {"role": "assistant", "content": "Nice to meet you, Ada!"},
    {"role": "user", "content": "  What is my name?  "},
]
CALLS = [
    {"role": "user", "content": "Weather in Zürich and Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}},
        {"name": "get_weather", "arguments": {"city": "Rome"}}]},
    {"role": "tool", "content": "{\"t\": 7}"},
    {"role": "tool", "content": "{\"t\": 21}"},
    {"role": "assistant", "content": "7 and 21 degrees."},
    {"role": "system", "content": "A later system message."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Let me see.", "tool_calls": [{"name": "empty", "arguments": {}}]},
]
# As servers and chats send them: no content beside calls, arguments as JSON text, the last message a tool's.
CALL_FORMS = [
    {"role": "system", "content": "Use the tools."},
    {"role": "user", "content": "Weather in Oslo and Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "snow"},
    {"role": "assistant", "content": "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>"},
    {"role": "tool", "content": "sun <b> & \"wind\""},
]

# Templates in the manner of other models, written for this test; each line of features is one that real ones use.
GEMMA_LIKE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

PARTS = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is this? "}]},
]

NAMESPACE_LIKE = """{%- macro describe(spec, level=0) -%}
{{ '  ' * level }}{{ spec.type | default('any') }}{% if spec.properties is defined %}{
{%- for name, value in spec.properties.items() %}

{{ '  ' * (level + 1) }}{{ name }}: {{ describe(value, level=level + 1) | trim }}{{ ',' if not loop.last }}
{%- endfor %}

{{ '  ' * level }}}{% endif %}
{%- endmacro -%}
{%- set ns = namespace(found=false, last_user=-1, calls=[]) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.last_user < 0 and message.role == "user" %}{% set ns.last_user = index %}{% endif %}
{%- endfor %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- set ns.calls = ns.calls + [call.name or call.function.name] %}
        {%- endfor %}
    {%- endif %}
    {%- if '</think>' in message.content %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
    {%- else %}
        {%- set content = message.content %}
    {%- endif %}
[{{ loop.index }}/{{ loop.length }}{{ '*' if loop.index0 > ns.last_user }}] {{ message.role | upper }}: {{ content | trim }}
    {%- if loop.previtem is defined and loop.previtem.role == message.role %} (again){% endif %}
    {%- if loop.nextitem is not defined %} (end){% endif %}

{% endfor %}
calls: {{ ns.calls | join(', ') }}; last user {{ ns.last_user }}
{% if tools %}
{% for tool in tools %}
{{ tool.function.name }}({{ describe(tool.function.parameters) }})
{% endfor %}
{{ tools | map(attribute='function') | map(attribute='name') | list | tojson }}
{{ tools | selectattr('function.name', 'equalto', 'empty') | list | length }}
{% endif %}
"""

SNIPPETS = {
    "output of every type": "{{ 1 }} {{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ none }} {{ true }} {{ 'a' }} {{ [1, 'b', none, [2.5]] }} {{ {'k': 'it\\'s', 'l': \"q\\\"\"} }} {{ missing }}|",
    "arithmetic": "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 * 3 + 4 * 5 - 6 }} {{ (2 + 3) * 4 }} {{ -3 | abs }} {{ 'ab' * 3 }} {{ 3 ~ 'x' ~ none }} {{ [1] + [2, 3] }}",
    "comparison": "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 'a' == 1 }} {{ [1, 2] == [1, 2] }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ none == missing }} {{ 'b' in 'abc' }} {{ 2 not in [1, 3] }} {{ 'k' in {'k': 1} }} {{ 'x' in missing }}",
    "logic": "{{ 1 and 'x' }} {{ 0 or 'y' }} {{ not 0 and not '' }} {{ '' or none }} {{ 'a' if 0 else 'b' if 1 else 'c' }} [{{ 'a' if 0 }}] {{ not 1 == 2 }}",
    "slices": "{{ 'héllo🙂'[1:4] }} {{ 'héllo🙂'[-1] }} {{ 'abc'[::-1] }} {{ [1, 2, 3, 4][1:] }} {{ [1, 2, 3, 4][:-1] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][5:] }} {{ [1, 2, 3][-9:2] }} {{ [1, 2, 3, 4][3:0:-2] }} {{ [1, 2][7] }}|{{ 'ab'[:none] }}",
    "filters": "{{ ' x ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'abc' | length }}|{{ 'ß Äb' | upper }}|{{ 'ÀB' | lower }}|{{ 'hello wORLD-foo (bar' | title }}|{{ 'hELLO' | capitalize }}|{{ [3, 1, 2] | sort }}|{{ ['b', 'A', 'a'] | sort }}|{{ [1, 2, 3] | first }}|{{ [1, 2, 3] | last }}|{{ [1, 2] | join }}|{{ 'aXbX' | replace('X', '--', 1) }}|{{ missing | default('d') }}|{{ '' | default('e', true) }}|{{ '' | d('f') }}|{{ '12' | int + 1 }}|{{ 'z' | int }}|{{ 'z' | int(7) }}|{{ ' 3.5 ' | float }}|{{ 3.9 | int }}|{{ 5 | string + 'x' }}|{{ ({'a': 1} | items | list)[0][1] }}|{{ [1, 1, 2] | unique | list }}|{{ 'abc' | reverse }}|{{ [1, 2] | reverse | list }}|{{ 'ab' | list }}|{{ '<&>' | safe }}",
    "select and map": "{% set xs = [{'n': 1, 'on': true}, {'n': 2}, {'n': 3, 'on': false}] %}{{ xs | selectattr('on') | list | length }} {{ xs | rejectattr('on', 'defined') | map(attribute='n') | list }} {{ xs | selectattr('n', '>', 1) | map(attribute='n') | join('/') }} {{ [0, 1, 2] | select | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | reject('divisibleby', 3) | list }} {{ ['a', 'b'] | map('upper') | join }} {{ xs | map(attribute='on', default='?') | list }} {{ xs | sort(attribute='n', reverse=true) | map(attribute='n') | list }}",
    "tests": "{{ missing is defined }} {{ 1 is not none }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ 'a' is sequence }} {{ 1 is number }} {{ true is number }} {{ true is boolean }} {{ 1 is integer }} {{ 1.5 is float }} {{ true is true }} {{ 1 is true }} {{ 0 is false }} {{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 1 is in [1, 2] }} {{ range is callable }} {{ 'a' is lower }} {{ 'A' is upper }} {{ missing is undefined }} {{ 1 is defined and 2 is defined }}",
    "string methods": "{{ '  a b  c '.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ 'xxaxx'.strip('x') }} {{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}| {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'aBc'.upper() }} {{ 'aBc'.lower() }} {{ \"they're bill's\".title() }} {{ 'abcabc'.replace('b', 'X') }} {{ 'héllo'.find('l') }} {{ 'abab'.count('ab') }} {{ '-'.join(['a', 'b']) }} {{ '12'.isdigit() }} {{ 'hELLO'.capitalize() }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'foobar'.removeprefix('foo') }}",
    "dict methods": "{% set d = {'a': 1, 'b': {'c': [2]}} %}{{ d.a }} {{ d['b'].c[0] }} {{ d.get('x') }} {{ d.get('x', 5) }} {{ d.keys() | list }} {{ d.values() | list }} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {{ d | length }} {{ d.zzz is defined }} {% for k in d %}{{ k }}{% endfor %} {{ dict(x=1, y='z') }}",
    "tojson": "{{ {'a': [1, 2.0, 1e22, 1.5e-7, none, true, 'é\\n\\t\\\"\\\\/\\u0001\\u007f🙂'], 'b': {}, 'c': []} | tojson }} {{ {'b': 1, 'a': [1, {}]} | tojson(indent=2) }} {{ [1, [2]] | tojson(indent=4) }} {{ 'é🙂' | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}",
    "loops": "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.cycle('a', 'b') }} {% endfor %}{% for x in [] %}x{% else %}empty{% endfor %}{% for x in [1, 2, 3, 4, 5] if x is odd %}{{ x }}/{{ loop.length }} {% endfor %}{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}{% for i in range(1, 10, 4) %}{{ i }} {% endfor %}{% for c in 'äb' %}{{ c }}.{% endfor %}{% for x in missing %}x{% endfor %}{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "scopes": "{% set x = 1 %}{% for i in [1, 2] %}[{{ x }}{% set x = x + i %}{{ x }}]{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% set ns = namespace(n=0) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{% for i in [1, 2] %}{{ y is defined }}{% set y = 1 %}{% endfor %}{% set a, b = [1, 2] %}{{ a }}{{ b }}{% set t %} block {{ x }} {% endset %}[{{ t }}]{% set u | trim | upper %} up {% endset %}[{{ u }}]",
    "macros": "{% macro m(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}{{ g }}>{% endmacro %}{% set g = 'G' %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=2, a=1) }}{{ m() }}{% macro fact(n) %}{{ n if n < 2 else n * (fact(n - 1) | int) }}{% endmacro %}{{ fact(10) }}",
    "whitespace": "  {% if true %}  \n   a  \n  {%- if true -%}  \n b \n  {%+ if true %} c\n{% endif %}\n  {% endif +%}\n{% endif %}\n  {# comment #}\n d {#- x -#} e\n {{ 1 }}\n{{- 2 -}}\n 3\r\n4\n\n",
    "raw": "a {% raw %} {{ x }} {% y %} {% endraw %}\nb{%- raw -%}  {# c #} {%- endraw -%}  d",
    "literals": "{{ 'a\\tb\\x41\\u00e9\\q\\'' }}{{ \"a\" \"b\" }}{{ {'a': {'b': 1}} }}{{ {'a': 1}}}{{ (1, 2) | length }}{{ [1, 2,] }}{{ () | length }}{{ 1, 2 }}" .replace("{{ 1, 2 }}", "{{ (1, 2)[1] }}"),
    "indent": "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(width=3, blank=true) }}|{{ 'a\\nb' | indent('> ') }}",
    "generation": "{% generation %}x{% endgeneration %}y",
    "missing attribute of a message": "{{ messages[0].nothing }}{% if not messages[0].nothing %}none{% endif %}{{ messages[0]['nothing'] is defined }}",
}

FAILING = {
    "raise_exception": "{{ raise_exception('not like this') }}",
    "attribute of undefined": "{{ missing.x }}",
    "string plus none": "{{ 'a' + none }}",
    "string plus undefined": "{{ 'a' + missing }}",
    "division by zero": "{{ 1 // 0 }}",
    "unknown filter": "{{ 'a' | nosuchfilter }}",
    "unknown statement": "{% nosuch %}",
    "unclosed if": "{% if true %}x",
    "unclosed output": "{{ 1",
    "iteration over a number": "{% for x in 5 %}{% endfor %}",
    "order of a number and a string": "{{ 1 < 'a' }}",
    "too many arguments": "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "wrong unpacking": "{% set a, b = [1, 2, 3] %}",
}


def main():
    folder = sys.argv[1]
    env = environment()
    cases = []

    def add(name, template, messages, tools=None, generation=True, bos="<s>", eos="</s>"):
        text = env.from_string(template).render(messages=messages, tools=tools, documents=None,
                                                add_generation_prompt=generation, bos_token=bos, eos_token=eos)
        cases.append({"name": name, "template": template, "messages": messages, "tools": tools,
                      "add_generation_prompt": generation, "bos_token": bos, "eos_token": eos, "expected": text})

    smollm = template_of(os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf"))
    qwen = template_of(os.path.join(folder, "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"))
    for model, template in (("smollm2", smollm), ("qwen", qwen)):
        for name, messages in (("hello", HELLO), ("multi", MULTI)):
            for generation in (True, False):
                add(f"{model} {name} {generation}", template, messages, generation=generation)
    add("qwen tools", qwen, HELLO, TOOLS)
    add("qwen tools with system", qwen, MULTI, TOOLS)
    add("qwen calls", qwen, CALLS, TOOLS)
    add("qwen calls without tools", qwen, CALLS, generation=False)
    add("qwen forms of calls", qwen, CALL_FORMS, TOOLS)
    add("qwen forms of calls without tools", qwen, CALL_FORMS, generation=False)
    add("smollm2 has no place for tools", smollm, MULTI, TOOLS)
    add("gemma-like multi", GEMMA_LIKE, MULTI)
    add("gemma-like parts", GEMMA_LIKE, PARTS)
    add("namespace-like calls", NAMESPACE_LIKE, CALLS, TOOLS)
    add("namespace-like multi", NAMESPACE_LIKE, MULTI)
    for name, template in SNIPPETS.items():
        add(name, template, HELLO)
    failing = []
    for name, template in FAILING.items():
        try:
            env.from_string(template).render(messages=HELLO)
        except Exception:
            failing.append({"name": name, "template": template})
        else:
            raise SystemExit(f"{name} does not fail in jinja2")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat", "golden.json")
    with open(path, "w") as file:
        json.dump({"jinja2": jinja2.__version__, "cases": cases, "failing": failing}, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
