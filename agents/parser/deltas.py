"""The events of a tool-call parser, in the order of the text. `index` counts the calls of one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(slots=True)  # not frozen: one is created per token
class Text:
    """Text for the user: never a piece of a tool call or of its markup."""

    text: str


@dataclass(slots=True)  # not frozen: one is created per token
class Thought:
    """Reasoning of the model before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    index: int
    name: str


@dataclass(slots=True)  # not frozen: one is created per token
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


ParserEvent: TypeAlias = Text | Thought | CallStarted | CallArguments | CallFinished | CallBroken
