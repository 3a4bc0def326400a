"""Results of pure tools, kept for a while: the same call of the same tenant is answered without running it again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

# Two bounds of the memory that results take: many small ones, or few large ones.
ENTRIES_MAX = 4096
CHARS_MAX = 4_000_000


class Key(NamedTuple):
    """`arguments` in canonical form: equal JSON is the same call."""

    tenant_id: UUID
    tool: str
    arguments: str


@dataclass(slots=True)
class ResultCache:
    """Least recently used results leave first. Times are monotonic nanoseconds."""

    _kept: OrderedDict[Key, tuple[str, int]] = field(default_factory=OrderedDict)
    _chars: int = 0

    def get(self, key: Key, now_ns: int) -> str | None:
        output, until_ns = self._kept.get(key, ("", 0))
        if now_ns >= until_ns:
            return None
        self._kept.move_to_end(key)
        return output

    def put(self, key: Key, output: str, *, until_ns: int) -> None:
        self._drop(key)
        self._kept[key] = (output, until_ns)
        self._chars += _size(key, output)
        while len(self._kept) > ENTRIES_MAX or self._chars > CHARS_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Key) -> None:
        if key in self._kept:
            self._chars -= _size(key, self._kept.pop(key)[0])


def _size(key: Key, output: str) -> int:
    return len(key.arguments) + len(output)
