"""Text amid markup: the common part of all tool-call dialects, and the JSON object of one call.

Text is fed as it is generated, in arbitrary chunks; the resulting events do not depend on the chunking. Text events
never contain markup or a prefix of it. A dialect defines its marks and their meanings.

The parser of a call detects where its object ends, finds the name, and returns the text of the arguments as it grows.
It knows structure (strings, nesting, keys of the outermost object) and leaves the rest of JSON to `json.loads` at the
end. The work is linear in the text, however it is cut.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeAlias

from agents.function_tool import NAME_CHARS_MAX
from inference.frozen import dataclass

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


@cache
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Of a mark, and of what may begin one at the end of a text."""
    begun = {mark[:end] for mark in marks for end in range(1, len(mark))}
    return re.compile("|".join([*map(re.escape, marks), *(rf"{re.escape(each)}\Z" for each in begun)]))


class MarkupParser(ABC):
    """One answer."""

    marks: ClassVar[tuple[str, ...]]
    # Marks that no answer without tools contains: they open a call, or a result that the model makes up.
    call_marks: ClassVar[tuple[str, ...]] = ()
    begins: ClassVar[Mode] = Mode.TEXT
    # Rendering an answer as content gives exactly the tokens that were generated: its template adds nothing to it.
    keeps_tokens: ClassVar[bool] = True
    formatted = False  # the answer is in a required format: marks in it are content
    _answers = False  # it has begun

    def __init__(
        self,
        thoughts: ThoughtMarks | None = None,
        schemas: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = False,
        around: tuple[str, ...] = (),
    ) -> None:
        """`schemas` are those of the tools, where the markup of a call does not tell the types of its arguments.
        `thinking`: the prompt has already opened the reasoning. `around`: marks around the answer, dropped."""
        self._thoughts, self._schemas, self._dropped = thoughts, schemas, around
        self._marks = (*self.marks, *(thoughts or ()), *around)
        self._pattern = _pattern(self._marks)
        self._mode = Mode.THOUGHT if thinking else self.begins
        self._held = ""  # to be read again with what follows: it may begin a mark
        self._calls = 0
        self._reader: CallReader | None = None
        self._verbatim = False  # the open call is JSON as the model writes it: marks in it are content
        self._announced = False
        self._in_call = False  # cut off where only a call could come

    def passes(self, text: str) -> bool:
        """Whether the chunk is text for the user and nothing else, as nearly all are: it need not be fed then."""
        if self.formatted:
            return self._answers
        return self._mode is Mode.TEXT and not (self._held or self._pattern.search(text))

    def feed(self, text: str) -> list[ParserEvent]:
        """The events of this chunk of text."""
        return joined(self._events(text))

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        """The events at the end: text that was held back, or the unfinished call. `in_call`: the answer was cut off
        where only a call could come, so what may begin one is not text."""
        events: list[ParserEvent] = []
        self._in_call = in_call
        held, self._held = self._held, ""
        if self._reader is not None:
            events += self._break("it was cut off")
        elif held and len(held) < CUT_MARK_CHARS_MIN and not in_call:
            events += [event for character in held for event in self._plain(character)]
        return joined([*events, *self._rest()])

    @property
    def is_outside(self) -> bool:
        """Whether what was fed ends outside of calls, reasoning and marks."""
        return self._mode is Mode.TEXT and self._reader is None and not self._held

    @abstractmethod
    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        """The effect of a mark of the dialect, anywhere except in JSON and in marked reasoning."""

    def _character(self, character: str) -> Iterator[ParserEvent]:
        """A character between marks that is not for the user."""
        return iter(())

    def _ended(self, *, broken: bool) -> None:
        """A call has ended; a dialect returns what it expects next. By default, nothing for the user."""
        self._mode = Mode.HIDDEN

    def _rest(self) -> Iterable[ParserEvent]:
        """Further events at the end of the answer."""
        return ()

    def _events(self, text: str) -> Iterator[ParserEvent]:
        text, self._held = self._held + text, ""
        at, end, found = 0, -1, None  # `end`: of the text before the mark that is found next
        while at < len(text):
            if self._answers:
                yield Text(text[at:])
                return
            if self._verbatim:
                at += yield from self._write(text[at:])
                if self._held:  # what is no part of the call is read again
                    text, self._held, at, end = self._held + text[at:], "", 0, -1
                continue
            if at > end:
                found = self._pattern.search(text, at)
                end = found.start() if found else len(text)
            if at < end:
                at += yield from self._plain(text[at:end])
            elif found:
                at = found.end()
                if found[0] in self._marks:
                    yield from self._enter(found[0])
                else:
                    self._held = found[0]

    def _plain(self, text: str) -> Generator[ParserEvent, None, int]:
        """Take text without marks, not all of it if the mode changes within. Returns how much."""
        match self._mode:
            case Mode.TEXT:
                self._answers = self.formatted and not text.isspace()
                yield Text(text)
            case Mode.THOUGHT:
                yield Thought(text)
            case Mode.HIDDEN:
                return (yield from self._hidden(text))
        return len(text)

    def _hidden(self, text: str) -> Generator[ParserEvent, None, int]:
        """The same between marks."""
        for used, character in enumerate(text, 1):
            yield from self._character(character)
            if self._verbatim or self._mode is not Mode.HIDDEN:
                return used
        return len(text)

    def _enter(self, mark: str) -> Iterator[ParserEvent]:
        if mark in self._dropped and self._mode is not Mode.THOUGHT:
            if self._mode is Mode.TEXT:
                yield Text(SEAM)
        elif self._thoughts is None or self._mode is Mode.HIDDEN:
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
            last = text[reader.used - 1] if self._verbatim else ""
            yield from self._break(str(error))
            if self._pattern.search(last):
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
