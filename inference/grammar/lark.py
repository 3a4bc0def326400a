"""A grammar in llguidance's dialect of Lark: rules, quoted texts, and JSON of a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidSchema

# In a rule: a pattern, which is kept as it is, or a quoted text.
_QUOTED = re.compile(r'/(?:\\.|[^/\\\n])+/|"(?:\\.|[^"\\])*"')


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The markers around a model's reasoning; `begun` if the prompt ends inside it."""

    open: str
    close: str
    begun: bool = False


def grammar(start: str, rules: Mapping[str, str], thought: ReasoningMarks | None = None) -> str:
    """The grammar of `start`, preceded by reasoning if the model may produce it."""
    written = dict(rules)
    if thought:
        written |= {"answer": start, "thought": "thinking GAP?", "GAP": "/[ \\n]{1,2}/"}
        written["thinking[lazy]"] = up_to(thought.close) if thought.begun else up_to(thought.close, thought.open)
        start = "thought answer" if thought.begun else "thought? answer"
    written |= {"start": start, "ANYTHING": "/(?s:.*)/"}
    return "".join(f"{name}: {body}\n" for name, body in written.items())


def literal(text: str) -> str:
    """The text itself. Lark's escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def up_to(mark: str, begin: str = "") -> str:
    """Any text up to and including the marker. A lazy rule ends at the first marker."""
    return f"{literal(begin)} ANYTHING {literal(mark)}" if begin else f"ANYTHING {literal(mark)}"


def value_of(document: Mapping[str, Any]) -> str:
    """JSON of a schema that was converted by `restated`."""
    return f"%json {json.dumps(document, ensure_ascii=False)}"


def by_token(grammar: str, marks: Mapping[str, int]) -> str:
    """The same grammar for tokenizers that distinguish control tokens from text that looks like them, as those of
    Hugging Face do: `marks` in its texts are replaced by their ids. JSON and patterns are unchanged."""
    if not marks:
        return grammar
    found = re.compile("(" + "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) + ")")
    return "\n".join(_rule_by_token(rule, found, marks) for rule in grammar.split("\n"))


def _rule_by_token(rule: str, found: re.Pattern[str], marks: Mapping[str, int]) -> str:
    def by_token(quoted: re.Match[str]) -> str:
        if quoted[0].startswith("/"):
            return quoted[0]
        parts = [part for part in found.split(json.loads(quoted[0])) if part]
        if marks.keys().isdisjoint(parts):
            return quoted[0]
        return "(" + " ".join(f"<[{marks[part]}]>" if part in marks else literal(part) for part in parts) + ")"

    if "%json" in rule:
        return rule
    changed = _QUOTED.sub(by_token, rule)
    # A lazy rule is a single lexeme, which cannot contain a token. No text before the token can contain it, so the rule
    # still ends with the first one.
    return rule if changed == rule else changed.replace("[lazy]:", ":", 1)


# The grammar of a text, rewritten for that text within a JSON string, where quotes and line breaks are escaped.
# Escaping replaces single characters, so the rules stay as they are. Texts and expressions become sequences of
# characters, and terminals become rules: the library's lexer looks one character ahead, and a backslash alone does not
# tell it whether a longer lexeme ends. What does not allow that is refused: intersections, complements, anchors, flags,
# and other kinds of grammars.

# Characters that have an escape. Other control characters are excluded: no text that a model writes has them.
ESCAPES = {char: json.dumps(char)[1:-1] for char in '"\\\n\r\t\b\f'}
PLAIN = r'[^"\\\x00-\x1F]'
# The terminals of Lark's library that grammars import.
COMMON = {
    "CNAME": r"/[_a-zA-Z][_a-zA-Z0-9]*/",
    "CR": r'"\r"',
    "DECIMAL": r"/[0-9]+\.[0-9]*|\.[0-9]+/",
    "DIGIT": "/[0-9]/",
    "ESCAPED_STRING": r'/"([^"\\]|\\.)*"/',
    "FLOAT": r"/([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?/",
    "HEXDIGIT": "/[0-9a-fA-F]/",
    "INT": "/[0-9]+/",
    "LCASE_LETTER": "/[a-z]/",
    "LETTER": "/[a-zA-Z]/",
    "LF": r'"\n"',
    "NEWLINE": r"/(\r?\n)+/",
    "NUMBER": r"/[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?/",
    "SIGNED_INT": "/[-+]?[0-9]+/",
    "SIGNED_NUMBER": r"/[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?/",
    "UCASE_LETTER": "/[A-Z]/",
    "WORD": "/[a-zA-Z]+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
}

_PIECE = re.compile(
    r'(?P<comment>(?://|#)[^\n]*)|(?P<range>"[^"\\\n]"\s*\.\.\s*"[^"\\\n]")|(?P<text>"(?:\\.|[^"\\\n])*"i?)'
    r"|(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)|(?P<import>%import\s+common\s*(?:\.\s*\w+(?:\s*->\s*\w+)?|\([\w\s,]*\)))"
)
_REFUSED = re.compile(r"&|~(?!\s*\d)|%\w*|<|^\s*[?!]?\w+\[[^\]\n]*(?:\]\s*:|=)", re.MULTILINE)
_SETS = re.compile(r"--|~~|\|\||&&")  # operators within classes, which only some libraries know
_TERMINAL = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")
# In a hollow grammar: what the rule `start` is called, since there is another, and the beginning of each rule.
_FIRST = "start_of_input"
_HEAD = re.compile(r"^\s*[?!]?(\w+)\s*:(?!:)", re.MULTILINE)
_CLASS = r"\[\^?\]?(?:\\.|[^\\\[\]&])*\]"
_ATOM = re.compile(
    rf"(?P<class>{_CLASS})|(?P<set>\\[sSdDwW])|(?P<escape>\\(?:[nrtf]|x[0-9a-fA-F]{{2}}|[^\sA-Za-z0-9]))"
    r"|(?P<open>\((?!\?)|\(\?:)|(?P<dot>\.)|(?P<kept>\||\))|(?P<count>(?:[*+?]|\{\d*,?\d*\})\??)|(?P<char>[^\\()\[\]{}*+?^$|.])"
)


def escaped(definition: str) -> str:
    """Raises InvalidSchema for what cannot be held within JSON."""
    return _written(definition, _rewritten)


def hollow(definition: str) -> str:
    """The same rules with an empty text in place of each text, one after the other: an empty text matches that if each
    rule is defined and comes to an end, and nothing otherwise. Raises InvalidSchema as `escaped` does."""
    rules = re.sub(r"\bstart\b", _FIRST, _written(definition, _emptied))
    return f"{rules}start: {' '.join([_FIRST, *_HEAD.findall(rules)])}\n"


def readable(reason: str) -> str:
    """What the library says of a hollow grammar, with the names of the definition."""
    return re.sub(r"\bterminal_(\w+)", lambda name: name[1].upper(), reason).replace(_FIRST, "start")


def _written(definition: str, rewrite: Callable[[re.Match[str]], str]) -> str:
    written, end = [], 0
    for found in _PIECE.finditer(definition):
        written += [_kept(definition[end : found.start()]), rewrite(found)]
        end = found.end()
    return "".join((*written, _kept(definition[end:]), "\n"))


def _emptied(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "comment":
            return ""
        case "import":
            return "".join(f'{_rule(alias)}: ""\n' for _, alias in _names(found[0]))
    return '""'


def _kept(between: str) -> str:
    if refused := _REFUSED.search(between):
        raise InvalidSchema(f"this grammar is not supported: it has '{refused[0].strip()}'")
    return _TERMINAL.sub(lambda name: _rule(name[0]), between)


def _rule(terminal: str) -> str:
    return f"terminal_{terminal.lower()}"


def _rewritten(found: re.Match[str]) -> str:
    piece = found[0]
    match found.lastgroup:
        case "range":
            first, last = re.findall(r'"(.)"', piece)
            return _class(f"[{re.escape(first)}-{re.escape(last)}]")
        case "text":
            return _text(piece)
        case "regex":
            return _regex(piece)
        case "import":
            return "".join(_imported(name, alias) for name, alias in _names(piece))
    return ""


def _text(quoted: str) -> str:
    body, flag = quoted.removesuffix("i"), "i" if quoted[-1] == "i" else ""
    try:
        text: str = json.loads(body)
    except ValueError:
        raise InvalidSchema(f"this grammar is not supported: the text {body[:40]} has an unknown escape") from None
    return f"({' '.join(_char(char, flag) for char in text)})" if text else '""'


def _char(char: str, flag: str = "") -> str:
    """An escape ignores no case: `\\N` is none."""
    return literal(ESCAPES[char]) if char in ESCAPES else literal(char) + flag


def _names(statement: str) -> list[tuple[str, str]]:
    names = re.findall(r"\w+", statement.removeprefix("%import").strip().removeprefix("common"))
    return [(names[0], names[-1])] if "->" in statement else [(name, name) for name in names]


def _imported(name: str, alias: str) -> str:
    if name not in COMMON:
        raise InvalidSchema(f"this grammar is not supported: it imports common.{name}")
    body = COMMON[name]
    return f"{_rule(alias)}: {_text(body) if body.startswith(chr(34)) else _regex(body)}\n"


def _regex(quoted: str) -> str:
    body, _, flags = quoted[1:].rpartition("/")
    if flags:
        raise InvalidSchema(f"this grammar is not supported: an expression has the flag '{flags}'")
    parts, at = [], 0
    while at < len(body):
        atom = _ATOM.match(body, at)
        if atom is None:
            raise InvalidSchema(f"this grammar is not supported: '{body[at : at + 20]}' in an expression")
        parts.append(_atom(atom))
        at = atom.end()
    return f"({''.join(parts)})"


def _atom(atom: re.Match[str]) -> str:
    piece = atom[0]
    match atom.lastgroup:
        case "class":
            return " " + _class(piece)
        case "set":
            return " " + _class(f"[{piece}]")
        case "dot":
            return " " + _class(r"[^\n]")
        case "escape":
            return " " + _char(_unescaped(piece[1:]))
        case "char":
            return " " + _char(piece)
        case "count":
            return piece if len(piece) == 1 else piece.removesuffix("?")  # lazy or not, the texts are the same
        case "open":
            return " ("
    return f" {piece} "


def _unescaped(name: str) -> str:
    if name.startswith("x"):
        return chr(int(name[1:], 16))
    return {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(name, name)


def _class(members: str) -> str:
    """The characters of a class without an escape, and the escapes of the others."""
    try:
        if _SETS.search(members):
            raise re.error("an operator")
        members_of = re.compile(members)
    except re.error:
        raise InvalidSchema(f"this grammar is not supported: the class {members[:40]}") from None
    special = [literal(escape) for char, escape in ESCAPES.items() if members_of.fullmatch(char)]
    has_plain = members.startswith("[^") or any(members_of.fullmatch(chr(code)) for code in _plain_codes(members))
    plain = [f"/[{members}&&{PLAIN}]/"] if has_plain else []
    return f"({' | '.join([*plain, *special])})"


def _plain_codes(members: str) -> set[int]:
    """Enough to find a character without an escape in any class: ASCII, and what the class itself names."""
    return {*range(0x20, 0x7F), *map(ord, members)} - set(map(ord, ESCAPES))
