"""Which dialect a model writes, told from the text of its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from agents.parser.deltas import ParserEvent
from agents.parser.gemma import FunctionGemmaParser, GemmaParser
from agents.parser.harmony import HarmonyParser
from agents.parser.hermes import HermesParser
from agents.parser.llama import LlamaParser
from agents.parser.markup import ThoughtMarks
from agents.parser.mistral import MistralParser
from agents.parser.qwen_coder import QwenCoderParser


class Parser(Protocol):
    """Reads one answer: text goes in, cut anywhere, and the same events come out for every way of cutting it."""

    def feed(self, text: str) -> list[ParserEvent]: ...

    def finish(self) -> list[ParserEvent]: ...


class Format(Enum):
    """How calls are written."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN_CODER = "qwen-coder"
    GEMMA = "gemma"
    FUNCTION_GEMMA = "function-gemma"
    HARMONY = "harmony"


# The first mark that the template holds decides; the order matters where a template holds several.
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
THOUGHTS = (
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<|channel>", "<channel|>"),
)
# Their templates make a whole message of more than its content, so its tokens cannot stand for the content alone.
REWRITTEN = frozenset({Format.MISTRAL, Format.GEMMA, Format.FUNCTION_GEMMA, Format.HARMONY})
SINGLE_CALLS = "only supports single tool-calls at once"  # what Llama's templates say before they refuse two


@dataclass(frozen=True, slots=True)
class Dialect:
    """`keeps_tokens`: rendering an answer's own tokens as its content gives what was generated."""

    format: Format = Format.HERMES
    thoughts: ThoughtMarks | None = None
    one_call: bool = False  # the template takes one call a message

    @property
    def keeps_tokens(self) -> bool:
        return self.format not in REWRITTEN

    def opens_thought(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so leaves the model in the middle of a thought."""
        return self.thoughts is not None and prompt_end.rstrip().endswith(self.thoughts.open)

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
                return GemmaParser(self.thoughts, thinking=thinking)
            case Format.FUNCTION_GEMMA:
                return FunctionGemmaParser(self.thoughts, thinking=thinking)
            case Format.HARMONY:
                return HarmonyParser()


def choose(template: str) -> Dialect:
    """The dialect of a chat template; Hermes, the most common, for one that shows no calls."""
    format = next((format for mark, format in FORMATS if mark in template), Format.HERMES)
    thoughts = next((marks for marks in THOUGHTS if marks.close in template), None)
    return Dialect(format, None if format is Format.HARMONY else thoughts, SINGLE_CALLS in template)
