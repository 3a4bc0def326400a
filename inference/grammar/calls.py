"""Grammars of tool calls: the name is that of a function, and the arguments fit its schema.

In the dialect of Hermes and Qwen, they are those of whole answers that may or must call tools. In the others, of calls
that a model makes of its own accord amid free text, each applies from the marker that starts the call. The text around
calls is free, and a call in a form that is not foreseen here stays as the model writes it. Forced calls are the whole
answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.declared import ANY, Declared
from inference.grammar.lark import ReasoningMarks, grammar, literal, up_to, value_of
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
    lark: str = ""  # the grammar of its only argument, a text, as `lark.escaped` writes it


def tool_grammar(
    functions: Sequence[CallableFunction],
    *,
    calls_max: int = CALLS_MAX,
    required: bool = False,
    answer: Mapping[str, Any] | None = None,
    thought: ReasoningMarks | None = None,
) -> str:
    """`<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`, each call on lines of its own.

    Calls of these functions if `required`; else calls or an answer: text that may contain calls, or JSON of the
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


# The markers that start a call, end it, and enclose texts.
GEMMA = ("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = ("<start_function_call>", "<end_function_call>", "<escape>")
PYTHON_TAG, TOOL_CALLS, CHANNEL, FUNCTION = "<|python_tag|>", "[TOOL_CALLS]", "<|channel|>", "<function="
COMMA = literal(", ")
PARAMETER_END = "\n</parameter>\n"
TEXT_CHARS_MAX = 1_000  # of a text whose length is held: the automaton has a state for each character
FREE_PARAMETERS_MAX = 16  # of a function that declares none
DEPTH_MAX = 8  # of values whose schema is followed; deeper ones are unconstrained

Rules = dict[str, str]


@dataclass(frozen=True, slots=True)
class Forced:
    """The answer consists of one to `calls_max` calls, after reasoning if the model may produce it."""

    calls_max: int
    thought: ReasoningMarks | None = None

    def grammar(self, call: str, rules: Mapping[str, str], between: str = "") -> str:
        return grammar(self.several("made", between), {**rules, "made": call}, self.thought)

    def several(self, call: str, between: str = "") -> str:
        """One call or more, with `between` two of them."""
        more = min(self.calls_max, CALLS_MAX) - 1
        return f"{call} ({between} {call}){{0,{more}}}" if more > 0 else call


def llama_calls(functions: Sequence[CallableFunction], forced: Forced | None = None) -> str:
    """`<|python_tag|>{"name": ..., "parameters": {...}}`. Without the tag, an object is text until it turns out to be a
    call, so it is not constrained; forced calls have none, and a semicolon between them."""
    rules = _arguments(functions) | {"call": _any(functions, lambda i, name: _object(i, name, "parameters"))}
    return forced.grammar("call", rules, between='"; "') if forced else _amid_text(PYTHON_TAG, rules)


def mistral_calls(functions: Sequence[CallableFunction], forced: Forced | None = None) -> str:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}`."""
    rules = _arguments(functions) | {
        "call": '" "? list | named',
        "list": f'"[" {forced.several("object", COMMA) if forced else f"object ({COMMA} object)*"} "]"',
        "object": _any(functions, lambda i, name: _object(i, name, "arguments", end="ID? ")),
        "named": _any(functions, lambda i, name: f"{literal(name)} CALL_ID? {literal('[ARGS]')} arguments{i}"),
        "ID": '/, "id": "[A-Za-z0-9]{1,64}"/',
        "CALL_ID": r"/\[CALL_ID\][A-Za-z0-9]{1,64}/",
    }
    if forced is None:
        return _amid_text(TOOL_CALLS, rules)
    mark = literal(TOOL_CALLS)
    rules["made"] = f"{forced.several(f'{mark} named')} | {mark} list"
    return grammar("made", rules, forced.thought)


def qwen_coder_calls(functions: Sequence[CallableFunction], forced: Forced | None = None) -> str:
    """`<function=name><parameter=key>value</parameter></function>`: values are plain text. In calls that the model
    makes of its own accord, only names are held; in forced ones parameters too, in the order of the schema."""
    if forced:
        written = _Parameters()
        bodies = [written.of(Declared(function.parameters), function) for function in functions]
        call = _any(functions, lambda i, name: f"{literal(name + '>' + chr(10))} {bodies[i]}")
        rules = written.rules | {"call": call}
        head, tail = literal(f"{OPEN}\n{FUNCTION}"), literal(f"</function>\n{CLOSE}")
        return forced.grammar(f"{head} call {tail}", rules, between='"\\n"')
    rules = {
        "before[lazy]": up_to(FUNCTION),
        "name": _any(functions, lambda i, name: literal(name + ">")),
        "body[lazy]": 'ANYTHING ("</function>" | "</tool_call>")',
        "rest": "ANYTHING",
    }
    return grammar("(before name body)* (before name)? rest", rules)


def harmony_calls(functions: Sequence[CallableFunction], forced: Forced | None = None) -> str:
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}`: a message has one call. A forced one
    may follow a message of reasoning."""
    rules = _arguments(functions) | {
        "recipient": _any(functions, lambda i, name: f"{literal(name)} TYPE arguments{i}"),
        "TYPE": r"/ ?(<\|constrain\|>)?(json|code)?<\|message\|>/",
    }
    if forced:
        head = literal(f"{CHANNEL}commentary to=functions.")
        types = {"recipient": rules["recipient"].replace("TYPE", literal(" <|constrain|>json<|message|>"))}
        del rules["TYPE"]
        thought = ReasoningMarks(f"{CHANNEL}analysis<|message|>", "<|end|>")
        rules |= types | {"thinking[lazy]": up_to(thought.close, thought.open)}
        return grammar(f"(thinking {literal('<|start|>assistant')})? {head} recipient", rules)
    rules |= {
        "call": "PLAIN | CHANNEL recipient",
        "PLAIN": r"/[a-z]{1,32}( ?<\|constrain\|>[a-z]{1,32}| [a-z]{1,32})?<\|message\|>/",
        "CHANNEL": "/(analysis|commentary|final) to=functions\\./",
    }
    return _amid_text(CHANNEL, rules)


def gemma_calls(
    functions: Sequence[CallableFunction],
    forced: Forced | None = None,
    marks: tuple[str, str, str] = GEMMA,
) -> str:
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>`: keys are bare and in any order; required ones
    are not enforced."""
    begin, end, quote = marks
    values = _Values(quote)
    bodies = [values.object(Declared(function.parameters), 0) for function in functions]
    rules = values.rules | {
        "call": _any(functions, lambda i, name: f"{literal('call:' + name)} {bodies[i]} {literal(end)}")
    }
    return forced.grammar(f"{literal(begin)} call", rules) if forced else _amid_text(begin, rules)


