"""Routing of requests to engines: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018,
arXiv 1608.01350) in the form of rendezvous hashing.

The loss of an engine only moves its own sessions; the caches of the others remain useful. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

# How far above the mean load an engine may be before its sessions move: less costs prefix hits, more costs waiting.
LOAD_BOUND = 1.25
# Tokens of the prefix that identify a session: caching shorter prompts is worth little, and the prompts of a
# conversation, which only grow, all share them.
SESSION_TOKENS = 64


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine reports about itself. `ours`: it is of this project and supports every field. `vocabulary` is the
    digest of its tokens, which vLLM does not report. `shares`: requests can share one connection."""

    context: int | None = None
    ours: bool = False
    vocabulary: str | None = None
    shares: bool = False


@dataclass(slots=True, eq=False)
class Upstream:
    """An engine as seen by a worker. `away` says why it gets no requests, if so."""

    url: str
    facts: EngineInfo | None = None
    away: str | None = "it has not been reached yet"
    streams: int = 0  # running there for this worker
    misses: int = 0  # consecutive health checks without a response

    @property
    def is_up(self) -> bool:
        return self.away is None and self.facts is not None


class Fleet:
    """The engines of a worker."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.upstreams = [Upstream(url) for url in urls]

    @property
    def up(self) -> list[Upstream]:
        return [each for each in self.upstreams if each.is_up]

    @property
    def has_ours(self) -> bool:
        """Whether any engine is of this project, including those that are away."""
        return any(each.facts is not None and each.facts.ours for each in self.upstreams)

    def pick(self, session: bytes, without: Collection[Upstream] = (), *, ours: bool = False) -> Upstream | None:
        """The engine of a session, or the next one in its order that has room. `ours`: only engines of this project."""
        able = [each for each in self.up if each not in without and (not ours or (each.facts and each.facts.ours))]
        if not able:
            return None
        able.sort(key=lambda each: blake2b(each.url.encode(), key=session, digest_size=8).digest())
        most = ceil(LOAD_BOUND * (1 + sum(each.streams for each in able)) / len(able))
        return next((each for each in able if each.streams < most), able[0])


def session_of(prompt: Sequence[int], salt: str) -> bytes:
    """A key that the prompts of a conversation share, and those of other tenants do not."""
    ids = ",".join(map(str, prompt[:SESSION_TOKENS]))
    return blake2b(f"{salt} {ids}".encode(), digest_size=16).digest()
