"""The dialects whose tool calls have JSON in them, as it is parsed: of Hermes, Mistral, Llama 3 and gpt-oss.

A call is complete when its JSON object closes: from then on it may run. One that is cut off is broken, and so is one
that is not valid JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from agents.parser.markup import (
    SEAM,
    BrokenCall,
    CallBroken,
    CallReader,
    MarkupParser,
    Mode,
    ParserEvent,
    Text,
    Thought,
    ThoughtMarks,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Behind a call, a tool result that the model makes up is not text for the user. Without one, it is the answer.
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"


class HermesParser(MarkupParser):
    """Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` amid text. Behind a broken call,
    parsing continues after its closing tag."""

    marks = (OPEN, CLOSE, RESULT_OPEN, RESULT_CLOSE)
    _until = ""  # the mark after which text continues

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._until == mark:
            self._mode, self._until = Mode.TEXT, ""
        elif mark == OPEN and self._until != RESULT_CLOSE:
            self._until = CLOSE
            self._open(CallReader())
        elif not self._until:
            yield Text(SEAM)
            if mark == RESULT_OPEN and self._calls:
                self._mode, self._until = Mode.HIDDEN, RESULT_CLOSE


TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
NAME_CHARS_MAX = 256  # a longer name is rejected by `CallReader`; this only limits the buffer


class MistralParser(MarkupParser):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` and, since 2025, `[TOOL_CALLS]name[ARGS]{...}` for each
    call."""

    marks = (TOOL_CALLS, ARGS, CALL_ID)
    _name = ""
    _naming = False
    _in_array = False
    _owes_call = False  # a mark announced a call that has not begun

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if mark == TOOL_CALLS:
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


PYTHON_TAG = "<|python_tag|>"
ARGUMENTS = ("parameters", "arguments")
KEYS = frozenset({*ARGUMENTS, "name", "type", "id"})
BETWEEN_CALLS = "; \t\r\n"


class LlamaParser(MarkupParser):
    """Llama 3: an answer that is `{"name": ..., "parameters": {...}}`, or several with `;`.

    There is no mark but an optional <|python_tag|>, so an object is held back until it can only be a call: it has a
    name and its parameters have begun. Any other JSON is the answer itself.
    """

    marks = (PYTHON_TAG,)
    _fresh = True  # a call may begin: nothing was written yet, or a call ended last
    _candidate: CallReader | None = None
    _seen: list[str]  # of the candidate

    def _passes(self, text: str) -> bool:
        return not self._fresh and self._candidate is None and super()._passes(text)

    def _step(self, character: str) -> Iterator[ParserEvent]:
        if self._candidate is not None:
            yield from self._consider(self._candidate, character)
        else:
            yield from super()._step(character)

    def _plain(self, character: str) -> Iterator[ParserEvent]:
        if self._mode is not Mode.TEXT or not self._fresh:
            yield from super()._plain(character)
        elif character == "{":
            self._candidate, self._seen = CallReader(ARGUMENTS), []
            yield from self._consider(self._candidate, character)
        elif character not in BETWEEN_CALLS or not self._calls:
            self._fresh = character.isspace()
            yield Text(character)

    def _consider(self, candidate: CallReader, character: str) -> Iterator[ParserEvent]:
        self._seen.append(character)
        try:
            candidate.feed(character)
        except BrokenCall:
            yield from self._release()
            return
        if candidate.name is not None and candidate.in_arguments:
            self._candidate = None
            self._open(CallReader(ARGUMENTS))
            yield from self._write("".join(self._seen))
        elif candidate.complete or (candidate.key is not None and candidate.key not in KEYS):
            yield from self._release()

    def _release(self) -> Iterator[ParserEvent]:
        """The candidate is text."""
        self._candidate, self._fresh = None, False
        for character in self._seen:
            yield from self._step(character)

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._mode is Mode.TEXT:
            yield Text(SEAM)
            self._open(CallReader(ARGUMENTS))

    def _ended(self, *, broken: bool) -> None:
        self._fresh = True
        self._mode = Mode.HIDDEN if broken else Mode.TEXT  # the rest of a broken call is not an answer

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        seen = [] if self._candidate is None or in_call else list(self._release())
        return [*seen, *super().finish(in_call=in_call)]


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
    """The harmony format of gpt-oss: every message names its channel, and a call its recipient.

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.name<|message|>{...}<|call|>

    What goes to the analysis channel is thought. https://developers.openai.com/cookbook/articles/openai-harmony
    """

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
