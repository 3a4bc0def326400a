"""Tool calls as Mistral's models write them, which is in one of two ways:

`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` and, since 2025, `[TOOL_CALLS]name[ARGS]{...}` for each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agents.parser.call import CallReader
from agents.parser.deltas import CallBroken, ParserEvent, Text
from agents.parser.markup import SEAM, MarkupParser, Mode

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
NAME_CHARS_MAX = 256  # a longer name is rejected by `CallReader`; this only limits the buffer


class MistralParser(MarkupParser):
    marks = (CALLS, ARGS, CALL_ID)
    _name = ""
    _naming = False
    _in_array = False
    _owes_call = False  # a mark announced a call that has not begun

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if mark == CALLS:
            if self._mode is Mode.TEXT:
                yield Text(SEAM)
            self._mode, self._name, self._in_array = Mode.HIDDEN, "", False
            self._naming = self._owes_call = True
        elif self._mode is Mode.TEXT:
            yield Text(SEAM)
        elif mark == ARGS and self._owes_call:
            yield from self._named()
        elif mark == CALL_ID:
            self._naming = False

    def _hidden(self, character: str) -> Iterator[ParserEvent]:
        if character == "{" and self._name.strip() and self._owes_call:
            yield from self._named()
            yield from self._write(character)
        elif character == "{" and (self._in_array or self._owes_call):
            self._owes_call = False
            self._open(CallReader())
            yield from self._write(character)
        elif character == "[" and self._owes_call and not self._name.strip():
            self._in_array = True
        elif character == "]" and self._in_array:
            self._in_array = self._owes_call = False
            self._mode = Mode.TEXT
        elif self._naming and len(self._name) < NAME_CHARS_MAX:
            self._name += character

    def _named(self) -> Iterator[ParserEvent]:
        name, self._name, self._naming, self._owes_call = self._name.strip(), "", False, False
        yield from self._open_named(name)

    def _rest(self) -> Iterable[ParserEvent]:
        return [CallBroken(self._calls, "it was cut off")] if self._owes_call else []
