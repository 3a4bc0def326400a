"""Tool calls as Gemma writes them: `<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>`.

The object is JSON except for its strings, which have delimiters of their own, and its keys, which are bare. It is
converted to JSON while it is parsed. FunctionGemma has other marks and the same grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from agents.parser.call import BODY_CHARS_MAX
from agents.parser.deltas import ParserEvent, Text
from agents.parser.markup import SEAM, MarkupParser, Mode, ThoughtMarks

PREFIX = "call:"


class GemmaParser(MarkupParser):
    open: ClassVar[str] = "<|tool_call>"
    close: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    marks = (open, close, quote)

    def __init__(self, thoughts: ThoughtMarks | None = None, *, thinking: bool = False) -> None:
        super().__init__(thoughts, thinking=thinking)
        self._bare: str | None = None  # the name of the call, or a key or value without quotes; None between calls
        self._quoted: str | None = None
        self._labelled = False  # a thought begins with its label and a line break

    def _plain(self, character: str) -> Iterator[ParserEvent]:
        if self._labelled:
            self._labelled = character != "\n"
        else:
            yield from super()._plain(character)

    def _enter(self, mark: str) -> Iterator[ParserEvent]:
        before = self._mode
        yield from super()._enter(mark)
        self._labelled = self._mode is Mode.THOUGHT and before is not Mode.THOUGHT

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._quoted is not None and mark not in (self.quote, self.close):
            self._quoted += mark
        elif mark == self.quote and self._reader is not None:
            yield from self._toggle_quote()
        elif mark == self.close:
            yield from self._close_call()
        elif mark == self.open and self._bare is None:
            if self._mode is Mode.TEXT:
                yield Text(SEAM)
            self._mode, self._bare = Mode.HIDDEN, ""
        elif self._mode is Mode.TEXT:
            yield Text(SEAM)

    def _toggle_quote(self) -> Iterator[ParserEvent]:
        if self._quoted is None:
            self._quoted = ""
        else:
            text, self._quoted = self._quoted, None
            yield from self._write(json.dumps(text, ensure_ascii=False))

    def _close_call(self) -> Iterator[ParserEvent]:
        if self._mode is Mode.TEXT:
            yield Text(SEAM)
        elif self._bare is not None:
            yield from self._break("it is not complete")
        self._mode = Mode.TEXT

    def _hidden(self, character: str) -> Iterator[ParserEvent]:
        if self._bare is None:
            return
        if len(self._bare) + len(self._quoted or "") > BODY_CHARS_MAX:
            yield from self._break(f"it is longer than {BODY_CHARS_MAX} characters")
        elif self._quoted is not None:
            self._quoted += character
        elif self._reader is None:
            yield from self._name(character)
        elif character in "{}[]:,":
            bare, self._bare = self._bare.strip(), ""
            yield from self._write(_token(bare, is_key=character == ":") + character)
        else:
            self._bare += character

    def _name(self, character: str) -> Iterator[ParserEvent]:
        assert self._bare is not None
        if character != "{":
            self._bare += character
            return
        name, self._bare = self._bare.strip().removeprefix(PREFIX).strip(), ""
        yield from self._open_named(name, verbatim=False)
        yield from self._write(character)

    def _ended(self, *, broken: bool) -> None:
        self._bare = self._quoted = None

    def _rest(self) -> Iterator[ParserEvent]:
        if self._bare is not None:
            yield from self._break("it was cut off")


class FunctionGemmaParser(GemmaParser):
    open = "<start_function_call>"
    close = "<end_function_call>"
    quote = "<escape>"
    marks = (open, close, quote)


def _token(bare: str, *, is_key: bool) -> str:
    """A bare key or value as JSON text; empty after a string or a nested object."""
    if not bare:
        return ""
    if not is_key:
        try:
            return json.dumps(json.loads(bare), allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(bare, ensure_ascii=False)
