"""One saved state as a file: a header, the tokens, the state.

    magic 8 | fingerprint 32 | digest of the scope 16 | number of tokens 4 | bytes of state 8 | checksum 32
    tokens, 4 bytes each | state

Numbers are little-endian. The checksum is a BLAKE2b of everything else. A file is written atomically, under a random
name that reveals nothing; only its owner may read it. There is no fsync: the checksum detects what a crash tears.
"""

from __future__ import annotations

import os
import secrets
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAGIC = b"FTKV\x01\r\n\x00"  # a new layout gets a new number
FINGERPRINT_BYTES = CHECKSUM_BYTES = 32
SCOPE_BYTES = 16
TOKENS_MAX = 2**24  # a header with more is damaged
KV, ROOT, TEMPORARY = ".kv", ".root", ".tmp"
FILE_MODE = 0o600

_HEADER = struct.Struct(f"<{len(MAGIC)}s{FINGERPRINT_BYTES}s{SCOPE_BYTES}sIQ{CHECKSUM_BYTES}s")
_UNCHECKED = _HEADER.size - CHECKSUM_BYTES


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
    """The content of a file. `state` is empty if only the header was read."""

    fingerprint: bytes
    scope: bytes
    tokens: NDArray[np.int32]
    state: NDArray[np.uint8]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return _HEADER.size + self.tokens.nbytes + self.state.nbytes

    def write(self, folder: Path, suffix: str) -> str:
        """Returns the name. Raises OSError and then leaves nothing behind."""
        name = f"{secrets.token_hex(16)}{suffix}"
        start = struct.pack(
            f"<{len(MAGIC)}s{FINGERPRINT_BYTES}s{SCOPE_BYTES}sIQ",
            MAGIC,
            self.fingerprint,
            self.scope,
            len(self.tokens),
            self.state.nbytes,
        )
        checksum = _checksum(start, self.tokens, self.state)
        write_whole(folder / name, start, checksum, self.tokens.data, self.state.data)
        return name

    @classmethod
    def read(cls, path: Path) -> KvFile:
        """Read the whole file. Raises UnreadableFile, OSError."""
        content = np.fromfile(path, np.uint8)
        start = content[:_UNCHECKED].tobytes()
        head = _parse(content[: _HEADER.size].tobytes(), len(content))
        middle = _HEADER.size + 4 * head.tokens
        tokens, state = content[_HEADER.size : middle].view("<i4"), content[middle:]
        if _checksum(start, tokens, state) != head.checksum:
            raise UnreadableFile(f"{path.name} is damaged")
        return cls(head.fingerprint, head.scope, tokens, state)

    @classmethod
    def peek(cls, path: Path) -> KvFile:
        """Read everything but the state, so without the checksum. Raises UnreadableFile, OSError."""
        with path.open("rb") as file:
            head = _parse(file.read(_HEADER.size), os.fstat(file.fileno()).st_size)
            tokens = np.frombuffer(file.read(4 * head.tokens), "<i4")
        return cls(head.fingerprint, head.scope, tokens, np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True)
class _Head:
    fingerprint: bytes
    scope: bytes
    tokens: int
    checksum: bytes


def _parse(header: bytes, size: int) -> _Head:
    if len(header) < _HEADER.size:
        raise UnreadableFile("too short")
    magic, fingerprint, scope, tokens, state_bytes, checksum = _HEADER.unpack(header)
    if magic != MAGIC or tokens > TOKENS_MAX or size != _HEADER.size + 4 * tokens + state_bytes:
        raise UnreadableFile("not a saved state, or incomplete")
    return _Head(fingerprint, scope, tokens, checksum)


def _checksum(start: bytes, tokens: NDArray[np.int32], state: NDArray[np.uint8]) -> bytes:
    digest = blake2b(start, digest_size=CHECKSUM_BYTES)
    digest.update(tokens.data)
    digest.update(state.data)
    return digest.digest()
