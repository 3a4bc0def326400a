"""The file of generated turns beside the saved states, which hardly ever match prompts that are tokenised anew.

    magic 8 | checksum 32 | number of turns 4
    digests of messages, 16 bytes each | numbers of tokens, 4 bytes each | tokens, 4 bytes each

Numbers are little-endian. The checksum is a BLAKE2b of everything behind it. The file is written atomically, and only
its owner may read it.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np

from inference.generated_tokens import DIGEST_BYTES, TOKENS_MAX, TURNS_MAX, GeneratedTokens
from inference.kvcache.disk.file import CHECKSUM_BYTES, UnreadableFile, write_whole

NAME = "turns"
MAGIC = b"FTTURN\x01\n"  # a new layout gets a new number

_HEADER = struct.Struct(f"<{len(MAGIC)}s{CHECKSUM_BYTES}s")
_COUNT = struct.Struct("<I")
_BYTES_MAX = _HEADER.size + _COUNT.size + TURNS_MAX * (DIGEST_BYTES + 4) + TOKENS_MAX * 4


def write_tokens(folder: Path, turns: GeneratedTokens) -> None:
    """Raises OSError and then leaves the previous file in place."""
    kept = turns.dump()
    counts = np.array([len(ids) for _, ids in kept], "<u4")
    tokens = np.fromiter(chain.from_iterable(ids for _, ids in kept), "<i4", int(counts.sum()))
    content = _COUNT.pack(len(kept)) + b"".join(key for key, _ in kept) + counts.tobytes() + tokens.tobytes()
    write_whole(folder / NAME, _HEADER.pack(MAGIC, _checksum(content)), content)


def read_tokens(folder: Path) -> list[tuple[bytes, tuple[int, ...]]]:
    """Digests with their tokens, in the order in which they were written; empty if there is no file.

    Raises UnreadableFile, OSError.
    """
    path = folder / NAME
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise UnreadableFile("more turns than are ever written")
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(raw) < _HEADER.size + _COUNT.size:
        raise UnreadableFile("too short")
    (magic, checksum), content = _HEADER.unpack_from(raw), raw[_HEADER.size :]
    if magic != MAGIC or checksum != _checksum(content):
        raise UnreadableFile("not a file of turns, or damaged")
    (turns,) = _COUNT.unpack_from(content)
    counts_at = _COUNT.size + turns * DIGEST_BYTES
    counts = np.frombuffer(content, "<u4", turns, counts_at)
    tokens = np.frombuffer(content, "<i4", offset=counts_at + 4 * turns).tolist()
    ends = np.cumsum(counts, dtype=np.int64).tolist()
    keys = (content[at : at + DIGEST_BYTES] for at in range(_COUNT.size, counts_at, DIGEST_BYTES))
    return [(key, tuple(tokens[start:end])) for key, start, end in zip(keys, [0, *ends[:-1]], ends, strict=True)]


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=CHECKSUM_BYTES).digest()
