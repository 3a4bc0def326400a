"""The index of the disk tier: which saved states are on disk, found by prefix, bounded in bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from inference.lru_cache import LruCache
from inference.prompt import CacheScope

BLOCK = 64  # tokens: fewer are as cheap to compute as to read
DIGEST_BYTES = 16
_BLOCK_BYTES = 4 * BLOCK


def digest_of(scope: CacheScope, fingerprint: bytes) -> bytes:
    """Identifies a scope in a file. Keyed by the fingerprint: the same tenant gets a different digest per model."""
    kind = b"exact" if scope.exact else b""
    return blake2b(scope.tenant.encode(), digest_size=DIGEST_BYTES, key=fingerprint, person=kind).digest()


def chain(tokens: Sequence[int], scope: bytes) -> tuple[bytes, ...]:
    """One digest per whole block, over everything before it; `scope` is a `digest_of`.

    They are the keys by which files are found. A tree of tokens, as in the memory tiers, would cost a hundred bytes per
    token on disk; this costs about as much per block. The chain starts with a digest of the scope, so one tenant's text
    never matches another's.
    """
    packed = np.asarray(tokens, "<i4").tobytes()
    digests, last = [], scope
    for end in range(_BLOCK_BYTES, len(packed) + 1, _BLOCK_BYTES):
        last = blake2b(last + packed[end - _BLOCK_BYTES : end], digest_size=DIGEST_BYTES).digest()
        digests.append(last)
    return tuple(digests)


FILES_MAX = 10_000  # usually of a few megabytes; each costs a name, blocks and look-ups


@dataclass(frozen=True, slots=True)
class IndexedState:
    """A file. Without blocks it belongs to another model: it is never matched and only ages."""

    name: str
    size: int  # bytes
    blocks: tuple[bytes, ...]


class DiskIndex:
    """It returns names; the owner of the folder deletes the files."""

    def __init__(self, bytes_max: int) -> None:
        self._files: LruCache[str, IndexedState] = LruCache(bytes_max, lambda _, file: file.size, self._forget)
        self._by_block: dict[bytes, dict[str, IndexedState]] = {}
        self._gone: list[str] = []  # since the beginning of a call

    def __len__(self) -> int:
        return len(self._files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._files.size

    def match(self, blocks: Sequence[bytes]) -> tuple[IndexedState | None, int]:
        """The smallest of the files with the longest shared prefix, and its length in tokens."""
        deepest = 0
        while deepest < len(blocks) and blocks[deepest] in self._by_block:
            deepest += 1
        if not deepest:
            return None, 0
        return min(self._by_block[blocks[deepest - 1]].values(), key=lambda file: file.size), deepest * BLOCK

    def holds(self, blocks: Sequence[bytes]) -> bool:
        """Whether a file has all these blocks already."""
        return bool(blocks) and blocks[-1] in self._by_block

    def use(self, name: str) -> None:
        self._files.get(name)

    def add(self, file: IndexedState) -> list[str]:
        """Add a file; returns the names of those to delete: files that the new one covers, except for tokens of a last
        partial block, then the least recently used. It may be too large itself."""
        self._gone = []
        blocks = set(file.blocks)
        others = [other for block in blocks for other in self._by_block.get(block, {}).values()]
        for name in {other.name for other in others if other.blocks[-1] in blocks}:
            self.remove(name)
        self._files.put(file.name, file)
        if file.name not in self._files:
            return [*self._gone, file.name]
        for block in file.blocks:
            self._by_block.setdefault(block, {})[file.name] = file
        while len(self) > FILES_MAX:
            self._drop_oldest()
        return self._gone

    def shrink(self, bytes_: int) -> list[str]:
        """Drop the least recently used files, at least so many bytes of them if there are; returns their names."""
        self._gone = []
        left = self.size - bytes_
        while self.size > max(left, 0):
            self._drop_oldest()
        return self._gone

    def remove(self, name: str) -> None:
        """Remove a file; does nothing if it is absent."""
        self._files.pop(name)

    def _drop_oldest(self) -> None:
        self._files.pop(next(iter(self._files)))

    def _forget(self, name: str, file: IndexedState) -> None:
        self._gone.append(name)
        for block in file.blocks:
            if names := self._by_block.get(block):
                names.pop(name, None)
                if not names:
                    del self._by_block[block]
