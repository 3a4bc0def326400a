"""The index of the disk tier: which saved states are on disk, found by prefix, bounded in bytes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

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
        self._bytes_max = bytes_max
        self._files: OrderedDict[str, IndexedState] = OrderedDict()  # least recently used first
        self._by_block: dict[bytes, set[str]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<DiskIndex {len(self)} files | {self.size} of {self._bytes_max} bytes>"

    def match(self, blocks: Sequence[bytes]) -> tuple[IndexedState | None, int]:
        """The smallest of the files with the longest shared prefix, and its length in tokens."""
        deepest = 0
        while deepest < len(blocks) and blocks[deepest] in self._by_block:
            deepest += 1
        if not deepest:
            return None, 0
        files = (self._files[name] for name in self._by_block[blocks[deepest - 1]])
        return min(files, key=lambda file: file.size), deepest * BLOCK

    def holds(self, blocks: Sequence[bytes]) -> bool:
        """Whether a file has all these blocks already."""
        return bool(blocks) and blocks[-1] in self._by_block

    def use(self, name: str) -> None:
        if name in self._files:
            self._files.move_to_end(name)

    def add(self, file: IndexedState, *, oldest: bool = False) -> list[str]:
        """Add a file; returns the names of those to delete: files that the new one covers, except for tokens of a last
        partial block, then the least recently used."""
        gone = self._superseded(file)
        for name in gone:
            self.remove(name)
        self._files[file.name] = file
        self._files.move_to_end(file.name, last=not oldest)
        self.size += file.size
        for block in file.blocks:
            self._by_block.setdefault(block, set()).add(file.name)
        return gone + self._drop_oldest(self._bytes_max)

    def shrink(self, bytes_: int) -> list[str]:
        """Drop the least recently used files, at least so many bytes of them if there are; returns their names."""
        return self._drop_oldest(max(self.size - bytes_, 0))

    def remove(self, name: str) -> None:
        """Remove a file; does nothing if it is absent."""
        file = self._files.pop(name, None)
        if file is None:
            return
        self.size -= file.size
        for block in file.blocks:
            names = self._by_block[block]
            names.discard(name)
            if not names:
                del self._by_block[block]

    def _superseded(self, file: IndexedState) -> list[str]:
        blocks = set(file.blocks)
        names = {name for block in blocks for name in self._by_block.get(block, ())}
        return [name for name in names if self._files[name].blocks[-1] in blocks]

    def _drop_oldest(self, bytes_max: int) -> list[str]:
        gone = []
        while self.size > bytes_max or len(self._files) > FILES_MAX:
            oldest = next(iter(self._files))
            gone.append(oldest)
            self.remove(oldest)
        return gone
