"""Text amid markup: the common part of all tool-call dialects.

Text is fed as it is generated, in arbitrary chunks; the resulting events do not depend on the chunking. Text events
never contain markup or a prefix of it. A dialect defines its marks and their meanings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from enum import Enum
from itertools import groupby
from typing import ClassVar, NamedTuple, TypeAlias

from agents.parser.call import BrokenCall, CallReader
from inference.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the user: never a piece of a tool call or of its markup."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning of the model before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the arguments' JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The call is complete and `arguments`, the pieces joined, is a JSON object."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallBroken:
    """The call can never run. It may have started: then this ends it."""

    index: int
    reason: str


# In the order of the text. `index` counts the calls of one answer.
ParserEvent: TypeAlias = Text | Thought | CallStarted | CallArguments | CallFinished | CallBroken


# A mark that is cut off at the end is recognised from this length on; anything shorter may be a plain bracket.
CUT_MARK_CHARS_MIN = 5
PIECES = (Text, Thought, CallArguments)
# Replaces a mark that is dropped, lest the text around it forms a new one.
SEAM = " "


class ThoughtMarks(NamedTuple):
    """The marks around the reasoning that precedes an answer."""

    open: str
    close: str


class Mode(Enum):
    """The position of the parser outside of a call's JSON."""

    TEXT = "text"
    THOUGHT = "thought"
    HIDDEN = "hidden"  # names, tags and junk between calls: not for the user


