"""The dialects of tool calls: the one of a model, found in its chat template, and its parser; for a raw prompt, none.
Those whose calls have JSON in them, as it is parsed, are here: of Hermes, Mistral, Llama 3 and gpt-oss.

A call is complete when its JSON object closes: from then on it may run. One that is cut off is broken, and so is one
that is not valid JSON.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any

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
from agents.parser.typed_calls import FunctionGemmaParser, GemmaParser, QwenCoderParser
from inference.grammar.calls import CHANNEL, CLOSE, FUNCTION, FUNCTION_GEMMA, GEMMA, OPEN, PYTHON_TAG, TOOL_CALLS
from inference.message_fitting import EVERYTHING, RESULT_CLOSE, RESULT_OPEN, Capabilities
from inference.tokenizer import AROUND_ANSWERS, ENDS_OTHERS_TOO, THOUGHTS


class HermesParser(MarkupParser):
    """Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` amid text. Behind a broken call,
    parsing continues after its closing tag. Behind a call, a tool result that the model makes up is not text for the
    user. Without one, it is the answer."""

    call_marks = (OPEN, RESULT_OPEN)
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


ARGS, CALL_ID = "[ARGS]", "[CALL_ID]"
NAME_CHARS_MAX = 256  # a longer name is rejected by `CallReader`; this only limits the buffer


class MistralParser(MarkupParser):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` and, since 2025, `[TOOL_CALLS]name[ARGS]{...}` for each
    call."""

    marks = (TOOL_CALLS, ARGS, CALL_ID)
    call_marks, keeps_tokens = marks[:1], False
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

    def _character(self, character: str) -> Iterator[ParserEvent]:
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


ARGUMENTS = ("parameters", "arguments")
KEYS = frozenset({*ARGUMENTS, "name", "type", "id"})
BETWEEN_CALLS = "; \t\r\n"


class LlamaParser(MarkupParser):
    """Llama 3: an answer that is `{"name": ..., "parameters": {...}}`, or several with `;`.

    There is no mark but an optional <|python_tag|>, so an object is held back until it can only be a call: it has a
    name and its parameters have begun. Any other JSON is the answer itself.
    """

    call_marks = marks = (PYTHON_TAG,)
    _fresh = True  # a call may begin: nothing was written yet, or a call ended last
    _seen: list[str] | None = None  # of an object that may be a call

    def passes(self, text: str) -> bool:
        return not self._fresh and super().passes(text)

    def _plain(self, text: str) -> Generator[ParserEvent, None, int]:
        if self._mode is not Mode.TEXT or not self._fresh:
            return (yield from super()._plain(text))
        if text[0] == "{":
            self._reader, self._verbatim, self._announced, self._seen = CallReader(ARGUMENTS), True, False, []
            return 0
        if text[0] not in BETWEEN_CALLS or not self._calls:
            self._fresh = text[0].isspace()
            yield from super()._plain(text[0])
        return 1

    def _write(self, text: str) -> Generator[ParserEvent, None, int]:
        candidate, seen = self._reader, self._seen
        if candidate is None or seen is None:
            return (yield from super()._write(text))
        for used, character in enumerate(text, 1):
            seen.append(character)
            is_call = _is_call(candidate, character)
            if is_call:
                self._seen, self._mode = None, Mode.HIDDEN
                yield from self._news(candidate)
            elif is_call is False:
                self._release()
            if is_call is not None:
                return used
        return len(text)

    def _release(self) -> None:
        """The object is text."""
        self._held, self._seen, self._fresh = "".join(self._seen or ()), None, False
        self._reader, self._verbatim = None, False

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._mode is Mode.TEXT:
            yield Text(SEAM)
            self._open(CallReader(ARGUMENTS))

    def _ended(self, *, broken: bool) -> None:
        self._fresh = True
        self._mode = Mode.HIDDEN if broken else Mode.TEXT  # the rest of a broken call is not an answer

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        if self._seen is None:
            return super().finish(in_call=in_call)
        self._release()
        if in_call:
            self._held = ""
        return [*self._events(""), *super().finish(in_call=in_call)]


def _is_call(candidate: CallReader, character: str) -> bool | None:
    """Whether an object turns out to be a call with this character; None: that is still unknown."""
    try:
        candidate.feed(character)
    except BrokenCall:
        return False
    if candidate.name is not None and candidate.in_arguments:
        return True
    is_other = candidate.complete or (candidate.key is not None and candidate.key not in KEYS)
    return False if is_other else None


START, MESSAGE, CONSTRAIN = "<|start|>", "<|message|>", "<|constrain|>"
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

    marks = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)  # answers and calls begin alike
    begins = Mode.HIDDEN  # the prompt has begun a header
    keeps_tokens = False
    _header = ""
    _marked = False  # until then an answer may be plain text

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

    def _character(self, character: str) -> Iterator[ParserEvent]:
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


class PlainParser(MarkupParser):
    """Everything is text, whatever it looks like."""

    marks = ()
    formatted = _answers = True

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        return iter(())


class Format(Enum):
    """The format of tool calls."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN_CODER = "qwen-coder"
    GEMMA = "gemma"
    FUNCTION_GEMMA = "function-gemma"
    HARMONY = "harmony"


