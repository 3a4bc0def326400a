"""Parses the JSON object of one tool call while it is being generated.

Detects where the object ends, finds the name, and returns the text of the arguments as it grows. Knows structure
(strings, nesting, keys of the outermost object) and leaves the rest of JSON to `json.loads` at the end. The work is
linear in the text, however it is cut.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from agents.function_tool import NAME_CHARS_MAX

# A megabyte of arguments, such as a file that an agent writes, and what surrounds them: parsing that much at the end
# takes about 20 ms. It also limits a model that repeats itself.
BODY_BYTES_MAX = 2**20 + 2**10
TOO_LONG = f"it is longer than {BODY_BYTES_MAX} bytes"
DEPTH_MAX = 32
SPACE = " \t\r\n"
# Text without any structure, inside of a string and between strings.
_SAID, _BETWEEN = re.compile(r'[^"\\]+'), re.compile(r'[^"{}\[\]:,<]+')


class BrokenCall(ValueError):
    """The text is not a tool call; the message says why, for the model to read."""


class CallReader:
    """Feed text until `complete`; `take_arguments` returns what is new of the arguments.

    `keys` are the names that the dialect has for the arguments.
    """

    def __init__(self, keys: tuple[str, ...] = ("arguments",)) -> None:
        self.name: str | None = None
        self.complete = False
        self.used = 0  # characters of the newest text
        self._keys = keys
        self._bare = False  # the name came first, in other markup: the input is only the arguments
        self._body: list[str] = []
        self._bytes = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.key: str | None = None  # of the outermost object, while its value is being read
        self._open: list[str] | None = None  # the open string of the outermost object
        self._string: str | None = None  # its last string: a key if a colon follows
        self._arguments: list[str] | None = None
        self._in_arguments = False
        self._taken = 0  # pieces of the arguments

    @classmethod
    def named(cls, name: str) -> CallReader:
        """A reader of the bare arguments of a call whose name is known. Raises BrokenCall for an invalid name."""
        reader = cls()
        reader.feed(f'{{"name": {json.dumps(name)}, "arguments": ')
        reader._bare = True
        return reader

    @property
    def in_arguments(self) -> bool:
        return self._arguments is not None

    def feed(self, text: str) -> None:
        """Take the text, up to the end of the call. Raises BrokenCall as soon as it cannot be a call any more: the last
        of the `used` characters is then the one that broke it."""
        self.used = 0
        while self.used < len(text) and not self.complete:
            free = None if self._escaped else (_SAID if self._in_string else _BETWEEN).match(text, self.used)
            piece = free[0] if free else text[self.used]
            if self._waits_for_object and (other := piece.lstrip(SPACE)) and other[0] != "{":
                self.used += len(piece) - len(other) + 1
                raise BrokenCall("it does not begin with a JSON object")
            self._keep(piece)
            if not free:
                self._feed_structure(piece)

    def take_arguments(self) -> str:
        """The next piece of the arguments, empty until the name is known."""
        if self.name is None:
            return ""
        if self._arguments is None:
            return "{}" if self.complete else ""
        new, self._taken = self._arguments[self._taken :], len(self._arguments)
        return "".join(new)

    def arguments(self) -> str:
        """The whole arguments, "{}" when there are none. Raises BrokenCall unless the body is a valid call."""
        body = self._parse("".join(self._body))
        if self.name is None:
            raise BrokenCall("it has no name")
        given = [body[key] for key in self._keys if body.get(key) is not None]
        if not given:
            return "{}"
        if not isinstance(given[0], dict):
            raise BrokenCall("its arguments must be a JSON object")
        return "".join(self._arguments or ())

    @property
    def _waits_for_object(self) -> bool:
        return not self._depth or (self._bare and not self.in_arguments)

    def _keep(self, piece: str) -> None:
        size = len(piece) if piece.isascii() else len(piece.encode("utf-8", "replace"))
        room = BODY_BYTES_MAX - self._bytes
        is_too_long = size > room
        if is_too_long:
            piece = piece.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
        self._bytes += size
        self._body.append(piece)
        if self._in_arguments and self._arguments is not None:
            self._arguments.append(piece)
        if self._open is not None:
            self._open.append(piece)
        self.used += len(piece) + is_too_long
        if is_too_long:
            raise BrokenCall(TOO_LONG)

    def _feed_structure(self, character: str) -> None:
        if self._in_string:
            self._feed_string(character)
            return
        match character:
            case '"':
                self._in_string = True
                self._open = [character] if self._depth == 1 else None
            case "{" | "[":
                self._begin(character)
            case "}" | "]":
                self._end()
            case ":" if self._depth == 1 and self._string is not None:
                self.key, self._string = self._parse(f'{{"key": {self._string}}}')["key"], None
            case "," if self._depth == 1:
                self.key = None
            case "<":
                raise self._broken("it is not complete JSON")

    def _feed_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            self._in_string = False
            if self._open is not None:
                raw, self._open = "".join(self._open), None
                self._end_string(raw)

    def _end_string(self, raw: str) -> None:
        if self.key is None:
            self._string = raw
        elif self.key == "name" and self.name is None:
            name = self._parse(f'{{"name": {raw}}}')["name"]
            if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
                raise BrokenCall(f"its name must have 1 to {NAME_CHARS_MAX} printable characters")
            self.name = name

    def _begin(self, character: str) -> None:
        if self._depth == DEPTH_MAX:
            raise self._broken(f"it is nested deeper than {DEPTH_MAX} levels")
        if self._depth == 1 and self.key in self._keys and self._arguments is None:
            self._arguments, self._in_arguments = [character], True
        self._depth += 1

    def _end(self) -> None:
        self._depth -= 1
        if self._depth == 1 and self._in_arguments:
            self._in_arguments = False
            if self._bare:
                self._body.append("}")
                self._depth = 0
        self.complete = self._depth == 0

    def _broken(self, reason: str) -> BrokenCall:
        """The last character is no part of the arguments."""
        if self._in_arguments and self._arguments:
            self._arguments.pop()
        return BrokenCall(reason)

    @staticmethod
    def _parse(text: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = json.loads(text, parse_constant=_not_json, object_pairs_hook=_unique)
        except ValueError as error:
            raise BrokenCall(f"it is not valid JSON: {error}") from None
        return parsed


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers disagree about which of two equal keys wins, so neither does."""
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        raise ValueError("a key occurs twice")
    return parsed
