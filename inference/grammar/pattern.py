"""Translates regular expressions of ECMA 262, as used by `pattern`, to llguidance's syntax, which is that of Rust.

Syntax with another meaning in Rust is rewritten: a dot, white space, and characters that are special in Rust's classes.
What no automaton can match is refused: lookaround, backreferences, anchors in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from inference.errors import InvalidSchema

CHARS_MAX = 2_000  # per expression: the longest of zod's own, for IPv6 ranges, has about 700
ANY = r"[^\n\r\u2028\u2029]"  # the meaning of a dot
# The meaning of `\s`; in Rust, it includes U+0085 instead of the last one.
SPACE = r"\t\n\x0B\f\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
SPACES = {r"\s": f"[{SPACE}]", r"\S": f"[^{SPACE}]"}
# pydantic's pattern of a Decimal: its lookahead only excludes a text of signs alone.
KNOWN = {r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?[0-9]{1,15}(?:\.[0-9]{0,15})?$"}

_CODE = r"x[0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
_ONE = rf"\\(?:[nrtf]|{_CODE}|[^\sA-Za-z0-9])"  # an escape that stands for one character
_SET = r"\\(?:[dDwWsS]|[pP]\{[A-Za-z_]+(?:=[A-Za-z_]+)?\})"
_MEMBER = rf"(?:{_ONE}|[^\\\]])"
_TOKEN = re.compile(
    rf"(?P<class>\[(?:\^(?!\])|(?![\]^]))(?:{_SET}|{_MEMBER})+\])"
    r"|(?P<open>\((?!\?)|\(\?:|\(\?<[A-Za-z_][A-Za-z0-9_]*>)"
    r"|(?P<count>(?:[*+?]|\{(?P<low>\d{1,4})(?:,(?P<high>\d{0,4}))?\})\??)"
    rf"|(?P<atom>{_ONE}|{_SET}|[^\\()\[\]{{}}*+?^$|])"
    r"|(?P<mark>[|)^$])"
)
_MEMBERS = re.compile(rf"({_MEMBER})-({_MEMBER})|{_SET}(?!-.)|{_MEMBER}", re.DOTALL)


def translated(pattern: str, path: str) -> str:
    """Raises InvalidSchema with the position of the pattern."""
    if pattern in KNOWN:
        return KNOWN[pattern]
    try:
        if len(pattern) > CHARS_MAX:
            raise ValueError(f"it has more than {CHARS_MAX} characters")
        return "".join(_parts(pattern))
    except ValueError as error:
        raise InvalidSchema(f"this pattern is not supported: {error}", path) from None


def _parts(pattern: str) -> Iterator[str]:
    at, depth = 0, 0
    begins, counts = True, False  # whether an anchor is allowed here, or a quantifier
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        kind, token = (found.lastgroup, found[0]) if found else (None, pattern[at])
        part = token
        match kind, token:
            case "class", _:
                part, begins, counts = "".join(_class(token)), False, True
            case "atom", _:
                part, begins, counts = ANY if token == "." else _plain(token), False, True
            case "open", _:
                begins, counts, depth = True, False, depth + 1
            case "mark", "|":
                begins, counts = True, False
            case "mark", ")" if depth:
                begins, counts, depth = False, True, depth - 1
            case "count", _ if counts and found:
                counts = False
                if found["high"] and int(found["low"]) > int(found["high"]):
                    raise ValueError("a repetition must go from the smaller number to the larger one")
            case ("mark", "^") if begins:
                counts = False
            case ("mark", "$") if pattern[at + 1 : at + 2] in ("", ")", "|"):
                counts = False
            case None, "[":
                raise ValueError("a class is empty, or not closed")
            case _:
                raise ValueError(f"'{pattern[at : at + 4]}' is not supported here")
        yield part
        at += len(token)
    if depth:
        raise ValueError("a group is not closed")


def _class(text: str) -> Iterator[str]:
    at, end = 2 if text.startswith("[^") else 1, len(text) - 1
    yield text[:at]
    while at < end:
        found = _MEMBERS.match(text, at, end)
        if found is None:
            raise ValueError(f"'{text[at : at + 4]}' is not supported in a class")
        first, last = found.groups()
        if first is None:
            yield _plain(found[0]) if found[0].startswith("\\") else _member(found[0])
        elif len(first) == len(last) == 1 and first > last:
            raise ValueError("a range must go from a lower character to a higher one")
        else:
            yield f"{_member(first)}-{_member(last)}"
        at = found.end()
    yield "]"


def _plain(atom: str) -> str:
    if atom in ("\\<", "\\>"):  # in Rust they match word boundaries
        return atom[1]
    return SPACES.get(atom, atom)


def _member(character: str) -> str:
    if character in ("\\<", "\\>"):
        return character[1]
    return "\\" + character if character in ("[", "&", "~", "-", "^") else character
