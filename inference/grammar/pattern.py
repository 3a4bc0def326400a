"""Translates regular expressions of ECMA 262, as used by `pattern`, to llguidance's syntax, which is that of Rust.

Syntax with another meaning in Rust is rewritten: a dot, white space, and characters that are special in Rust's classes.
What no automaton can match is refused: lookaround, backreferences, anchors in the middle.
"""

from __future__ import annotations

import re

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
_ATOM = re.compile(rf"{_ONE}|{_SET}|[^\\()\[\]{{}}*+?^$|]")
_OPEN = re.compile(r"\((?!\?)|\(\?:|\(\?<[A-Za-z_][A-Za-z0-9_]*>|\|")
_COUNT = re.compile(r"(?:[*+?]|\{(\d{1,4})(?:,(\d{0,4}))?\})\??")
_CLASS = re.compile(r"\[(?:\^(?!\])|(?![\]^]))")
_MEMBER = rf"(?:{_ONE}|[^\\\]])"
_MEMBERS = re.compile(rf"({_MEMBER})-(?!\])({_MEMBER})|{_SET}(?!-[^\]])|{_MEMBER}")


def translated(pattern: str, path: str) -> str:
    """Raises InvalidSchema with the position of the pattern."""
    if pattern in KNOWN:
        return KNOWN[pattern]
    if len(pattern) > CHARS_MAX:
        raise InvalidSchema(f"this pattern is not supported: it has more than {CHARS_MAX} characters", path)
    return "".join(_Reader(pattern, path).parts())


class _Reader:
    """Parses one expression from left to right."""

    def __init__(self, pattern: str, path: str) -> None:
        self._text = pattern
        self._path = path
        self._at = 0

    def parts(self) -> list[str]:
        parts: list[str] = []
        begins, counts, depth = True, False, 0  # whether an anchor is allowed here, or a quantifier
        while self._at < len(self._text):
            if self._takes(_CLASS):
                parts += [self._took, *self._members()]
                begins, counts = False, True
            elif self._takes(_OPEN):
                parts.append(self._took)
                depth += self._took != "|"
                begins, counts = True, False
            elif self._takes(_ATOM):
                parts.append(ANY if self._took == "." else _plain(self._took))
                begins, counts = False, True
            elif counts and (found := self._takes(_COUNT)):
                if found[2] and int(found[1]) > int(found[2]):
                    raise self._refused("a repetition must go from the smaller number to the larger one")
                parts.append(self._took)
                counts = False
            elif depth and self._text[self._at] == ")":
                parts.append(self._one())
                depth -= 1
                begins, counts = False, True
            elif (begins and self._text[self._at] == "^") or self._ends():
                parts.append(self._one())
                counts = False
            else:
                raise self._refused()
        if depth:
            raise self._refused("a group is not closed")
        return parts

    def _members(self) -> list[str]:
        """The rest of a character class."""
        members = []
        while self._text[self._at : self._at + 1] != "]":
            found = self._takes(_MEMBERS)
            if found is None:
                raise self._refused("a class is not closed" if self._at == len(self._text) else "")
            if found[1] is None:
                members.append(_plain(self._took) if self._took.startswith("\\") else _member(self._took))
            else:
                if len(found[1]) == len(found[2]) == 1 and found[1] > found[2]:
                    raise self._refused("a range must go from a lower character to a higher one")
                members.append(f"{_member(found[1])}-{_member(found[2])}")
        return [*members, self._one()]

    def _takes(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._text, self._at)
        if found:
            self._took = found[0]
            self._at = found.end()
        return found

    def _one(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _ends(self) -> bool:
        return self._text[self._at] == "$" and self._text[self._at + 1 : self._at + 2] in ("", ")", "|")

    def _refused(self, reason: str = "") -> InvalidSchema:
        reason = reason or f"'{self._text[self._at : self._at + 4]}' is not supported here"
        return InvalidSchema(f"this pattern is not supported: {reason}", self._path)


def _plain(atom: str) -> str:
    if atom in ("\\<", "\\>"):  # in Rust they match word boundaries
        return atom[1]
    return SPACES.get(atom, atom)


def _member(character: str) -> str:
    if character in ("\\<", "\\>"):
        return character[1]
    return "\\" + character if character in ("[", "&", "~", "-", "^") else character