# The first mark that the template contains decides; the order matters where it contains several.
FORMATS = (
    (CHANNEL, Format.HARMONY),
    (TOOL_CALLS, Format.MISTRAL),
    (FUNCTION, Format.QWEN_CODER),
    (GEMMA[0], Format.GEMMA),
    (FUNCTION_GEMMA[0], Format.FUNCTION_GEMMA),
    (OPEN, Format.HERMES),
    (PYTHON_TAG, Format.LLAMA),
    ("<|start_header_id|>", Format.LLAMA),
)
PARSERS: Mapping[Format, type[MarkupParser]] = {
    Format.HERMES: HermesParser,
    Format.LLAMA: LlamaParser,
    Format.MISTRAL: MistralParser,
    Format.QWEN_CODER: QwenCoderParser,
    Format.GEMMA: GemmaParser,
    Format.FUNCTION_GEMMA: FunctionGemmaParser,
    Format.HARMONY: HarmonyParser,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    format: Format = Format.HERMES
    thoughts: ThoughtMarks | None = None
    around: tuple[str, ...] = ()  # marks around the answer behind the thoughts
    one_call: bool = False  # the template accepts one call per message
    calls: bool = True  # tools can be shown to the model, and its calls parsed

    @property
    def keeps_tokens(self) -> bool:
        return PARSERS[self.format].keeps_tokens

    @property
    def call_marks(self) -> tuple[str, ...]:
        return PARSERS[self.format].call_marks

    @property
    def thought_and_answer(self) -> tuple[ThoughtMarks, str] | None:
        """Between what reasoning is counted and, where it has a limit, ended; and what the answer begins with."""
        if self.format is Format.HARMONY:
            return ANALYSIS, FINAL
        return (self.thoughts, "") if self.thoughts else None

    def opens_thought(self, prompt_end: str) -> bool:
        """Whether a prompt with this end leaves the model inside its reasoning."""
        return self.thoughts is not None and prompt_end.rstrip().endswith(self.thoughts.open)

    def unthought(self, text: str, *, thought: bool) -> str:
        """What follows the reasoning; `thought`: there was some, even if its end is not in the text."""
        close = self.thoughts.close if self.thoughts else None
        if close and close in text:
            return text.rpartition(close)[2].strip()
        return "" if thought else text.strip()

    def parser(self, schemas: Sequence[Mapping[str, Any]] = (), *, thinking: bool = False) -> MarkupParser:
        return PARSERS[self.format](self.thoughts, schemas, thinking=thinking, around=self.around)


HERMES = Dialect()


def choose(template: str, can: Capabilities = EVERYTHING) -> Dialect:
    """The dialect of a chat template. For one without tools it is that of Hermes, in which they are described to the
    model; but in Harmony, answers have a form of their own as well."""
    format = next((format for mark, format in FORMATS if mark in template), Format.HERMES)
    if format is Format.HARMONY:
        return Dialect(format, one_call=not can.parallel_calls, calls=can.tools)
    thoughts = next((ThoughtMarks(*marks) for marks in THOUGHTS if _tells(template, *marks)), None)
    marks = chain.from_iterable(each for each in AROUND_ANSWERS if all(mark in template for mark in each))
    around = tuple(marks) if thoughts else ()
    return Dialect(format if can.tools else Format.HERMES, thoughts, around, one_call=not can.parallel_calls)


def _tells(template: str, open: str, close: str) -> bool:
    """Whether a template tells that these marks are around reasoning: one that drops it may name the end alone."""
    return close in template and (open in template or close not in ENDS_OTHERS_TOO)
