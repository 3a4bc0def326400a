"""Tool calls as Gemma writes them: `<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>`.

The object is JSON except for its strings, which have delimiters of their own, and its keys, which are bare. It is
converted to JSON while it is parsed. FunctionGemma has other marks and the same grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agents.parser.call import BODY_BYTES_MAX, TOO_LONG
from agents.parser.deltas import ParserEvent, Text
from agents.parser.markup import SEAM, MarkupParser, Mode, ThoughtMarks, before_marks
from inference.grammar.declared import Declared

PREFIX = "call:"
BARE_CHARS_MAX = 4_096  # of a name, a number or a word


class GemmaParser(MarkupParser):
    open: ClassVar[str] = "<|tool_call>"
    close: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    marks = (open, close, quote)

    def __init__(
        self, thoughts: ThoughtMarks | None = None, *, thinking: bool = False, schemas: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(thoughts, thinking=thinking)
        self._parameters = {each["function"]["name"]: each["function"]["parameters"] for each in schemas}
        self._around: list[Declared] = []  # the objects and lists that are open
        self._next = Declared({})  # the next value
        self._bare: str | None = None  # the name of the call, or a key or value without quotes; None between calls
        self._quoted: list[str] | None = None
        self._chars = 0  # of the quoted text
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
            self._quoted.append(mark)
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
            self._quoted, self._chars = [], 0
        else:
            text, self._quoted = "".join(self._quoted), None
            yield from self._write(json.dumps(text, ensure_ascii=False))

    def _close_call(self) -> Iterator[ParserEvent]:
        if self._mode is Mode.TEXT:
            yield Text(SEAM)
        elif self._bare is not None:
            yield from self._break("it is not complete")
        self._mode = Mode.TEXT

    def _swallow(self, text: str, at: int) -> int:
        if self._quoted is None:
            return 0
        content = before_marks(text, at, BODY_BYTES_MAX - self._chars)
        self._quoted.append(content)
        self._chars += len(content)
        return len(content)

    def _hidden(self, character: str) -> Iterator[ParserEvent]:
        if self._bare is None:
            return
        if len(self._bare) > BARE_CHARS_MAX or self._chars > BODY_BYTES_MAX:
            yield from self._break(TOO_LONG)
        elif self._quoted is not None:
            self._quoted.append(character)
            self._chars += 1
        elif self._reader is None:
            yield from self._name(character)
        elif character in "{}[]:,":
            bare, self._bare = self._bare.strip(), ""
            yield from self._write(self._token(bare, character) + character)
        else:
            self._bare += character

    def _name(self, character: str) -> Iterator[ParserEvent]:
        assert self._bare is not None
        if character != "{":
            self._bare += character
            return
        name, self._bare = self._bare.strip().removeprefix(PREFIX).strip(), ""
        self._around = [Declared(self._parameters.get(name))]
        yield from self._open_named(name, verbatim=False)
        yield from self._write(character)

    def _token(self, bare: str, before: str) -> str:
        """The JSON text of a bare key or value that precedes this character; empty after a string or an object."""
        if before == ":":
            self._next = self._around[-1].member(bare)
            return json.dumps(bare, ensure_ascii=False) if bare else ""
        token = self._next.json_of(bare) if bare else ""
        if before in "{[":
            self._around.append(self._next)
        elif before in "}]":
            self._around.pop()
        self._next = self._around[-1].item if before in "[," else Declared({})
        return token

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
