"""Parked conversations: KV state moved from its slot to host memory, restored at a thousandth of the cost of prefill.

Entries are found like slots, by the longest shared prefix, and stay until the cache is full; then the least recently
used are evicted, to the disk tier if there is one. An entry serves any number of prompts: it is copied, not moved.
A prefix that entries share is stored once, as a root, for as long as one of these entries exists.

The data of one token is spread over many places of a state, layer by layer, so a prefix is cut out in regions. A tail
records them: whatever they are, putting both parts back where they came from yields the same bytes. That a state really
starts with the root is checked byte by byte.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backend import Region
from inference.kvcache.radix import RadixIndex, SharedPrefixes
from inference.pages import pages
from inference.prompt import CacheScope

# Restoring copies bytes, which takes some milliseconds; fewer tokens than this are as cheap to compute again.
PARK_TOKENS_MIN = 64
# Default capacity for a model: thirty conversations of 2,000 tokens, but at most a share of the free memory.
DEFAULT_TOKENS, DEFAULT_BYTES_MIN = 65_536, 512 * 2**20
FREE_SHARE = 4
INDEX_TOKEN_BYTES = 44  # per token, in addition to the state: a number, and pointers to it in the entry and the index

# Maps a state and a number of tokens to the regions that hold its first tokens; empty if unknown.
Regions: TypeAlias = Callable[[NDArray[np.uint8], int], Sequence[Region]]


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """The content of a state's regions for its first `tokens`."""

    tokens: int
    content: NDArray[np.uint8]

    @classmethod
    def of(cls, state: NDArray[np.uint8], regions: Sequence[Region], tokens: int) -> Root:
        return cls(tokens, _gathered([view for begins, view in _views(state, regions) if begins]))


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """`rest` is what a state of `size` bytes holds besides its root."""

    root: Root
    regions: tuple[Region, ...]
    rest: NDArray[np.uint8]
    size: int

    @classmethod
    def of(cls, state: NDArray[np.uint8], regions: Sequence[Region], root: Root) -> Tail | None:
        """Returns None if the state does not start with the root."""
        views = list(_views(state, regions))
        at = 0
        for view in (view for begins, view in views if begins):
            held = root.content[at : at + view.size]
            if held.size != view.size or not np.array_equal(view, held.reshape(view.shape)):
                return None
            at += view.size
        if not at or at != root.content.size:
            return None
        return cls(root, tuple(regions), _gathered([view for begins, view in views if not begins]), state.size)

    def whole(self) -> NDArray[np.uint8]:
        """The state, byte for byte."""
        state = np.empty(self.size, np.uint8)
        sources, at = (self.rest, self.root.content), [0, 0]
        for begins, view in _views(state, self.regions):
            view[...] = sources[begins][at[begins] : at[begins] + view.size].reshape(view.shape)
            at[begins] += view.size
        return state


