"""Grammars of answers that may or must call tools, as Hermes and Qwen write calls:
`<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`, several on lines of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.rules import Rules, Thought, literal, until
from inference.grammar.schema import SchemaConverter

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALLS_MAX = 16  # of one answer; more have no budget


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function with the schema of its arguments. One that is not `strict` takes any object if need be."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def tool_grammar(
    functions: Sequence[CallableFunction],
    *,
    calls_max: int = CALLS_MAX,
    required: bool = False,
    answer_schema: Any = None,
    thought: Thought | None = None,
) -> str:
    """Calls of these functions, where they are `required`; else calls or an answer: text that may hold calls, or
    JSON of `answer_schema`. Raises InvalidSchema naming the function and the place in its schema."""
    rules = Rules()
    body = rules.add(" | ".join(_body(function, rules) for function in functions))
    call = f"{literal(OPEN)} {body}"
    calls = f'{call} ("\\n" {call}){{0,{max(1, min(calls_max, CALLS_MAX)) - 1}}}'
    if required:
        return rules.text(calls, thought)
    if answer_schema is not None:
        return rules.text(f"{calls} | {SchemaConverter(answer_schema, rules).root()}", thought)
    return rules.text(_text_with(body, rules), thought)


def _body(function: CallableFunction, rules: Rules) -> str:
    """A call behind its opening tag."""
    head = f'\n{{"name": {json.dumps(function.name, ensure_ascii=False)}, "arguments": '
    tail = "}\n" + CLOSE
    return f"{literal(head)} {_arguments(function, rules)} {literal(tail)}"


def _arguments(function: CallableFunction, rules: Rules) -> str:
    try:
        return SchemaConverter(function.parameters, rules).root()
    except InvalidSchema as error:
        if function.strict:
            raise InvalidSchema(error.reason, f"{function.name}.parameters.{error.path}".rstrip(".")) from None
        return rules.shared("object")


def _text_with(body: str, rules: Rules) -> str:
    """Any text in which an opening tag begins a call."""
    again = rules.reserve()
    rules.fill(again, until(OPEN, f"{body} {again}", rules, may_end=True))
    return again
