"""Which engine computes a request: consistent hashing with bounded load (Mirrokni, Thorup and Zadimoghaddam, SODA 2018,
arXiv 1608.01350) in the form of rendezvous hashing.

An engine that is gone only moves its own sessions, and the caches of the others stay of use. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

# How far above the mean an engine may be before its sessions go elsewhere: less costs cached prefixes, more waiting.
LOAD_BOUND = 1.25
# Tokens at the start that tell sessions apart: what is cached of shorter prompts is worth little, and the prompts of a
# conversation, which only grow, all have the same.
SESSION_TOKENS = 64


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself. `ours`: it is of this project, and understands all that is asked.
    `vocabulary` is the digest of its tokens; vLLM does not tell any. `shares`: all requests may share a connection."""

    context: int | None = None
    ours: bool = False
    vocabulary: str | None = None
    shares: bool = False


@dataclass(slots=True, eq=False)
class Upstream:
    """An engine as a worker knows it. `away` is why it is not asked, if so."""

    url: str
    facts: EngineInfo | None = None
    away: str | None = "it was not reached yet"
    streams: int = 0  # that this worker has there
    misses: int = 0  # looks in a row to which it gave no answer

    @property
    def is_up(self) -> bool:
        return self.away is None and self.facts is not None


class Fleet:
    """The engines of a worker."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.upstreams = [Upstream(url) for url in urls]

    def __repr__(self) -> str:
        return f"<Fleet {len(self.up)} of {len(self.upstreams)} up>"

    @property
    def up(self) -> list[Upstream]:
        return [each for each in self.upstreams if each.is_up]

    @property
    def has_ours(self) -> bool:
        """Whether any engine is of this project, also one that is away."""
        return any(each.facts is not None and each.facts.ours for each in self.upstreams)

    def pick(self, session: bytes, without: Collection[Upstream] = (), *, ours: bool = False) -> Upstream | None:
        """The engine of a session, or the next one in its order that has room. `ours`: of this project only."""
        able = [each for each in self.up if each not in without and (not ours or (each.facts and each.facts.ours))]
        if not able:
            return None
        able.sort(key=lambda each: blake2b(each.url.encode(), key=session, digest_size=8).digest())
        most = ceil(LOAD_BOUND * (1 + sum(each.streams for each in able)) / len(able))
        return next((each for each in able if each.streams < most), able[0])


def session_of(prompt: Sequence[int], salt: str) -> bytes:
    """What prompts of one conversation have in common, and those of other tenants have not."""
    told = ",".join(map(str, prompt[:SESSION_TOKENS]))
    return blake2b(f"{salt} {told}".encode(), digest_size=16).digest()
