"""Digests of token blocks, each over everything before it: the keys by which files are found.

A tree of tokens, as in the memory tiers, would cost a hundred bytes per token on disk; this costs about as much per
block. The chain starts with a digest of the scope, so one tenant's text never matches another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from inference.prompt_cache import CacheScope

BLOCK = 64  # tokens: fewer are as cheap to compute as to read
DIGEST_BYTES = 16
_BLOCK_BYTES = 4 * BLOCK


def digest_of(scope: CacheScope, fingerprint: bytes) -> bytes:
    """Identifies a scope in a file. Keyed by the fingerprint: the same tenant gets a different digest per model."""
    kind = b"exact" if scope.exact else b""
    return blake2b(scope.tenant.encode(), digest_size=DIGEST_BYTES, key=fingerprint, person=kind).digest()


def chain(tokens: Sequence[int], scope: bytes) -> tuple[bytes, ...]:
    """One digest per whole block; `scope` is a `digest_of`."""
    packed = np.asarray(tokens, "<i4").tobytes()
    digests, last = [], scope
    for end in range(_BLOCK_BYTES, len(packed) + 1, _BLOCK_BYTES):
        last = blake2b(last + packed[end - _BLOCK_BYTES : end], digest_size=DIGEST_BYTES).digest()
        digests.append(last)
    return tuple(digests)
