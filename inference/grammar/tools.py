"""Grammars of answers that may or must call tools, in the dialect of Hermes and Qwen:
`<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`, each call on lines of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.lark import Thought, grammar, literal, up_to, value_of
from inference.grammar.schema import restated

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALLS_MAX = 16  # per answer; the budget does not allow more
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function with the schema of its arguments. If not `strict`, what no grammar can hold of it is left out, and
    with `outline` everything but names, types and enums."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    outline: bool = False
    lark: str = ""  # the grammar of its only argument, a text, as `escaped_lark` writes it


def tool_grammar(
    functions: Sequence[CallableFunction],
    *,
    calls_max: int = CALLS_MAX,
    required: bool = False,
    answer: Mapping[str, Any] | None = None,
    thought: Thought | None = None,
) -> str:
    """Calls of these functions if `required`; else calls or an answer: text that may contain calls, or JSON of the
    converted schema `answer`. Raises InvalidSchema with the function and the position in its schema."""
    rules = {"body": " | ".join(f"body{i}" for i in range(len(functions))), "call": f"{literal(OPEN)} body"}
    for i, function in enumerate(functions):
        head = f'\n{{"name": {json.dumps(function.name, ensure_ascii=False)}, "arguments": '
        rules[f"body{i}"] = f"{literal(head)} arguments{i} {literal('}' + chr(10) + CLOSE)}"
        rules |= arguments_of(i, function)
    more = min(calls_max, CALLS_MAX) - 1
    calls = f'call ("\\n" call){{0,{more}}}' if more > 0 else "call"
    if required:
        return grammar(calls, rules, thought)
    if answer is not None:
        return grammar("calls | value", rules | {"calls": calls, "value": value_of(answer)}, thought)
    rules |= {"before[lazy]": up_to(OPEN), "rest": "ANYTHING"}
    return grammar("(before body)* rest", rules, thought)


def parameters_of(function: CallableFunction) -> dict[str, Any]:
    """The converted schema of the arguments. Raises InvalidSchema if that of a strict function cannot be enforced."""
    try:
        held = restated(function.parameters, loose=not function.strict, outline=function.outline)
    except InvalidSchema as error:
        raise InvalidSchema(error.reason, f"{function.name}.parameters.{error.path}".rstrip(".")) from None
    is_any = held.keys() <= {"$defs", "x-guidance"}
    return restated(ANY_OBJECT) if is_any else held


def arguments_of(i: int, function: CallableFunction) -> dict[str, str]:
    """The rules of the arguments of function number i. Raises InvalidSchema."""
    name = next(iter(function.parameters.get("properties", ())), None)
    if not function.lark or name is None:
        return {f"arguments{i}": value_of(parameters_of(function))}
    head, tail = literal(f'{{{json.dumps(name)}: "'), literal('"}')
    return {f"arguments{i}": f"{head} input{i} {tail}", f"input{i}": f"%lark {{\n{function.lark}}}"}
