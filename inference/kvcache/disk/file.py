"""The files of the disk tier: one for each saved state, and one of generated turns.

A saved state is a header, the tokens, the state, and checkpoints of the layers that cannot go back by tokens:

    magic 8 | fingerprint 32 | digest of the scope 16 | number of tokens 4 | bytes of state 8
    number of checkpoints 4 | bytes of checkpoints 8 | checksum 32
    tokens, 4 bytes each | state | tokens 4, bytes 8, of which logits 4, of each checkpoint | checkpoints

Numbers are little-endian. The checksum is a BLAKE2b of everything else. A file is written atomically, that of a state
under a random name that reveals nothing; only its owner may read it. There is no fsync: the checksum detects what a
crash tears."""

from __future__ import annotations

import os
import secrets
import struct
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from inference.generated_tokens import BYTES_MAX, GeneratedTokens
from inference.kvcache.host_cache import Kept
from inference.pages import pages

MAGIC = b"FTKV\x03\r\n\x00"  # a new layout gets a new number
FINGERPRINT_BYTES = CHECKSUM_BYTES = 32
SCOPE_BYTES = 16
TOKENS_MAX = 2**24  # a header with more is damaged
KV, TEMPORARY = ".kv", ".tmp"
FILE_MODE = 0o600

_START = struct.Struct(f"<{len(MAGIC)}s{FINGERPRINT_BYTES}s{SCOPE_BYTES}sIQIQ")
_HEADER_BYTES = _START.size + CHECKSUM_BYTES
_PLACE = np.dtype([("tokens", "<u4"), ("bytes", "<u8"), ("logits", "<u4")])


class UnreadableFile(Exception):
    """The file is damaged, or not a saved state."""


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file atomically. Raises OSError and then leaves the previous file in place."""
    temporary = path.with_name(f"{secrets.token_hex(16)}{TEMPORARY}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class KvFile:
    """The content of a file. `state` is empty, and there are no `checkpoints`, if only the header was read."""

    fingerprint: bytes
    scope: bytes
    tokens: NDArray[np.int32]
    state: NDArray[np.uint8]
    checkpoints: tuple[Kept, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return _HEADER_BYTES + self.tokens.nbytes + self.state.nbytes + self._checkpoint_bytes

    @property
    def _checkpoint_bytes(self) -> int:
        return sum(_PLACE.itemsize + kept.bytes for kept in self.checkpoints)

    def write(self, folder: Path) -> str:
        """Returns the name. Raises OSError and then leaves nothing behind."""
        name = f"{secrets.token_hex(16)}{KV}"
        start = _START.pack(
            MAGIC,
            self.fingerprint,
            self.scope,
            len(self.tokens),
            self.state.nbytes,
            len(self.checkpoints),
            self._checkpoint_bytes,
        )
        places = np.array([(kept.tokens, kept.bytes, kept.logits_bytes) for kept in self.checkpoints], _PLACE)
        arrays: list[NDArray[Any] | None] = [self.tokens, self.state, places.view(np.uint8)]
        arrays += chain.from_iterable((kept.state, kept.logits) for kept in self.checkpoints)
        parts = [array.data for array in arrays if array is not None and array.size]
        write_whole(folder / name, start, _checksum(start, *parts), *parts)
        return name

    @classmethod
    def read(cls, path: Path) -> KvFile:
        """Read the whole file. Raises UnreadableFile, OSError."""
        content = np.fromfile(path, np.uint8)
        head = _parse(content[:_HEADER_BYTES].tobytes(), len(content))
        if _checksum(content[: _START.size].data, content[_HEADER_BYTES:].data) != head.checksum:
            raise UnreadableFile(f"{path.name} is damaged")
        tokens, state, places, states = np.split(content[_HEADER_BYTES:], head.ends)
        held = places.view(_PLACE)
        each = np.split(states, np.cumsum(held["bytes"][:-1], dtype=np.int64)) if len(held) else ()
        checkpoints = tuple(map(_kept, held, each))
        return cls(head.fingerprint, head.scope, tokens.view("<i4"), state, checkpoints)

    @classmethod
    def peek(cls, path: Path) -> KvFile:
        """Read everything but the states, so without the checksum. Raises UnreadableFile, OSError."""
        with path.open("rb") as file:
            head = _parse(file.read(_HEADER_BYTES), os.fstat(file.fileno()).st_size)
            tokens = np.frombuffer(file.read(4 * head.tokens), "<i4")
        return cls(head.fingerprint, head.scope, tokens, np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True)
class _Head:
    fingerprint: bytes
    scope: bytes
    tokens: int
    state_bytes: int
    checkpoints: int
    checksum: bytes

    @property
    def ends(self) -> list[int]:
        """Where the tokens, the state, and the places of the checkpoints end, behind the header."""
        state = 4 * self.tokens + self.state_bytes
        return [4 * self.tokens, state, state + self.checkpoints * _PLACE.itemsize]


def _parse(header: bytes, size: int) -> _Head:
    if len(header) < _HEADER_BYTES:
        raise UnreadableFile("too short")
    magic, fingerprint, scope, tokens, state_bytes, count, kept_bytes = _START.unpack_from(header)
    whole = _HEADER_BYTES + 4 * tokens + state_bytes + kept_bytes
    if magic != MAGIC or tokens > TOKENS_MAX or size != whole or kept_bytes < count * _PLACE.itemsize:
        raise UnreadableFile("not a saved state of this version, or incomplete")
    return _Head(fingerprint, scope, tokens, state_bytes, count, header[_START.size :])


def _kept(place: np.void, content: NDArray[np.uint8]) -> Kept:
    """A checkpoint in memory of its own: that of the file is large, and goes with its last part."""
    held, logits = np.split(content, [len(content) - int(place["logits"])])
    state = pages(held.size)
    state[...] = held
    return Kept(int(place["tokens"]), state, logits.copy().view("<f4") if logits.size else None)


def _checksum(*parts: bytes | memoryview) -> bytes:
    digest = blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


# The file of generated turns beside the saved states, which hardly ever match prompts that are tokenised anew:
#
#     magic 8 | checksum 32 | JSON of the tokens by the digests of messages, which are hexadecimal
TURNS = "turns"
TURNS_MAGIC = b"FTTURN\x02\n"  # a new layout gets a new number

_TURNS_HEADER = struct.Struct(f"<{len(TURNS_MAGIC)}s{CHECKSUM_BYTES}s")


def write_tokens(folder: Path, turns: GeneratedTokens) -> None:
    """Raises OSError and then leaves the previous file in place."""
    content = orjson.dumps({key.hex(): ids for key, ids in turns.dump()})
    write_whole(folder / TURNS, _TURNS_HEADER.pack(TURNS_MAGIC, _checksum(content)), content)


def read_tokens(folder: Path) -> list[tuple[bytes, tuple[int, ...]]]:
    """Digests with their tokens, in the order in which they were written; empty if there is no file.

    Raises UnreadableFile, OSError.
    """
    path = folder / TURNS
    try:
        if path.stat().st_size > BYTES_MAX:  # turns take less here than in memory
            raise UnreadableFile("more turns than are ever written")
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(raw) < _TURNS_HEADER.size:
        raise UnreadableFile("too short")
    (magic, checksum), content = _TURNS_HEADER.unpack_from(raw), raw[_TURNS_HEADER.size :]
    if magic != TURNS_MAGIC or checksum != _checksum(content):
        raise UnreadableFile("not a file of turns of this version, or damaged")
    return [(bytes.fromhex(key), tuple(ids)) for key, ids in orjson.loads(content).items()]
