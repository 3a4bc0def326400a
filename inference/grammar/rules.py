"""The rules of one grammar while it is written: names are given out, shared parts are written once, size is bounded."""

from __future__ import annotations

import json
from dataclasses import dataclass

from inference.errors import InvalidSchema

RULES_MAX = 2_000  # compiling so many takes about 20 milliseconds
REPEATS_MAX = 2_000  # llama.cpp unrolls a bounded repetition, and refuses more
ELEMENTS_MAX = 20_000  # unrolled repetitions of all rules together

# One space where models put one. No lines and no indentation: at temperature 1 they need never end.
SPACE = '" "?'
# Escapes stand for control characters only in part: a lone surrogate is no text, and U+0000 cannot be stored.
CHARACTER = (
    r"[\x20-\x21\x23-\x5B\x5D-\uD7FF\uE000-\U0010FFFF]"
    r' | "\\" (["\\/bfnrt] | "u" ("0" "0" "0" [1-9a-fA-F] | "0" "0" [1-9a-fA-F] hex | "0" [1-9a-fA-F] hex hex'
    r" | [1-9abcefABCEF] hex hex hex | [dD] [0-7] hex hex))"
)
SHARED: dict[str, tuple[str, tuple[str, ...]]] = {
    "hex": ("[0-9a-fA-F]", ()),
    "character": (CHARACTER, ("hex",)),
    "string": (r'"\"" character* "\""', ("character",)),
    # Fifteen digits and an exponent of two are exact and finite in every reader.
    "integer": ('"-"? ("0" | [1-9] [0-9]{0,14})', ()),
    "number": ('integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?', ("integer",)),
    "boolean": ('"true" | "false"', ()),
    "null": ('"null"', ()),
    "pair": (f'string ":" {SPACE} value', ("string", "value")),
    "object": (f'"{{" (pair ("," {SPACE} pair)*)? "}}"', ("pair",)),
    "array": (f'"[" (value ("," {SPACE} value)*)? "]"', ("value",)),
    "value": (
        "object | array | string | number | boolean | null",
        ("object", "array", "string", "number", "boolean", "null"),
    ),
}


@dataclass(frozen=True, slots=True)
class Thought:
    """The marks around a model's thoughts; `begun` when the prompt ends inside of one."""

    open: str
    close: str
    begun: bool = False


class Rules:
    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._elements = 0

    def add(self, body: str) -> str:
        """A new rule; returns its name."""
        name = self.reserve()
        self._bodies[name] = body
        return name

    def reserve(self) -> str:
        """A name whose body comes later with `fill`: for schemas that contain themselves."""
        if len(self._bodies) >= RULES_MAX:
            raise InvalidSchema(f"the schema is too large: it needs more than {RULES_MAX} grammar rules")
        name = f"r{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def fill(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def shared(self, name: str) -> str:
        """One of the rules that every JSON grammar knows."""
        if name not in self._bodies:
            self._bodies[name], needed = SHARED[name]
            for each in needed:
                self.shared(each)
        return name

    def repeat(self, part: str, least: int, most: int | None, path: str) -> str:
        """`part`, a single name or group, repeated. Raises InvalidSchema for more than can be counted."""
        self._elements += max(least, most or 0)
        if max(least, most or 0) > REPEATS_MAX or self._elements > ELEMENTS_MAX:
            raise InvalidSchema(f"lengths are counted up to {REPEATS_MAX}, and {ELEMENTS_MAX} in all", path)
        return f"{part}{{{least},{'' if most is None else most}}}"

    def text(self, root: str, thought: Thought | None = None) -> str:
        """The grammar of `root`, behind the thought that such a model may have first."""
        if thought:
            answer = self.add(root)
            thinks = until(thought.close, f"[ \\n]{{0,2}} {answer}", self)
            root = thinks if thought.begun else f"{literal(thought.open)} {thinks} | {answer}"
        lines = [f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())]
        return "\n".join(lines) + "\n"


def literal(text: str) -> str:
    """The text itself as a terminal. GBNF's escapes of quotes, backslashes and line breaks are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\x7F")


def either(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def until(mark: str, behind: str, rules: Rules, *, may_end: bool = False) -> str:
    """Any text up to a mark, then `behind`; with `may_end` it may also end before one.

    A rule for each part of the mark that may have been read. The mark's first character must occur in it once, so text
    that leaves the mark either begins it anew or is plain.
    """
    read = [rules.reserve() for _ in mark]
    for count, rule in enumerate(read):
        goes_on = f"{literal(mark[count])} {behind if count + 1 == len(mark) else read[count + 1]}"
        begins_anew = f" | {literal(mark[0])} {read[1]}" if count else ""
        plain = f"[^{_in_class(mark[0])}{_in_class(mark[count])}] {read[0]}"
        rules.fill(rule, f"{plain}{begins_anew} | {goes_on}" + (' | ""' if may_end else ""))
    return read[0]


def _in_class(character: str) -> str:
    return "\\" + character if character in "[]" else character
