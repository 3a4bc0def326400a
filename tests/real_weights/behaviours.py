"""One model under six chat templates, each with a behaviour that templates of widely used models have.

All write turns as SmolLM2 was trained to read them. What differs is which messages they take, whether and how they show
tools, and how an answer begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

ANSWER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
# As most do: tools stand in the system message, results are turns of the user. `instructions`, `written` and `check`
# are macros of the single templates.
TURNS = """
{%- set has_system = messages[0].role == 'system' %}
{%- if has_system or tools %}
{{- '<|im_start|>system\n' + instructions(messages[0].content if has_system else '') + '<|im_end|>\n' }}
{%- endif %}
{%- for message in (messages[1:] if has_system else messages) %}
{{- check(message) }}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' + message.content }}
{%- for call in message.tool_calls %}
{{- '\n' if message.content or not loop.first }}{{ written(call) }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
"""
ANY_ORDER = "{%- macro check(message) %}{% endmacro %}"
JSON_TOOLS = """
{%- macro instructions(text) %}
{{- text }}
{%- if tools %}
{{- '\n\n# Tools\n\nYou may call these functions:\n<tools>' }}
{%- for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}
{{- '\n</tools>\n\nWrite each call as JSON: <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>' }}
{%- endif %}
{%- endmacro %}
{%- macro written(call) %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endmacro %}
"""
XML_TOOLS = """
{%- macro instructions(text) %}
{{- text }}
{%- if tools %}
{{- '\n\n# Tools\n\nYou may call these functions:\n<tools>' }}
{%- for tool in tools %}
{{- '\n<function>\n<name>' + tool.function.name + '</name>\n<description>' + tool.function.description }}
{{- '</description>\n<parameters>' }}{{ tool.function.parameters | tojson }}{{ '</parameters>\n</function>' }}
{%- endfor %}
{{- '\n</tools>\n\nWrite each call so:\n<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nVALUE\n</parameter>\n' }}
{{- '</function>\n</tool_call>' }}
{%- endif %}
{%- endmacro %}
{%- macro written(call) %}
{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for name, value in call.function.arguments.items() %}
{{- '<parameter=' + name + '>\n' }}{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}
{%- endfor %}
{{- '</function>\n</tool_call>' }}
{%- endmacro %}
"""
SYSTEM_FIRST = """
{%- if not messages | selectattr('role', 'equalto', 'user') | list %}
{{- raise_exception('No user query found in messages.') }}
{%- endif %}
{%- macro check(message) %}
{%- if message.role == 'system' %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{%- endmacro %}
"""
ALTERNATING = """
{%- for message in messages %}
{%- if message.role not in ('user', 'assistant') %}
{{- raise_exception('System role not supported') }}
{%- elif (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
"""
THINKING = """
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n<think>\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}
{%- endif %}
"""
OWN = "own"  # SmolLM2's: any order, no tools, a system message of its own
TEMPLATES = {
    "hermes": ANY_ORDER + JSON_TOOLS + TURNS + ANSWER,  # Qwen 2.5 and 3
    "strict": SYSTEM_FIRST + JSON_TOOLS + TURNS + ANSWER,  # Qwen 3.5
    "alternating": ALTERNATING + ANSWER,  # Gemma 2
    "coder": ANY_ORDER + XML_TOOLS + TURNS + ANSWER,  # Qwen3-Coder
    "thinking": ANY_ORDER + JSON_TOOLS + TURNS + THINKING,  # models that always reason, or may be told not to
}
MODELS = (OWN, *TEMPLATES)


def asking(*names: str, of: Iterable[str] = MODELS) -> pytest.MarkDecorator:
    """A test for each of the models, of which `make test` asks these, and `make test-long` the rest."""
    marked = [pytest.param(name, marks=[] if name in names else [pytest.mark.long]) for name in of]
    return pytest.mark.parametrize("model", marked)


KEY = b"tokenizer.chat_template" + (8).to_bytes(4, "little")  # in a GGUF file: a name and the type string
HEAD_BYTES_MAX = 2**22
ALIGNMENT_BYTES = 32  # of the tensors behind the header


def write_with_template(source: Path, target: Path, template: str) -> None:
    """A copy of a GGUF file with another chat template. A comment makes up for the difference in length, so that all
    tensors stay aligned; the header itself is not read, which would take seconds."""
    with source.open("rb") as file, target.open("wb") as copy:
        head = file.read(HEAD_BYTES_MAX)
        begin = head.index(KEY) + len(KEY)
        length = int.from_bytes(head[begin : begin + 8], "little")
        text = template.encode()
        text += b"{#%b#}" % (b" " * ((length - len(text) - 4) % ALIGNMENT_BYTES))
        copy.write(head[:begin] + len(text).to_bytes(8, "little") + text + head[begin + 8 + length :])
        shutil.copyfileobj(file, copy)
