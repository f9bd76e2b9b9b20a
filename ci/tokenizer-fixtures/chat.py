"""What transformers makes of chat templates: README.md says how this is used.

python chat.py FOLDER FIXTURES
"""

import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

BLOCKS = """\
{#- Blocks on lines of their own, a namespace, slices, Python's string methods. -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'].strip() %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = 'none' %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- set ns = namespace(turns=0, last='') %}
{% for message in rest %}
    {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% set ns.turns = ns.turns + 1 %}
    {% set ns.last = message.role %}
[{{ message['role'].upper() }}{% if loop.last %}!{% endif %}] {{ message['content'] | trim }}
{% endfor %}
turns: {{ ns.turns }}, last {{ ns.last }}, system {{ system }}
{% if add_generation_prompt and ns.last == 'user' %}
[ASSISTANT]
{% endif %}
"""

EXPRESSIONS = """\
{%- for m in messages -%}
{%- if m.role == 'stop' %}{% break %}{% endif -%}
{%- if m.role == 'skip' %}{% continue %}{% endif -%}
{{ m.role ~ ':' ~ (m.content.split('|')[-1] if '|' in m.content else m.content) }};
{{ m | tojson }} {{ {'a': [1, 2.5, none, true], 'b': {'c': '<é&"\\''}} | tojson }}
{{ [1, [2, {'x': 'y'}]] | tojson(indent=2) }}
{%- endfor -%}
{{ tools is none }} {{ tools is defined }} {{ missing is defined }} {{ missing }} {{ documents }}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}
{{ messages | length }} {{ messages[-1].content[:3] }} {{ messages[0]['content'].startswith('a') }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d') }} {{ eos_token }} {{ pad_token is defined }}
{{ messages[0].get('name', 'nobody') }} {{ messages[0].content.replace('a', 'b').title() }} {{ 'x,y'.split(',') | join('/') }}
{% macro say(x, y='!') %}{{ x }}{{ y }}{% endmacro %}{{ say('hi') }}{{ say('ho', y='?') }}
{{ '%s' | format('f') }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ true and 'yes' or 'no' }} {{ -1 | abs }}
"""

GENERATION = """\
{% for m in messages %}
{{ m.role }}:
    {% if m.role == 'assistant' %}
        {%- generation %}
 {{ m.content }}
        {% endgeneration -%}
    {% else %}
 {% generation -%} {{ m.content }} {%- endgeneration %}

    {% endif %}
{% endfor %}
"""


def message(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = {
    "one": [message("user", "What is the capital of France?")],
    "system": [
        message("system", "  Answer briefly.\n"),
        message("user", " 2+2? "),
        message("assistant", "4"),
        message("user", "naïve 🦀 <|im_end|> a|b\n\n"),
    ],
    "empty": [message("user", "")],
    "odd": [message("assistant", "first")],
    "loops": [message("user", "abc"), message("skip", "x"), message("user", "c|d"), message("stop", "y"), message("user", "z")],
}


class Date(datetime.datetime):
    """The date that the harness tells templates."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def main():
    folder, fixtures = map(pathlib.Path, sys.argv[1:])
    chat_template_utils.datetime = Date
    smollm2 = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    cases = []
    for name, template in [("smollm2", smollm2), ("blocks", BLOCKS), ("expressions", EXPRESSIONS),
                           ("generation", GENERATION)]:
        for key, messages in CONVERSATIONS.items():
            for prompt in [True, False]:
                try:
                    rendered, _ = chat_template_utils.render_jinja_template(
                        [messages], chat_template=template, add_generation_prompt=prompt,
                        bos_token="<|im_start|>", eos_token="<|im_end|>",
                    )
                    result = {"text": rendered[0]}
                except Exception as error:  # what the template itself refuses
                    result = {"error": str(error)}
                cases.append({"name": f"{name}/{key}", "template": template, "messages": messages,
                              "add_generation_prompt": prompt, **result})
    text = json.dumps(cases, ensure_ascii=False, indent=1) + "\n"
    (fixtures / "chat.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
