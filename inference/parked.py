"""Parked conversations: KV state that left its slot for host memory and comes back at a thousandth of its prefill.

Entries are found like slots, by the longest shared beginning, and stay until the bytes run out; then the least recently
used go, to disk where there is a tier for them. An entry serves any number of prompts: it is copied out, not moved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.commons import Commons
from inference.prefix import PrefixIndex

# Restoring moves bytes and costs some milliseconds; fewer tokens than this are as cheap to compute again.
PARK_TOKENS_MIN = 64
# The usual cap: thirty conversations of 2,000 tokens, but no more than a share of the memory that is free.
USUAL_TOKENS, USUAL_BYTES_MIN = 65_536, 512 * 2**20
FREE_SHARE = 4


def usual_bytes(token_bytes: float, available: int | None) -> int:
    """The cap where nobody names one: for a model whose tokens take so much, on a machine that has so much memory free
    (None: nobody tells)."""
    wanted = max(USUAL_BYTES_MIN, int(USUAL_TOKENS * token_bytes))
    return USUAL_BYTES_MIN if available is None else min(wanted, available // FREE_SHARE)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """`state` is what the device saved for `tokens`, as bytes."""

    tokens: tuple[int, ...]
    salt: str
    state: NDArray[np.uint8]


class Parked:
    """Pure bookkeeping with a cap in bytes; 0 parks nothing."""

    def __init__(self, bytes_max: int, commons: Commons | None = None) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # least recently used first
        self._index = PrefixIndex(commons)
        self._number = 0
        self.bytes = self.tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Parked {len(self)} conversations | {self.bytes} of {self._bytes_max} bytes>"

    def __getitem__(self, key: int) -> Entry:
        """The entry, which counts as used."""
        self._entries.move_to_end(key)
        return self._entries[key]

    @property
    def keeps(self) -> bool:
        """Whether anything is parked at all."""
        return self._bytes_max > 0

    def wants(self, tokens: Sequence[int], salt: str) -> bool:
        """Whether these tokens are worth parking: long enough, and not held already."""
        return self.keeps and len(tokens) >= PARK_TOKENS_MIN and self.match(tokens, salt)[1] < len(tokens)

    def match(self, tokens: Sequence[int], salt: str) -> tuple[int | None, int]:
        """The smallest of the entries that share the longest beginning, and its length: all of it is moved."""
        keys, length = self._index.match(tokens, salt)
        return min(keys, key=lambda key: (self._entries[key].state.nbytes, -key), default=None), length

    @property
    def entries(self) -> list[Entry]:
        """Most recently used first."""
        return list(reversed(self._entries.values()))

    def discard(self, entry: Entry) -> None:
        """Let go of an entry that turned out to be of no use, if it is still here."""
        for key in [key for key, held in self._entries.items() if held is entry]:
            self._drop(key)

    def put(self, entry: Entry) -> list[Entry]:
        """Keep a state; returns those that had to leave for it. Shorter states of the same conversation are let go:
        this one serves their prompts too."""
        if entry.state.nbytes > self._bytes_max:
            return [entry]
        for key in self._superseded(entry.tokens, entry.salt):
            self._drop(key)
        self._number += 1
        self._entries[self._number] = entry
        self._index.insert(self._number, entry.tokens, entry.salt)
        self.bytes += entry.state.nbytes
        self.tokens += len(entry.tokens)
        gone = []
        while self.bytes > self._bytes_max:
            gone.append(self._drop(next(iter(self._entries))))
        return gone

    def _superseded(self, tokens: Sequence[int], salt: str) -> list[int]:
        keys, length = self._index.match(tokens, salt)
        return [key for key in keys if len(self._entries[key].tokens) == length]

    def _drop(self, key: int) -> Entry:
        entry = self._entries.pop(key)
        self._index.remove(key)
        self.bytes -= entry.state.nbytes
        self.tokens -= len(entry.tokens)
        return entry
