"""The parser of a model's text: by its tool-call format, found in its chat template; for a raw prompt, none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from agents.parser.json_calls import (
    ANALYSIS,
    FINAL,
    OPEN,
    PYTHON_TAG,
    RESULT_OPEN,
    TOOL_CALLS,
    HarmonyParser,
    HermesParser,
    LlamaParser,
    MistralParser,
)
from agents.parser.markup import ParserEvent, Text, ThoughtMarks
from agents.parser.typed_calls import FunctionGemmaParser, GemmaParser, QwenCoderParser
from inference.message_fitting import EVERYTHING, Capabilities


class PlainParser:
    """Everything is text, whatever it looks like."""

    def feed(self, text: str) -> list[ParserEvent]:
        return [Text(text)] if text else []

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        return []


class Parser(Protocol):
    """Parses one answer incrementally; the joined events do not depend on how the text is chunked."""

    def feed(self, text: str) -> list[ParserEvent]: ...

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]: ...


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
    ("<|channel|>", Format.HARMONY),
    ("[TOOL_CALLS]", Format.MISTRAL),
    ("<function=", Format.QWEN_CODER),
    ("<|tool_call>", Format.GEMMA),
    ("<start_function_call>", Format.FUNCTION_GEMMA),
    ("<tool_call>", Format.HERMES),
    ("<|python_tag|>", Format.LLAMA),
    ("<|start_header_id|>", Format.LLAMA),
)
# Marks that no answer without tools contains: they open a call, or a result that the model makes up. In Harmony,
# answers and calls begin alike.
CALL_MARKS: Mapping[Format, tuple[str, ...]] = {
    Format.HERMES: (OPEN, RESULT_OPEN),
    Format.QWEN_CODER: (OPEN, RESULT_OPEN),
    Format.LLAMA: (PYTHON_TAG,),
    Format.MISTRAL: (TOOL_CALLS,),
    Format.GEMMA: (GemmaParser.open,),
    Format.FUNCTION_GEMMA: (FunctionGemmaParser.open,),
}
THOUGHTS = (
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<|channel>", "<channel|>"),
)
# Their templates add to the content of a message, so its generated tokens cannot replace the rendered content.
REWRITTEN = frozenset({Format.MISTRAL, Format.GEMMA, Format.FUNCTION_GEMMA, Format.HARMONY})


@dataclass(frozen=True, slots=True)
class Dialect:
    """`keeps_tokens`: rendering an answer as content gives exactly the tokens that were generated."""

    format: Format = Format.HERMES
    thoughts: ThoughtMarks | None = None
    one_call: bool = False  # the template accepts one call per message
    calls: bool = True  # tools can be shown to the model, and its calls parsed

    @property
    def keeps_tokens(self) -> bool:
        return self.format not in REWRITTEN

    @property
    def call_marks(self) -> tuple[str, ...]:
        return CALL_MARKS.get(self.format, ())

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

    def parser(self, schemas: Sequence[Mapping[str, Any]] = (), *, thinking: bool = False) -> Parser:
        match self.format:
            case Format.HERMES:
                return HermesParser(self.thoughts, thinking=thinking)
            case Format.LLAMA:
                return LlamaParser(self.thoughts, thinking=thinking)
            case Format.MISTRAL:
                return MistralParser(self.thoughts, thinking=thinking)
            case Format.QWEN_CODER:
                return QwenCoderParser(self.thoughts, thinking=thinking, schemas=schemas)
            case Format.GEMMA:
                return GemmaParser(self.thoughts, thinking=thinking, schemas=schemas)
            case Format.FUNCTION_GEMMA:
                return FunctionGemmaParser(self.thoughts, thinking=thinking, schemas=schemas)
            case Format.HARMONY:
                return HarmonyParser()


HERMES = Dialect()


class FormattedParser:
    """For an answer in a required format: its text is taken verbatim, even if it contains marks of calls or reasoning.
    The parser of the dialect handles what precedes the answer.
    """

    def __init__(self, dialect: Parser) -> None:
        self._dialect = dialect
        self._answering = False

    def feed(self, text: str) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        for at, character in enumerate(text):
            if self._answering:
                return [*events, Text(text[at:])]
            said = self._dialect.feed(character)
            self._answering = any(isinstance(event, Text) and event.text.strip() for event in said)
            events += said
        return events

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        return [] if self._answering else self._dialect.finish(in_call=in_call)


def choose(template: str, can: Capabilities = EVERYTHING) -> Dialect:
    """The dialect of a chat template. For one without tools it is that of Hermes, in which they are described to the
    model; but in Harmony, answers have a form of their own as well."""
    format = next((format for mark, format in FORMATS if mark in template), Format.HERMES)
    if format is Format.HARMONY:
        return Dialect(format, None, not can.parallel_calls, calls=can.tools)
    thoughts = next((marks for marks in THOUGHTS if marks.close in template), None)
    return Dialect(format if can.tools else Format.HERMES, thoughts, not can.parallel_calls)