def _gathered(views: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Concatenates the views. Each byte is copied only once: they are hundreds of megabytes, and the engine waits."""
    content, at = pages(sum(view.size for view in views)), 0
    for view in views:
        content[at : at + view.size].reshape(view.shape)[...] = view
        at += view.size
    return content


def _views(state: NDArray[np.uint8], regions: Sequence[Region]) -> Iterator[tuple[bool, NDArray[np.uint8]]]:
    """All bytes of a state in order, in pieces, each with whether it belongs to the prefix."""
    end = 0
    for region in regions:
        rows = state[region.start : region.end].reshape(region.rows, region.row_bytes)
        yield False, state[end : region.start]
        yield True, rows[:, : region.width]
        yield False, rows[:, region.width :]
        end = region.end
    yield False, state[end:]


def default_bytes(token_bytes: float, left: int | None) -> int:
    """Default capacity in bytes for a model with `token_bytes` per token and `left` bytes of free memory (None:
    unknown)."""
    wanted = max(DEFAULT_BYTES_MIN, int(DEFAULT_TOKENS * token_bytes))
    return DEFAULT_BYTES_MIN if left is None else min(wanted, left // FREE_SHARE)


class Kept(NamedTuple):
    """The `state` of a checkpoint behind the first `tokens` of a conversation, and the `logits` [vocabulary] there if
    they are a whole prompt."""

    tokens: int
    state: NDArray[np.uint8]
    logits: NDArray[np.float32] | None = None

    @property
    def logits_bytes(self) -> int:
        return 0 if self.logits is None else self.logits.nbytes

    @property
    def bytes(self) -> int:
        return self.state.nbytes + self.logits_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """`saved` is the state that the device saved for `tokens`, or the tail of it that follows a shared prefix.

    On disk it has its `checkpoints` with it, the shortest first; in memory they are kept apart, with a limit of their
    own.
    """

    tokens: tuple[int, ...]
    scope: CacheScope
    saved: NDArray[np.uint8] | Tail
    checkpoints: tuple[Kept, ...] = ()

    @property
    def root(self) -> Root | None:
        return self.saved.root if isinstance(self.saved, Tail) else None

    @property
    def state(self) -> NDArray[np.uint8]:
        """The whole state, reassembled if it is stored in parts."""
        return self.saved.whole() if isinstance(self.saved, Tail) else self.saved

    @property
    def size(self) -> int:
        """Bytes of the state."""
        return self.saved.size

    @property
    def written_bytes(self) -> int:
        """Bytes of the state and the checkpoints."""
        return self.size + sum(kept.state.nbytes for kept in self.checkpoints)

    @property
    def own_bytes(self) -> int:
        """Bytes that are not part of its root."""
        return self.saved.rest.nbytes if isinstance(self.saved, Tail) else self.saved.nbytes


class HostCache:
    """Pure bookkeeping with a capacity in bytes; with 0 nothing is parked."""

    def __init__(self, bytes_max: int, shared_prefixes: SharedPrefixes | None = None) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # least recently used first
        self._index = RadixIndex(shared_prefixes)
        self._uses: Counter[Root] = Counter()
        self._number = 0
        self.bytes = self.tokens = 0
        self.roots_made = 0  # how often a prefix turned out to be shared

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, key: int) -> Entry:
        """Returns the entry and marks it as used."""
        self._entries.move_to_end(key)
        return self._entries[key]

    @property
    def keeps(self) -> bool:
        """Whether anything is parked at all."""
        return self._bytes_max > 0

    @property
    def index_bytes(self) -> int:
        """Memory needed to find the entries."""
        return INDEX_TOKEN_BYTES * self.tokens

    def wants(self, tokens: Sequence[int], scope: CacheScope) -> bool:
        """Whether these tokens are worth parking: long enough, and not parked yet."""
        return self.keeps and len(tokens) >= PARK_TOKENS_MIN and self.match(tokens, scope)[1] < len(tokens)

    def longest(self, tokens: Sequence[int], scope: CacheScope) -> int:
        """Length of the longest prefix that an entry has. Any thread may call it: entries added or removed meanwhile
        make the result slightly wrong, no more than that."""
        return self._index.match(tokens, scope)[1]

    def match(self, tokens: Sequence[int], scope: CacheScope) -> tuple[int | None, int]:
        """The smallest of the entries with the longest shared prefix, since all of it is copied; and that length."""
        keys, length = self._index.match(tokens, scope)
        return min(keys, key=lambda key: (self._entries[key].size, -key), default=None), length

    @property
    def entries(self) -> list[Entry]:
        """Most recently used first."""
        return list(reversed(self._entries.values()))

    def discard(self, entry: Entry) -> None:
        """Remove an entry that turned out to be unusable, if it is still here."""
        identity = (entry.tokens, entry.scope)
        for key in [key for key, held in self._entries.items() if (held.tokens, held.scope) == identity]:
            self._drop(key)

    def put(self, entry: Entry, regions: Regions | None = None) -> list[Entry]:
        """Keep a state; returns the entries evicted for it. Shorter states of the same conversation are dropped, since
        this one serves their prompts too. With `regions`, a prefix that others share is stored once."""
        if entry.size > self._bytes_max:
            return [entry]
        if regions is not None:
            entry = self._over_root(entry, regions)
        if not isinstance(entry.saved, Tail):
            entry = replace(entry, saved=_gathered([entry.saved]))  # move it off the heap, where the device saved it
        for key in self._superseded(entry.tokens, entry.scope):
            self._drop(key)
        self._number += 1
        self._keep(self._number, entry)
        self._index.insert(self._number, entry.tokens, entry.scope)
        gone = []
        while self.bytes > self._bytes_max:
            gone.append(self._drop(next(iter(self._entries))))
        return gone

    def _superseded(self, tokens: Sequence[int], scope: CacheScope) -> list[int]:
        keys, length = self._index.match(tokens, scope)
        return [key for key in keys if len(self._entries[key].tokens) == length]

    def _over_root(self, entry: Entry, regions: Regions) -> Entry:
        """The entry without the prefix that it shares with others, if any.

        An existing root is used if it covers most of what is shared. Otherwise a new one is created, and the entries
        that share it and have no root yet are cut too.
        """
        keys, shared = self._index.match(entry.tokens, entry.scope)
        if shared < PARK_TOKENS_MIN:
            return entry
        roots = [root for key in keys if (root := self._entries[key].root) and root.tokens <= shared]
        root = max(roots, key=lambda root: root.tokens, default=None)
        others = [key for key in keys if len(self._entries[key].tokens) > shared]
        if others and (root is None or 2 * root.tokens < shared):
            places = regions(entry.state, shared)
            root = Root.of(entry.state, places, shared) if places else None
            self.roots_made += root is not None
            for key in others:
                if root is not None and self._entries[key].root is None:
                    self._keep(key, _cut(self._entries[key], root, regions))
        return _cut(entry, root, regions) if root is not None else entry

    def _keep(self, key: int, entry: Entry) -> None:
        """Replaces what was stored under the key."""
        if key in self._entries:
            self._forget(self._entries[key])
        self._entries[key] = entry
        self.bytes += entry.own_bytes
        self.tokens += len(entry.tokens)
        if entry.root is not None:
            self.bytes += 0 if self._uses[entry.root] else entry.root.content.nbytes
            self._uses[entry.root] += 1

    def _drop(self, key: int) -> Entry:
        entry = self._entries.pop(key)
        self._index.remove(key)
        self._forget(entry)
        return entry

    def _forget(self, entry: Entry) -> None:
        self.bytes -= entry.own_bytes
        self.tokens -= len(entry.tokens)
        if entry.root is not None:
            self._uses[entry.root] -= 1
            if not self._uses[entry.root]:
                self.bytes -= entry.root.content.nbytes
                del self._uses[entry.root]


def _cut(entry: Entry, root: Root, regions: Regions) -> Entry:
    """The entry as the tail behind that root; unchanged if it does not start with exactly these bytes."""
    state = entry.state
    tail = Tail.of(state, regions(state, root.tokens), root)
    return entry if tail is None else replace(entry, saved=tail)