def function_gemma_calls(functions: Sequence[CallableFunction], forced: Forced | None = None) -> str:
    return gemma_calls(functions, forced, FUNCTION_GEMMA)


def _amid_text(mark: str, rules: Mapping[str, str]) -> str:
    return grammar("(before call)* rest", {**rules, "before[lazy]": up_to(mark), "rest": "ANYTHING"})


def _any(functions: Sequence[CallableFunction], written: Callable[[int, str], str]) -> str:
    return " | ".join(written(i, function.name) for i, function in enumerate(functions))


def _arguments(functions: Sequence[CallableFunction]) -> Rules:
    return {name: rule for i, function in enumerate(functions) for name, rule in arguments_of(i, function).items()}


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


class _Parameters:
    """Rules of Qwen3-Coder's parameters. Of a schema, their names, types, texts and lengths are followed; what is no
    text is JSON."""

    def __init__(self) -> None:
        self.rules: Rules = {
            "text[lazy]": f"ANYTHING {literal(PARAMETER_END)}",
            "free": f"{literal('<parameter=')} KEY {literal('>' + chr(10))} text",
            "KEY": r"/[^<>\n]{1,64}/",
        }

    def of(self, declared: Declared, function: CallableFunction) -> str:
        names = declared.member_names
        if not names:
            return f"free{{0,{FREE_PARAMETERS_MAX}}}"
        required = function.parameters.get("required")
        needed = set(required) if isinstance(required, list) else set()
        return self._rule(" ".join(self._pair(declared, name) + ("" if name in needed else "?") for name in names))

    def _pair(self, declared: Declared, name: str) -> str:
        member = declared.member(name)
        return self._rule(f"{literal(f'<parameter={name}>' + chr(10))} {self._value(member)}")

    def _value(self, member: Declared) -> str:
        if member.options and member.kinds == {"string"}:
            return "(" + " | ".join(literal(option + PARAMETER_END) for option in member.options) + ")"
        if "string" in member.kinds or not member.kinds:
            most = member.schema.get("maxLength") if isinstance(member.schema, Mapping) else None
            return self._text(most) if isinstance(most, int) and 0 <= most <= TEXT_CHARS_MAX else "text"
        return f"{self._rule(value_of({'type': sorted(member.kinds)}))} {literal(PARAMETER_END)}"

    def _text(self, chars_max: int) -> str:
        name = f"text{chars_max}"
        self.rules[f"{name}[lazy]"] = f"/(?s:.{{0,{chars_max}}})/ {literal(PARAMETER_END)}"
        return name

    def _rule(self, body: str) -> str:
        name = f"parameter{len(self.rules)}"
        self.rules[name] = body
        return name
