"""Responses that are stored nowhere else, kept by one connection so that its next request can continue them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.message import Compaction, FileSearchCall, FunctionCall, Item
from worker.wire import limits

RESPONSES_MAX = 16  # a client continues the newest one, or one that it branches from
CHARS_MAX = limits.TEXT_CHARS_MAX  # of all of them: more than any supported context holds


@dataclass(slots=True)
class Memory:
    """Maps an id to everything up to and including a response, oldest first. Evicts the least recently used."""

    _kept: OrderedDict[str, tuple[Item, ...]] = field(default_factory=OrderedDict)
    _chars: int = 0

    def keep(self, response_id: str, items: Sequence[Item]) -> None:
        self.take(response_id)
        self._kept[response_id] = tuple(items)
        self._chars += _chars(items)
        while len(self._kept) > RESPONSES_MAX or self._chars > CHARS_MAX:
            self.take(next(iter(self._kept)))

    def take(self, response_id: str) -> tuple[Item, ...] | None:
        """Remove and return what is kept under this id; None if there is nothing."""
        items = self._kept.pop(response_id, None)
        self._chars -= _chars(items or ())
        return items


def _chars(items: Sequence[Item]) -> int:
    return sum(map(_size, items))


def _size(item: Item) -> int:
    match item:
        case FunctionCall():
            return len(item.arguments)
        case Compaction():
            return 2 * len(item.sealed)  # and its content
        case FileSearchCall():
            return sum(len(result.text) for result in item.results)
    return len(getattr(item, "text", "") or getattr(item, "output", ""))
