"""Parses the JSON object of one tool call while it is being generated.

Detects where the object ends, finds the name, and returns the text of the arguments as it grows. Knows structure
(strings, nesting, keys of the outermost object) and leaves the rest of JSON to `json.loads` at the end.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

BODY_CHARS_MAX = 32_768  # limits a model that repeats itself
DEPTH_MAX = 32
NAME_CHARS_MAX = 64  # the limit of the public contract


class BrokenCall(ValueError):
    """The text is not a tool call; the message says why, for the model to read."""


class CallReader:
    """Feed characters until `complete`; `take_arguments` returns what is new of the arguments.

    `keys` are the names that the dialect has for the arguments.
    """

    def __init__(self, keys: tuple[str, ...] = ("arguments",)) -> None:
        self.name: str | None = None
        self.complete = False
        self._keys = keys
        self._bare = False  # the name came first, in other markup: the input is only the arguments
        self._body: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._string_start = 0
        self._key: str | None = None  # of the outermost object, while its value is being read
        self._string: str | None = None  # the last string of the outermost object: a key if a colon follows
        self._arguments_start: int | None = None
        self._arguments_end: int | None = None
        self._taken = 0

    @classmethod
    def named(cls, name: str) -> CallReader:
        """A reader of the bare arguments of a call whose name is known. Raises BrokenCall for an invalid name."""
        reader = cls()
        for character in f'{{"name": {json.dumps(name)}, "arguments": ':
            reader.feed(character)
        reader._bare = True
        return reader

    @property
    def key(self) -> str | None:
        """The key of the outermost object whose value is being read."""
        return self._key

    @property
    def in_arguments(self) -> bool:
        return self._arguments_start is not None

    def feed(self, character: str) -> None:
        """Take one character. Raises BrokenCall as soon as the text cannot be a call any more."""
        if len(self._body) >= BODY_CHARS_MAX:
            raise BrokenCall(f"it is longer than {BODY_CHARS_MAX} characters")
        self._body.append(character)
        if self._in_string:
            self._feed_string(character)
        elif self._waits_for_object and character not in "{ \t\r\n":
            raise BrokenCall("it does not begin with a JSON object")
        else:
            self._feed_structure(character)
        if self._bare and self._arguments_end is not None and not self.complete:
            self.feed("}")

    def take_arguments(self) -> str:
        """The next piece of the arguments, empty until the name is known."""
        if self.name is None:
            return ""
        if self._arguments_start is None:
            return "{}" if self.complete else ""
        start = self._arguments_start + self._taken
        piece = "".join(self._body[start : self._arguments_end])
        self._taken += len(piece)
        return piece

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
        return "".join(self._body[self._arguments_start : self._arguments_end])

    @property
    def _waits_for_object(self) -> bool:
        return not self._depth or (self._bare and not self.in_arguments)

    def _feed_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if self._depth == 1:
                self._end_string()

    def _end_string(self) -> None:
        raw = "".join(self._body[self._string_start :])
        if self._key is None:
            self._string = raw
        elif self._key == "name" and self.name is None:
            name = self._parse(f'{{"name": {raw}}}')["name"]
            if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
                raise BrokenCall(f"its name must have 1 to {NAME_CHARS_MAX} printable characters")
            self.name = name

    def _feed_structure(self, character: str) -> None:
        match character:
            case '"':
                self._in_string = True
                self._string_start = len(self._body) - 1
            case "{" | "[":
                self._open()
            case "}" | "]":
                self._close()
            case ":" if self._depth == 1 and self._string is not None:
                self._key, self._string = self._parse(f'{{"key": {self._string}}}')["key"], None
            case "," if self._depth == 1:
                self._key = None
            case "<":
                raise BrokenCall("it is not complete JSON")

    def _open(self) -> None:
        if self._depth == DEPTH_MAX:
            raise BrokenCall(f"it is nested deeper than {DEPTH_MAX} levels")
        if self._depth == 1 and self._key in self._keys and self._arguments_start is None:
            self._arguments_start = len(self._body) - 1
        self._depth += 1

    def _close(self) -> None:
        self._depth -= 1
        self.complete = self._depth == 0
        if self._depth == 1 and self._arguments_start is not None and self._arguments_end is None:
            self._arguments_end = len(self._body)

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
