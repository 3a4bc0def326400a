"""The dialects whose tool calls are converted to JSON while they are parsed, by the types that the tool's schema
declares: of Qwen3-Coder and Gemma."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Generator, Iterator
from enum import Enum
from typing import Any

from agents.parser.markup import (
    BODY_BYTES_MAX,
    SEAM,
    TOO_LONG,
    MarkupParser,
    Mode,
    ParserEvent,
    Text,
)
from inference.grammar.calls import CLOSE, FUNCTION, FUNCTION_GEMMA, GEMMA, OPEN
from inference.grammar.declared import Declared
from inference.message_fitting import RESULT_CLOSE, RESULT_OPEN

FUNCTION_END = "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class TypedCallParser(MarkupParser):
    def __init__(self, *of: Any, **options: Any) -> None:
        super().__init__(*of, **options)
        self._parameters = {each["function"]["name"]: each["function"]["parameters"] for each in self._schemas}
        self._taken: list[str] = []  # of the text that is being read
        self._chars = 0

    @property
    @abstractmethod
    def _in_text(self) -> bool:
        """Whether a text of a call is being read, which ends at a mark."""

    def _hidden(self, text: str) -> Generator[ParserEvent, None, int]:
        for at, character in enumerate(text):
            if self._in_text:
                yield from self._take(text[at:])
                break
            yield from self._character(character)
        return len(text)

    def _take(self, text: str) -> Iterator[ParserEvent]:
        self._taken.append(text)
        self._chars += len(text)
        if self._chars > BODY_BYTES_MAX:
            yield from self._break(TOO_LONG)

    def _took(self) -> str:
        """The text that was read; another one begins."""
        taken, self._taken, self._chars = "".join(self._taken), [], 0
        return taken


class Place(Enum):
    """The position of the parser between the marks."""

    OUTSIDE = "outside"
    CALL = "call"  # before its function
    NAME = "name"
    INSIDE = "inside"  # a function, between its parameters
    KEY = "key"
    VALUE = "value"
    RESULT = "result"  # one that the model made up


class QwenCoderParser(TypedCallParser):
    """<tool_call><function=name><parameter=key>value</parameter></function></tool_call>

    Values are plain text; unless the schema of the tool, among `schemas`, declares that it is a string, a value is
    parsed as JSON.
    """

    call_marks = (OPEN, RESULT_OPEN)
    marks = (OPEN, CLOSE, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END, RESULT_OPEN, RESULT_CLOSE)
    _place = Place.OUTSIDE
    _declared = Declared({})  # of the open call
    _function = _key = ""
    _written = 0  # parameters of the open call

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._place is Place.RESULT:
            if mark == RESULT_CLOSE:
                self._place, self._mode = Place.OUTSIDE, Mode.TEXT
        elif self._reader is not None:
            yield from self._mark_in_call(mark)
        else:
            if self._mode is Mode.TEXT:
                yield Text(SEAM)
            yield from self._mark_outside(mark)

    def _mark_outside(self, mark: str) -> Iterator[ParserEvent]:
        if mark == FUNCTION:
            self._mode = Mode.HIDDEN
            self._begin(Place.NAME)
        elif mark == OPEN:
            self._mode, self._place = Mode.HIDDEN, Place.CALL
        elif mark == RESULT_OPEN and self._mode is Mode.TEXT and self._calls:
            self._mode, self._place = Mode.HIDDEN, Place.RESULT
        elif mark == CLOSE or (mark == FUNCTION_END and self._place is Place.NAME):
            if self._place in (Place.CALL, Place.NAME):
                yield from self._break("it has no name")
            self._mode, self._place = Mode.TEXT, Place.OUTSIDE

    def _mark_in_call(self, mark: str) -> Iterator[ParserEvent]:
        if mark in (PARAMETER, PARAMETER_END, FUNCTION_END, CLOSE):
            if self._in_text:
                yield from self._end_value()
            elif self._place is Place.KEY:
                yield from self._break("the name of a parameter is not closed")
            self._begin(Place.KEY if mark == PARAMETER else Place.INSIDE)
            if mark in (FUNCTION_END, CLOSE) and self._reader is not None:
                yield from self._write("}")
            if mark == CLOSE:
                self._mode = Mode.TEXT
        elif self._in_text:
            yield from self._take(mark)

    def _begin(self, place: Place) -> str:
        """Returns what was taken before."""
        self._place = place
        return self._took()

    @property
    def _in_text(self) -> bool:
        return self._place is Place.VALUE

    def _character(self, character: str) -> Iterator[ParserEvent]:
        match self._place:
            case Place.NAME if character == ">":
                self._function, self._written = self._begin(Place.INSIDE).strip(), 0
                self._declared = Declared(self._parameters.get(self._function))
                yield from self._open_named(self._function, verbatim=False)
                yield from self._write("{")
            case Place.KEY if character == ">":
                self._key = self._begin(Place.VALUE).strip()
            case Place.NAME | Place.KEY:
                yield from self._take(character)

    def _end_value(self) -> Iterator[ParserEvent]:
        bare = "".join(self._taken).removeprefix("\n").removesuffix("\n")
        value = self._declared.member(self._key).json_of(bare)
        between = ", " if self._written else ""
        self._written += 1
        yield from self._write(f"{between}{json.dumps(self._key, ensure_ascii=False)}: {value}")

    def _ended(self, *, broken: bool) -> None:
        self._place = Place.OUTSIDE

    def _rest(self) -> Iterator[ParserEvent]:
        if self._place in (Place.CALL, Place.NAME):
            yield from self._break("it was cut off")


PREFIX = "call:"
BARE_CHARS_MAX = 4_096  # of a name, a number or a word


class GemmaParser(TypedCallParser):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>`: JSON except for its strings, which have
    delimiters of their own, and its keys, which are bare. FunctionGemma has other marks and the same grammar."""

    open, close, quote = marks = GEMMA
    call_marks, keeps_tokens = marks[:1], False
    _around: list[Declared]  # the objects and lists that are open
    _next = Declared({})  # the next value
    _bare: str | None = None  # the name of the call, or a key or value without quotes; None between calls
    _in_text = False  # between quotes
    _labelled = False  # a thought begins with its label and a line break

    def _plain(self, text: str) -> Generator[ParserEvent, None, int]:
        if not self._labelled:
            return (yield from super()._plain(text))
        label, line_break, _ = text.partition("\n")
        self._labelled = not line_break
        return len(label + line_break)

    def _enter(self, mark: str) -> Iterator[ParserEvent]:
        before = self._mode
        yield from super()._enter(mark)
        self._labelled = self._mode is Mode.THOUGHT and before is not Mode.THOUGHT

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._in_text and mark not in (self.quote, self.close):
            yield from self._take(mark)
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
        self._in_text, text = not self._in_text, self._took()
        if not self._in_text:
            yield from self._write(json.dumps(text, ensure_ascii=False))

    def _close_call(self) -> Iterator[ParserEvent]:
        if self._mode is Mode.TEXT:
            yield Text(SEAM)
        elif self._bare is not None:
            yield from self._break("it is not complete")
        self._mode = Mode.TEXT

    def _character(self, character: str) -> Iterator[ParserEvent]:
        if self._bare is None:
            return
        if len(self._bare) > BARE_CHARS_MAX:
            yield from self._break(TOO_LONG)
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
        self._bare, self._in_text = None, False
        self._took()

    def _rest(self) -> Iterator[ParserEvent]:
        if self._bare is not None:
            yield from self._break("it was cut off")


class FunctionGemmaParser(GemmaParser):
    open, close, quote = marks = FUNCTION_GEMMA
    call_marks = marks[:1]
