"""The closed set of events of a turn and the sink that takes them. The edge maps each to one or a few wire events.

Order of a turn:
  TurnStarted, [ItemStarted, ItemFinished]* for ToolListing items, [RetrievalStarted, SourcesFound], Queued*,
  then per output item, `output_index` counting 0, 1, 2 … in order of ItemStarted:
    ItemStarted, (TextDelta | ReasoningDelta | ArgumentsDelta)*, ItemFinished
  and exactly one TurnFinished at the end, also after errors and limits.
RetrievalStarted and SourcesFound belong to the FileSearchCall item of their `output_index`.
ItemFinished of a Message carries its citations. An MCP call has a second ItemFinished, which carries its result, before
those that follow its step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Literal, Protocol, TypeAlias

from agents.message import (
    Compaction,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    ToolListing,
    answered_calls,
)
from inference.frozen import dataclass
from inference.generation import Likelihoods, Predicted, Spent, TokenLogprob
from retrieval.passage import Passage

TurnStatus: TypeAlias = Literal["completed", "incomplete", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts summed over all model calls of the turn."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of the output
    spent: Spent = field(default_factory=Spent)  # of the engine's time
    image_tokens: int = 0  # of the input
    predicted: Predicted = field(default_factory=Predicted)  # drafted from the request's prediction

    @property
    def image_details(self) -> dict[str, int]:
        """Where there are images, the tokens that stand for them."""
        return {"image_tokens": self.image_tokens} if self.image_tokens else {}

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.spent + other.spent,
            self.image_tokens + other.image_tokens,
            self.predicted + other.predicted,
        )


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """All checks that can refuse the turn have passed: from here on errors are part of the turn."""

    prompt_tokens: int = 0  # of the first step


@dataclass(frozen=True, slots=True)
class Queued:
    """The position of the turn in the model's queue, 1 being the next: for clients that ask for it. `expected_ms` until
    its first token, if known. At 0 its prompt is being read: so many tokens of it are."""

    position: int
    expected_ms: float | None = None
    read_tokens: int | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RetrievalStarted:
    output_index: int
    item: FileSearchCall  # status in_progress


@dataclass(frozen=True, slots=True)
class SourcesFound:
    """Passages chosen for the prompt, known before the first token; passages[i] is cited as [i + 1]."""

    output_index: int
    item: FileSearchCall  # status completed
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class ItemStarted:
    output_index: int
    item: Message | Reasoning | FunctionCall | FunctionCallOutput | ToolListing | Compaction  # in_progress, texts empty


@dataclass(frozen=True, slots=True)
class TextDelta:
    output_index: int
    item_id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    output_index: int
    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """Concatenated deltas of an item equal the arguments of its ItemFinished."""

    output_index: int
    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ItemFinished:
    output_index: int
    item: Item


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """The tokens of a raw prompt, and the log probabilities of all but the first, each with the likeliest there."""

    ids: Sequence[int]
    scores: Sequence[Likelihoods]


STEERED = "steered"  # another turn goes on with what was said meanwhile


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """`cut` says what ended an incomplete turn: `context`, STEERED, or a limit as `owner.tokens` or `owner.seconds`
    (see `turn.Limits`). None: the number of tokens that the request asked for."""

    status: TurnStatus
    output: tuple[Item, ...]
    usage: Usage
    cut: str | None = None
    budget: str | None = None  # steps | calls | wall_clock | tokens | cost | repeated_call: concluded gracefully
    error_code: str | None = None
    error_message: str | None = None
    stop_string: str | None = None  # that ended the answer
    prompt: ScoredPrompt | None = None  # if the turn asks for it
    remembered: tuple[tuple[bytes, tuple[int, ...]], ...] = ()  # exact tokens of its turns, by their digests

    @property
    def failure(self) -> dict[str, str]:
        """Code and message of the error of one that failed."""
        message = self.error_message or "The answer could not be completed. Please try again."
        return {"code": self.error_code or "server_error", "message": message}

    def open_calls(self, functions: Collection[str]) -> list[FunctionCall]:
        """Calls of these functions that wait for the caller."""
        answered = answered_calls(self.output)
        return [
            item
            for item in self.output
            if isinstance(item, FunctionCall) and item.name in functions and item.call_id not in answered
        ]


Event: TypeAlias = (
    TurnStarted
    | Queued
    | RetrievalStarted
    | SourcesFound
    | ItemStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | ItemFinished
    | TurnFinished
)

TOKENS = (TextDelta, ReasoningDelta, ArgumentsDelta)  # the events that carry generated text


class EventSink(Protocol):
    """Takes the events of one turn, in the order stated above."""

    async def open(self) -> None:
        """Called once, after every check that can refuse the turn, when the first prompt is submitted. An exception
        refuses the turn.
        """

    def write(self, events: Sequence[Event]) -> None:
        """Take events that happened together, to be sent together. Called in the callback that delivers a step's
        tokens, so it never waits.
        """

    async def drain(self) -> None:
        """Return when the client has caught up enough: back-pressure for the turn, between two steps."""


@dataclass(slots=True)
class EventList:
    """A sink that keeps all events."""

    events: list[Event] = field(default_factory=list)

    async def open(self) -> None:
        pass

    def write(self, events: Sequence[Event]) -> None:
        self.events += events

    async def drain(self) -> None:
        pass
