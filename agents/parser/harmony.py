"""The harmony format of gpt-oss: every message names its channel, and a call its recipient.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.name<|message|>{...}<|call|>

What goes to the analysis channel is thought. The format: https://developers.openai.com/cookbook/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agents.parser.deltas import ParserEvent, Text, Thought
from agents.parser.markup import SEAM, MarkupParser, Mode, ThoughtMarks

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
HEADER_CHARS_MAX = 512  # role, channel, recipient and type are shorter; anything longer is text without a header

_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_MARKS = re.compile(r"<\|\w+\|>")
_HEADER = re.compile(r"\s*(?:(?:\w+|to=\S*)\s+){0,5}(?:\w+|to=\S*)?")  # role, channel, recipient and type, in any order
RECIPIENT = "to="
_RECIPIENT = re.compile(rf"\b{RECIPIENT}([^\s<]+)")


ANALYSIS = ThoughtMarks(f"{CHANNEL}analysis{MESSAGE}", END)
FINAL = f"{START}assistant{CHANNEL}final{MESSAGE}"  # begins the answer behind it


class HarmonyParser(MarkupParser):
    marks = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)

    def __init__(self, thoughts: ThoughtMarks | None = None, *, thinking: bool = False) -> None:
        super().__init__(None)
        self._mode = Mode.HIDDEN  # the prompt has begun a header
        self._header = ""
        self._marked = False  # until then an answer may be plain text

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if mark == MESSAGE:
            yield from self._message()
        else:
            if mark not in (CHANNEL, CONSTRAIN):
                yield from self._unheaded()
            if self._mode is not Mode.HIDDEN or mark not in (CHANNEL, CONSTRAIN):
                self._header = ""
            self._mode = Mode.HIDDEN
            self._header += mark
        self._marked = True

    def _message(self) -> Iterator[ParserEvent]:
        channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
        self._header = ""
        if recipient:
            yield from self._open_named(recipient[1].removeprefix("functions."))
        elif channel and channel[1] == "analysis":
            self._mode = Mode.THOUGHT
            yield Thought("\n")
        else:
            self._mode = Mode.TEXT
            yield Text("\n")

    def _hidden(self, character: str) -> Iterator[ParserEvent]:
        self._header = (self._header + character)[-HEADER_CHARS_MAX:]
        if len(self._header) == HEADER_CHARS_MAX:
            yield from self._unheaded()
            self._mode = Mode.TEXT

    def _unheaded(self) -> Iterator[ParserEvent]:
        """What was taken for a header, but has no message and, behind a mark, does not look like one."""
        text = _MARKS.sub(SEAM, self._header)
        begins_call = self._in_call or text.lstrip().startswith(RECIPIENT)
        is_header = begins_call or (self._marked and _HEADER.fullmatch(text))
        if self._mode is Mode.HIDDEN and text and not is_header:
            yield Text(text)

    def _rest(self) -> Iterator[ParserEvent]:
        yield from self._unheaded()
