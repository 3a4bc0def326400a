"""What somebody asks of a tool: the words, the call they should become, what comes back, and how that is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from inference.prompt import ToolCall
from training.conversations.names import Names


@dataclass(frozen=True, slots=True)
class Request:
    """`answer` is a sentence without its full stop, made of nothing but `result` and the call."""

    ask: str
    call: ToolCall
    result: str
    answer: str


@dataclass(frozen=True, slots=True)
class Several:
    """One question that takes several calls of the same tool: the time in three cities."""

    ask: str
    requests: tuple[Request, ...]


class Tool(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Mapping[str, Any]: ...

    def request(self, names: Names) -> Request: ...

    def several(self, names: Names, count: int) -> Several | None:
        """None where the tool is not one that is asked for in a list."""
        ...


_POLITE = (
    "please {}",
    "can you {}?",
    "could you {}?",
    "could you please {}?",
    "I need you to {}.",
    "hey, {}",
    "now {}",
    "would you {}?",
    "ok, {}",
    "{} please",
)
_POLITE_QUESTION = ("please tell me: {}?", "hey, {}?", "now, {}?", "tell me, {}?", "ok, {}?", "{} please?")
_QUESTIONS = ("what", "what's", "how", "is", "who", "when", "where", "which", "does", "why")


def said(names: Names, ask: str) -> str:
    """The request as somebody types it: polite or not, capital or not, with a mark at its end or none."""
    question = ask.split()[0].lower() in _QUESTIONS
    if names.chance(0.25):
        text = names.pick(_POLITE_QUESTION if question else _POLITE).format(ask)
    else:
        text = ask + (names.pick("????. ").strip() if question else names.pick("....! ").strip())
    return text[0].upper() + text[1:] if names.chance(0.85) else text


def listed(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
