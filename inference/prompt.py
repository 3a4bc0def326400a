"""A prompt on its way to the model: messages, the pieces that the chat template renders, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """The role of a piece of the prompt, in the usual order."""

    SYSTEM = "system"
    TOOLS = "tools"  # their schemas
    HISTORY = "history"  # messages before the question
    PASSAGES = "passages"
    QUESTION = "question"  # the newest user message
    RESULTS = "results"  # calls and results of the current turn so far


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of consecutive prompt tokens that belong to one part."""

    part: Part
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the chat template expects it; `arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message as the chat template sees it. Content is untrusted text: it never becomes special tokens.

    Its first `passage_chars` characters are retrieved passages, not words of the role.
    """

    role: str  # system | user | assistant | tool
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""  # precedes the content; the template decides whether the model sees it again
    passage_chars: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the rendered prompt. Special tokens are recognised only if `trusted` is true.

    `ids`, if present, are the exact tokens of this piece (a turn that this model generated). The first `passage_chars`
    characters belong to the part PASSAGES, the others to `part`.
    """

    text: str
    trusted: bool
    ids: tuple[int, ...] | None = None
    part: Part = Part.HISTORY
    passage_chars: int = 0


class PromptTokens(list[int]):
    """The ids of a prompt. Other prompts may begin with the tokens before one of its `boundaries`, and go on from
    there: behind the instructions and the tools, before and behind the question with its passages, at each turn."""

    def __init__(self, ids: Iterable[int] = (), boundaries: Sequence[int] = ()) -> None:
        super().__init__(ids)
        self.boundaries = boundaries

    @staticmethod
    def boundaries_of(prompt: Sequence[int]) -> Sequence[int]:
        """None are known of a prompt that was not made from segments."""
        return prompt.boundaries if isinstance(prompt, PromptTokens) else ()


class Rendered(list[Segment]):
    """A rendered prompt. `rewrites` names what was changed for a chat template that does not take all messages."""

    def __init__(self, segments: Iterable[Segment] = (), rewrites: Sequence[str] = ()) -> None:
        super().__init__(segments)
        self.rewrites = rewrites
