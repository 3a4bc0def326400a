"""Tool calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` amid text.

Text goes in as it is generated, cut anywhere; events come out, the same for every way of cutting. What comes out as
Text never holds the markup or a beginning of it. A call is complete when its JSON object closes: from then on it may
run. One that the end cuts off is broken, and so is one that is not valid JSON; reading goes on behind its closing tag.
"""

from __future__ import annotations

from collections.abc import Iterator

from agents.parser.call import BrokenCall, CallReader
from agents.parser.events import CallArguments, CallBroken, CallFinished, CallStarted, ParserEvent, Text

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# A result that the model makes up is no text for the user either.
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"
TAGS = (OPEN, CLOSE, RESULT_OPEN, RESULT_CLOSE)
# A tag that the end cut off is recognised from here on; anything shorter may be a plain "<".
CUT_TAG_CHARS_MIN = len("<tool")


class HermesParser:
    def __init__(self) -> None:
        self._calls = 0
        self._reader: CallReader | None = None  # inside a call
        self._skipping_to: tuple[str, ...] = ()  # behind or inside something that is not for the user
        self._held = ""  # may be the beginning of a tag

    def feed(self, text: str) -> list[ParserEvent]:
        """The events that this piece of text brings."""
        if "<" not in text and self._reader is None and not self._held and not self._skipping_to:
            return [Text(text)] if text else []
        return _joined(event for character in text for event in self._step(character))

    def finish(self) -> list[ParserEvent]:
        """The events of the end: text that was held back, or the call that stays unfinished."""
        events: list[ParserEvent] = []
        if self._reader is not None:
            events += self._broken("it was cut off")
        elif self._held and not self._skipping_to and len(self._held) < CUT_TAG_CHARS_MIN:
            events.append(Text(self._held))
        self._held = ""
        return events

    def _step(self, character: str) -> Iterator[ParserEvent]:
        if self._reader is not None:
            yield from self._step_call(self._reader, character)
            return
        self._held += character
        while self._held and not any(tag.startswith(self._held) for tag in TAGS):
            released, self._held = self._held[0], self._held[1:]
            if not self._skipping_to:
                yield Text(released)
        if self._held in TAGS:
            tag, self._held = self._held, ""
            if tag != OPEN and not self._skipping_to:
                yield Text(" ")  # a seam, lest the text around a dropped tag makes a new one
            self._enter(tag)

    def _enter(self, tag: str) -> None:
        if tag == OPEN and RESULT_CLOSE not in self._skipping_to:
            self._reader, self._skipping_to = CallReader(), ()
        elif tag == RESULT_OPEN and not self._skipping_to:
            self._skipping_to = (RESULT_CLOSE,)
        elif tag in self._skipping_to:
            self._skipping_to = ()

    def _step_call(self, reader: CallReader, character: str) -> Iterator[ParserEvent]:
        named = reader.name is not None
        try:
            reader.feed(character)
            if not named and reader.name is not None:
                yield CallStarted(self._calls, reader.name)
            if piece := reader.take_arguments():
                yield CallArguments(self._calls, piece)
            if reader.complete:
                yield CallFinished(self._calls, reader.name or "", reader.arguments())
                self._leave_call()
        except BrokenCall as error:
            yield from self._broken(str(error))
            self._held = "<" if character == "<" else ""

    def _broken(self, reason: str) -> Iterator[ParserEvent]:
        yield CallBroken(self._calls, reason)
        self._leave_call()

    def _leave_call(self) -> None:
        self._calls += 1
        self._reader = None
        self._skipping_to = (CLOSE,)


def _joined(events: Iterator[ParserEvent]) -> list[ParserEvent]:
    """Neighbouring pieces of the same thing become one event."""
    joined: list[ParserEvent] = []
    for event in events:
        match joined[-1] if joined else None, event:
            case Text(before), Text(after):
                joined[-1] = Text(before + after)
            case CallArguments(index, before), CallArguments(_, after):
                joined[-1] = CallArguments(index, before + after)
            case _:
                joined.append(event)
    return joined
