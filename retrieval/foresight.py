"""Retrieval for a question that is still being written, kept for a moment: who asks just this is answered from it.

It runs below everything else: only while nobody waits for an answer, one for each person, and what is written next ends
it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol
from uuid import UUID

from inference.trace import Trace
from retrieval.filter import Filter
from retrieval.passage import Passage

# From the last key to sending: people read what they have written. Later, documents may have changed.
KEPT_S = 20.0
KEPT_MAX = 64  # of a few passages each
TENANT_MAX = 4  # as many as write at once; a program that foresees for many gets no more
USED, WASTED, CANCELLED = "used", "wasted", "cancelled"


class Retrieving(Protocol):
    async def retrieve(
        self,
        query: str,
        *,
        tenant_id: UUID,
        stores: Sequence[str],
        limit: int,
        score_threshold: float,
        trace: Trace,
        filters: Filter | None = None,
        budget_ms: float = inf,
    ) -> list[Passage]: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    tenant_id: UUID
    query: str
    stores: tuple[str, ...]
    limit: int
    score_threshold: float
    filters: Filter | None


@dataclass(frozen=True, slots=True)
class _Kept:
    asked: _Asked
    task: asyncio.Task[list[Passage]]
    until_s: float


class Foresight:
    """Retrieves as `retriever` does. `is_free` says whether nobody waits for an answer. For the event loop only.

    `counts` are of those that ran ahead: used, wasted (complete, and nobody asked) and cancelled by the next one.
    """

    def __init__(self, retriever: Retrieving, is_free: Callable[[], bool]) -> None:
        self._retriever = retriever
        self._is_free = is_free
        self._kept: dict[Hashable, _Kept] = {}
        self.counts = Counter[str]({USED: 0, WASTED: 0, CANCELLED: 0})

    async def retrieve(
        self,
        query: str,
        *,
        tenant_id: UUID,
        stores: Sequence[str],
        limit: int,
        score_threshold: float,
        trace: Trace,
        filters: Filter | None = None,
        budget_ms: float = inf,
    ) -> list[Passage]:
        """As the retriever's, from what was foreseen where it is the same. Raises what that raises."""
        asked = _Asked(tenant_id, query.strip(), tuple(stores), limit, score_threshold, filters)
        place = next((place for place, kept in self._kept.items() if kept.asked == asked), None)
        kept = self._kept.pop(place) if place is not None else None
        if kept is not None and kept.until_s > time.monotonic():
            with trace.span("retrieve", stores=len(stores), ahead=True) as span:
                await asyncio.wait([kept.task], timeout=None if budget_ms == inf else budget_ms / 1e3)
                if _came_of(kept.task):
                    self.counts[USED] += 1
                    span.attributes["passages"] = len(kept.task.result())
                    return kept.task.result()
        if kept is not None:
            self._drop(kept)
        return await self._retriever.retrieve(
            query,
            tenant_id=tenant_id,
            stores=stores,
            limit=limit,
            score_threshold=score_threshold,
            trace=trace,
            filters=filters,
            budget_ms=budget_ms,
        )

    def at(self, place: Hashable) -> _Beginning:
        """What begins to retrieve for the person who writes there, and finds nothing yet."""
        return _Beginning(self, place)

    def begin(self, place: Hashable, asked: _Asked) -> None:
        """In the place of what was begun there before, which nobody has asked."""
        if (before := self._kept.get(place)) is not None and before.asked == asked and not before.task.done():
            return
        self.forget(place)
        now_s = time.monotonic()
        for each in [each for each, kept in self._kept.items() if kept.until_s <= now_s]:
            self.forget(each)
        of_tenant = sum(kept.asked.tenant_id == asked.tenant_id for kept in self._kept.values())
        if not self._is_free() or len(self._kept) >= KEPT_MAX or of_tenant >= TENANT_MAX:
            return
        running = self._retriever.retrieve(
            asked.query,
            tenant_id=asked.tenant_id,
            stores=asked.stores,
            limit=asked.limit,
            score_threshold=asked.score_threshold,
            trace=Trace(),
            filters=asked.filters,
        )
        task = asyncio.create_task(running, name="retrieval ahead")
        task.add_done_callback(_came_of)
        self._kept[place] = _Kept(asked, task, now_s + KEPT_S)

    def forget(self, place: Hashable) -> None:
        if (kept := self._kept.pop(place, None)) is not None:
            self._drop(kept)

    def _drop(self, kept: _Kept) -> None:
        self.counts[WASTED if kept.task.done() else CANCELLED] += 1
        kept.task.cancel()


@dataclass(frozen=True, slots=True)
class _Beginning:
    foresight: Foresight
    place: Hashable

    async def retrieve(
        self,
        query: str,
        *,
        tenant_id: UUID,
        stores: Sequence[str],
        limit: int,
        score_threshold: float,
        trace: Trace,
        filters: Filter | None = None,
        budget_ms: float = inf,
    ) -> list[Passage]:
        asked = _Asked(tenant_id, query.strip(), tuple(stores), limit, score_threshold, filters)
        self.foresight.begin(self.place, asked)
        return []


def _came_of(task: asyncio.Task[list[Passage]]) -> bool:
    """Whether it has found something to be used. What it raises is raised again for who asks."""
    return task.done() and not task.cancelled() and task.exception() is None