class MarkupParser(ABC):
    """One answer. `thinking`: the prompt has already opened the reasoning."""

    marks: ClassVar[tuple[str, ...]]

    def __init__(self, thoughts: ThoughtMarks | None = None, *, thinking: bool = False) -> None:
        self._thoughts = thoughts
        self._marks = (*self.marks, *(thoughts or ()))
        self._starts = frozenset(mark[0] for mark in self._marks)
        self._mode = Mode.THOUGHT if thinking else Mode.TEXT
        self._held = ""  # possibly the prefix of a mark
        self._calls = 0
        self._reader: CallReader | None = None
        self._verbatim = False  # the open call is JSON as the model writes it: marks in it are content
        self._announced = False
        self._in_call = False  # cut off where only a call could come

    def feed(self, text: str) -> list[ParserEvent]:
        """The events of this chunk of text."""
        if text and self._passes(text):
            return [Text(text)]
        return joined(self._events(text))

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        """The events at the end: text that was held back, or the unfinished call. `in_call`: the answer was cut off
        where only a call could come, so what may begin one is not text."""
        events: list[ParserEvent] = []
        self._in_call = in_call
        if self._reader is not None:
            events += self._break("it was cut off")
        elif len(self._held) < CUT_MARK_CHARS_MIN and not in_call:
            held, self._held = self._held, ""
            events += [event for character in held for event in self._plain(character)]
        self._held = ""
        return joined([*events, *self._rest()])

    @property
    def is_outside(self) -> bool:
        """Whether what was fed ends outside of calls, reasoning and marks."""
        return self._mode is Mode.TEXT and self._reader is None and not self._held

    @abstractmethod
    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        """The effect of a mark of the dialect, anywhere except in JSON and in marked reasoning."""

    def _hidden(self, character: str) -> Iterator[ParserEvent]:
        """A character between marks that is not for the user."""
        return iter(())

    def _ended(self, *, broken: bool) -> None:
        """A call has ended; a dialect returns what it expects next. By default, nothing for the user."""
        self._mode = Mode.HIDDEN

    def _rest(self) -> Iterable[ParserEvent]:
        """Further events at the end of the answer."""
        return ()

    def _passes(self, text: str) -> bool:
        """Whether the chunk is plain text and nothing else, as nearly all chunks are: parsing it by character takes 18
        times as long."""
        return self._mode is Mode.TEXT and not self._held and self._starts.isdisjoint(text)

    def _events(self, text: str) -> Iterator[ParserEvent]:
        at = 0
        while at < len(text):
            if self._reader is not None and self._verbatim:
                at += yield from self._write(text[at:])
            elif taken := 0 if self._held else self._swallow(text, at):
                at += taken
            else:
                yield from self._step(text[at])
                at += 1

    def _swallow(self, text: str, at: int) -> int:
        """How many characters of the text from `at` on were taken at once: those of long values without marks."""
        return 0

    def _step(self, character: str) -> Iterator[ParserEvent]:
        if self._reader is not None and self._verbatim:
            yield from self._write(character)
            return
        self._held += character
        while self._held and not any(mark.startswith(self._held) for mark in self._marks):
            first, rest = self._held[0], self._held[1:]
            self._held = ""
            yield from self._plain(first)
            if self._verbatim:
                for each in rest:
                    yield from self._step(each)
                return
            self._held = rest
        if self._held in self._marks:
            mark, self._held = self._held, ""
            yield from self._enter(mark)

    def _plain(self, character: str) -> Iterator[ParserEvent]:
        match self._mode:
            case Mode.TEXT:
                yield Text(character)
            case Mode.THOUGHT:
                yield Thought(character)
            case Mode.HIDDEN:
                yield from self._hidden(character)

    def _enter(self, mark: str) -> Iterator[ParserEvent]:
        if self._thoughts is None or self._mode is Mode.HIDDEN:
            yield from self._mark(mark)
        elif self._mode is Mode.THOUGHT:
            if mark == self._thoughts.close:
                self._mode = Mode.TEXT
            else:
                yield Thought(SEAM)
        elif mark == self._thoughts.open:
            yield Text(SEAM)
            self._mode = Mode.THOUGHT
        elif mark == self._thoughts.close:
            yield Text(SEAM)
        else:
            yield from self._mark(mark)

    def _open(self, reader: CallReader, *, verbatim: bool = True) -> None:
        self._reader, self._verbatim, self._announced = reader, verbatim, False
        self._mode = Mode.HIDDEN

    def _open_named(self, name: str, *, verbatim: bool = True) -> Iterator[ParserEvent]:
        """Open a call whose bare arguments follow, or break it because of its name."""
        try:
            self._open(CallReader.named(name), verbatim=verbatim)
        except BrokenCall as error:
            self._mode = Mode.HIDDEN
            yield from self._break(str(error))

    def _write(self, text: str) -> Generator[ParserEvent, None, int]:
        """Pass JSON text to the open call, up to its end. Returns the number of characters that were used. If the last
        one broke the call, a mark may begin with it."""
        reader = self._reader
        if reader is None:
            return len(text)
        try:
            reader.feed(text)
            arguments = reader.arguments() if reader.complete else None
        except BrokenCall as error:
            yield from self._news(reader)
            verbatim, last = self._verbatim, text[reader.used - 1]
            yield from self._break(str(error))
            if verbatim and any(mark.startswith(last) for mark in self._marks):
                self._held = last
            return reader.used
        yield from self._news(reader)
        if arguments is not None:
            yield CallFinished(self._calls, reader.name or "", arguments)
            self._leave()
            self._ended(broken=False)
        return reader.used

    def _news(self, reader: CallReader) -> Iterator[ParserEvent]:
        if reader.name is not None and not self._announced:
            self._announced = True
            yield CallStarted(self._calls, reader.name)
        if piece := reader.take_arguments():
            yield CallArguments(self._calls, piece)

    def _break(self, reason: str) -> Iterator[ParserEvent]:
        yield CallBroken(self._calls, reason)
        self._leave()
        self._ended(broken=True)

    def _leave(self) -> None:
        self._calls += 1
        self._reader, self._verbatim = None, False


def before_marks(text: str, at: int, chars_max: int) -> str:
    """The text from `at` on, up to what may begin a mark."""
    end = text.find("<", at)
    return text[at : min(end if end >= 0 else len(text), at + max(0, chars_max))]


def joined(events: Iterable[ParserEvent]) -> list[ParserEvent]:
    """Merges neighbouring pieces of the same kind into one event."""
    together: list[ParserEvent] = []
    for _, group in groupby(events, type):
        first, *rest = group
        if rest and isinstance(first, PIECES):
            text = "".join([each.text for each in (first, *rest) if isinstance(each, PIECES)])
            first, rest = replace(first, text=text), []
        together += [first, *rest]
    return together
