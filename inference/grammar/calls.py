"""Grammars of tool calls that a model makes of its own accord amid free text, in the dialects that differ from Hermes.

Each applies from the marker that starts a call: the name is that of a function, and the arguments fit its schema. The
text around calls is free, and a call in a form that is not foreseen here stays as the model writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inference.grammar.declared import ANY, Declared
from inference.grammar.lark import grammar, literal, up_to, value_of
from inference.grammar.tools import CallableFunction, parameters_of

# The markers that start a call, end it, and enclose texts.
GEMMA = ("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = ("<start_function_call>", "<end_function_call>", "<escape>")
PYTHON_TAG, TOOL_CALLS, CHANNEL, FUNCTION = "<|python_tag|>", "[TOOL_CALLS]", "<|channel|>", "<function="
DEPTH_MAX = 8  # of values whose schema is followed; deeper ones are unconstrained

Rules = dict[str, str]


def llama_calls(functions: Sequence[CallableFunction]) -> str:
    """`<|python_tag|>{"name": ..., "parameters": {...}}`. Without the tag, an object is text until it turns out to be a
    call, so it is not constrained."""
    rules = _arguments(functions) | {"call": _any(functions, lambda i, name: _object(i, name, "parameters"))}
    return _amid_text(PYTHON_TAG, rules)


def mistral_calls(functions: Sequence[CallableFunction]) -> str:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}`."""
    rules = _arguments(functions) | {
        "call": '" "? "[" object (", " object)* "]" | named',
        "object": _any(functions, lambda i, name: _object(i, name, "arguments", end="ID? ")),
        "named": _any(functions, lambda i, name: f"{literal(name)} CALL_ID? {literal('[ARGS]')} arguments{i}"),
        "ID": '/, "id": "[A-Za-z0-9]{1,64}"/',
        "CALL_ID": r"/\[CALL_ID\][A-Za-z0-9]{1,64}/",
    }
    return _amid_text(TOOL_CALLS, rules)


def qwen_coder_calls(functions: Sequence[CallableFunction]) -> str:
    """`<function=name><parameter=key>value</parameter></function>`: values are plain text, so only names are held."""
    rules = {
        "before[lazy]": up_to(FUNCTION),
        "name": _any(functions, lambda i, name: literal(name + ">")),
        "body[lazy]": 'ANYTHING ("</function>" | "</tool_call>")',
        "rest": "ANYTHING",
    }
    return grammar("(before name body)* (before name)? rest", rules)


def harmony_calls(functions: Sequence[CallableFunction]) -> str:
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}`."""
    rules = _arguments(functions) | {
        "call": "PLAIN | CHANNEL recipient",
        "PLAIN": r"/[a-z]{1,32}( ?<\|constrain\|>[a-z]{1,32}| [a-z]{1,32})?<\|message\|>/",
        "CHANNEL": "/(analysis|commentary|final) to=functions\\./",
        "recipient": _any(functions, lambda i, name: f"{literal(name)} TYPE arguments{i}"),
        "TYPE": r"/ ?(<\|constrain\|>)?(json|code)?<\|message\|>/",
    }
    return _amid_text(CHANNEL, rules)


def gemma_calls(functions: Sequence[CallableFunction], marks: tuple[str, str, str] = GEMMA) -> str:
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>`: keys are bare and in any order; required ones
    are not enforced."""
    begin, end, quote = marks
    values = _Values(quote)
    bodies = [values.object(Declared(function.parameters), 0) for function in functions]
    rules = values.rules | {
        "call": _any(functions, lambda i, name: f"{literal('call:' + name)} {bodies[i]} {literal(end)}")
    }
    return _amid_text(begin, rules)


def function_gemma_calls(functions: Sequence[CallableFunction]) -> str:
    return gemma_calls(functions, FUNCTION_GEMMA)


def _amid_text(mark: str, rules: Mapping[str, str]) -> str:
    return grammar("(before call)* rest", {**rules, "before[lazy]": up_to(mark), "rest": "ANYTHING"})


def _any(functions: Sequence[CallableFunction], written: Callable[[int, str], str]) -> str:
    return " | ".join(written(i, function.name) for i, function in enumerate(functions))


def _arguments(functions: Sequence[CallableFunction]) -> Rules:
    return {f"arguments{i}": value_of(parameters_of(function)) for i, function in enumerate(functions)}


def _object(i: int, name: str, key: str, end: str = "") -> str:
    head = f'{{"name": {literal(name)}, "{key}": '
    return f'{literal(head)} arguments{i} {end}"}}"'


class _Values:
    """Rules of Gemma's values. Of a schema, only types, names and enums are followed."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._known: dict[int, tuple[Any, str]] = {}  # schemas with their rules, by their identity
        pair, rest = 'KEY ":" any', '("," KEY ":" any)*'
        self.rules: Rules = {
            "text": f"{literal(quote)} said",
            "said[lazy]": up_to(quote),
            "any": 'text | NUMBER | BOOLEAN | "null" | anyarray | anyobject',
            "anyarray": '"[" (any ("," any)*)? "]"',
            "anyobject": f'"{{" ({pair} {rest})? "}}"',
            "KEY": r"/[^:,{}\[\]<\n]{1,64}/",
            "NUMBER": r"/-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?/",
            "INTEGER": "/-?[0-9]{1,20}/",
            "BOOLEAN": "/true|false/",
        }

    def object(self, declared: Declared, depth: int) -> str:
        names = declared.member_names
        if not names or depth >= DEPTH_MAX:
            return "anyobject"
        pairs = [f"{literal(name + ':')} {self.value(declared.member(name), depth + 1)}" for name in names]
        pair = self._rule(" | ".join(pairs))
        return self._rule(f'"{{" ({pair} ("," {pair})*)? "}}"')

    def value(self, declared: Declared, depth: int) -> str:
        """Each schema is followed once: one that contains itself is not followed within itself."""
        if declared.kinds == ANY or depth >= DEPTH_MAX:
            return "any"
        schema = id(declared.schema)
        if schema not in self._known:
            self._known[schema] = declared.schema, "any"
            kinds = sorted(declared.kinds - ({"integer"} if "number" in declared.kinds else set()))
            rule = self._rule(" | ".join(self._typed(kind, declared, depth) for kind in kinds) or "any")
            self._known[schema] = declared.schema, rule
        return self._known[schema][1]

    def _typed(self, kind: str, declared: Declared, depth: int) -> str:
        match kind:
            case "string" if options := declared.options:
                return " | ".join(literal(f"{self._quote}{option}{self._quote}") for option in options)
            case "string":
                return "text"
            case "null":
                return '"null"'
            case "array":
                item = self.value(declared.item, depth + 1)
                return f'"[" ({item} ("," {item})*)? "]"'
            case "object":
                return self.object(declared, depth)
        return kind.upper()

    def _rule(self, body: str) -> str:
        name = f"value{len(self.rules)}"
        self.rules[name] = body
        return name
