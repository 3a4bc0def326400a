"""The files of the disk tier: one for each saved state, and one of generated turns, which are laid out alike:

    magic 8 | checksum 32 | bytes of the head 4 | head, as JSON | arrays

The head of a state says how long its arrays are: the tokens, the state, and the checkpoints of the layers that cannot
go back by tokens, each with its logits. That of turns has all of their tokens. Numbers are little-endian. The checksum
is a BLAKE2b of everything behind it. A file is written atomically, that of a state under a random name that reveals
nothing; only its owner may read it. There is no fsync: the checksum detects what a crash tears."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from inference.generated_tokens import BYTES_MAX, GeneratedTokens
from inference.kvcache.host_cache import Kept
from inference.pages import pages

MAGIC = b"FTKV\x04\r\n\x00"  # a new layout gets a new number
CHECKSUM_BYTES = 32
KV, TEMPORARY, TURNS = ".state", ".tmp", "turns"
FILE_MODE = 0o600

_START = struct.Struct(f"<{len(MAGIC)}s{CHECKSUM_BYTES}s")
_LENGTH = struct.Struct("<I")


class UnreadableFile(Exception):
    """The file is damaged, or not a saved state."""


@dataclass(frozen=True, slots=True)
class KvFile:
    """The content of a file. `state` is empty, and there are no `checkpoints`, if only the head was read."""

    fingerprint: bytes
    scope: bytes
    tokens: NDArray[np.int32]
    state: NDArray[np.uint8]
    checkpoints: tuple[Kept, ...] = ()

    def write(self, folder: Path) -> Path:
        """Raises OSError and then leaves nothing behind."""
        path = folder / f"{secrets.token_hex(16)}{KV}"
        head = {
            "fingerprint": self.fingerprint.hex(),
            "scope": self.scope.hex(),
            "tokens": len(self.tokens),
            "state_bytes": self.state.nbytes,
            "checkpoints": [(kept.tokens, kept.state.nbytes, kept.logits_bytes) for kept in self.checkpoints],
        }
        arrays: list[NDArray[Any] | None] = [self.tokens, self.state]
        arrays += chain.from_iterable((kept.state, kept.logits) for kept in self.checkpoints)
        _write(path, head, *(array.data for array in arrays if array is not None and array.size))
        return path

    @classmethod
    def read(cls, path: Path) -> KvFile:
        """Read the whole file. Raises UnreadableFile, OSError."""
        with path.open("rb") as file:
            head, content = _read(file)
        lengths = [4 * head["tokens"], head["state_bytes"], *chain.from_iterable(at[1:] for at in head["checkpoints"])]
        tokens, state, *rest = np.split(content, np.cumsum(lengths)[:-1])
        places = zip(head["checkpoints"], rest[::2], rest[1::2], strict=True)
        checkpoints = tuple(_kept(tokens, state, logits) for (tokens, *_), state, logits in places)
        fingerprint, scope = bytes.fromhex(head["fingerprint"]), bytes.fromhex(head["scope"])
        return cls(fingerprint, scope, tokens.view("<i4"), state, checkpoints)

    @classmethod
    def peek(cls, path: Path) -> KvFile:
        """Read everything but the states, so without the checksum. Raises UnreadableFile, OSError."""
        with path.open("rb") as file:
            _, told = _start(file)
            try:
                head = orjson.loads(told)
                fingerprint, scope = bytes.fromhex(head["fingerprint"]), bytes.fromhex(head["scope"])
                behind = 4 * head["tokens"] + head["state_bytes"] + sum(sum(at[1:]) for at in head["checkpoints"])
                if os.fstat(file.fileno()).st_size != file.tell() + behind:
                    raise ValueError
                tokens = np.fromfile(file, "<i4", head["tokens"])
            except (ValueError, TypeError, KeyError):
                raise UnreadableFile(f"{path.name} is damaged or incomplete") from None
        return cls(fingerprint, scope, tokens, np.empty(0, np.uint8))


def _kept(tokens: int, state: NDArray[np.uint8], logits: NDArray[np.uint8]) -> Kept:
    """A checkpoint in memory of its own: that of the file is large, and goes with its last part."""
    own = pages(state.size)
    own[...] = state
    return Kept(tokens, own, logits.copy().view("<f4") if logits.size else None)


def write_tokens(folder: Path, turns: GeneratedTokens) -> None:
    """Raises OSError and then leaves the previous file in place."""
    _write(folder / TURNS, {key.hex(): ids for key, ids in turns.dump()})


def read_tokens(folder: Path) -> list[tuple[bytes, tuple[int, ...]]]:
    """Digests with their tokens, in the order in which they were written; empty if there is no file.

    Raises UnreadableFile, OSError.
    """
    try:
        with (folder / TURNS).open("rb") as file:
            turns, _ = _read(file)
    except FileNotFoundError:
        return []
    return [(bytes.fromhex(key), tuple(ids)) for key, ids in turns.items()]


def _write(path: Path, head: Mapping[str, Any], *arrays: memoryview) -> None:
    """Write a file atomically. Raises OSError and then leaves the previous file in place."""
    told = orjson.dumps(head)
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(told)), told, *arrays]
    temporary = path.with_name(f"{secrets.token_hex(16)}{TEMPORARY}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_START.pack(MAGIC, _checksum(*parts)))
            file.writelines(parts)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _read(file: BinaryIO) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """The head and all arrays, as bytes. Raises UnreadableFile."""
    checksum, told = _start(file)
    content = np.fromfile(file, np.uint8)
    if _checksum(_LENGTH.pack(len(told)), told, content.data) != checksum:
        raise UnreadableFile(f"{file.name} is damaged")
    head: dict[str, Any] = orjson.loads(told)
    return head, content


def _start(file: BinaryIO) -> tuple[bytes, bytes]:
    """The checksum and the head. Raises UnreadableFile."""
    start = file.read(_START.size + _LENGTH.size)
    if len(start) < _START.size + _LENGTH.size:
        raise UnreadableFile("too short")
    (magic, checksum), (length,) = _START.unpack_from(start), _LENGTH.unpack_from(start, _START.size)
    if magic != MAGIC or length > BYTES_MAX:  # turns take less here than in memory
        raise UnreadableFile("not a file of this version, or damaged")
    return checksum, file.read(length)


def _checksum(*parts: bytes | memoryview) -> bytes:
    digest = blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
