"""Speculative search: retrieval for a question that is still being typed. If the same question is then sent, the result
is used.

It has the lowest priority: it runs only while no request waits for an answer, once per user, and the next keystroke
cancels it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import inf

from inference.trace import Trace
from retrieval.passage import Passage
from retrieval.query import Query, Searcher

# From the last key to sending: people read what they have written. Later, documents may have changed.
KEPT_S = 20.0
KEPT_MAX = 64  # of a few passages each
TENANT_MAX = 4  # as many as write at once; a program that foresees for many gets no more
# Of the time that a search may take: what is foreseen may end then, and leaves time for one that keeps to a budget.
WAIT_SHARE = 0.5
USED, WASTED, CANCELLED = "used", "wasted", "cancelled"


@dataclass(frozen=True, slots=True)
class _Kept:
    query: Query
    task: asyncio.Task[list[Passage]]
    until_s: float

    def came(self) -> list[Passage] | None:
        """What it has found, if it can be used. What it raised is raised again for who asks."""
        task = self.task
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


class SpeculativeSearch:
    """Retrieves as `retriever` does. `is_free` says whether nobody waits for an answer. For the event loop only.

    `counts` are of those that ran ahead: used, wasted (complete, and nobody asked) and cancelled by the next one.
    """

    def __init__(self, retriever: Searcher, is_free: Callable[[], bool]) -> None:
        self._retriever = retriever
        self._is_free = is_free
        self._kept: dict[Hashable, _Kept] = {}
        self.counts = Counter[str]({USED: 0, WASTED: 0, CANCELLED: 0})

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        """As the retriever's, from what was foreseen where it is the same. Raises what that raises."""
        began_s, query = time.monotonic(), _plain(query)
        place = next((place for place, kept in self._kept.items() if kept.query == query), None)
        if place is not None and (found := await self._foreseen(self._kept.pop(place), trace, budget_ms)) is not None:
            return found
        left_ms = max(0.0, budget_ms - (time.monotonic() - began_s) * 1e3)
        return await self._retriever.retrieve(query, trace, left_ms)

    async def _foreseen(self, kept: _Kept, trace: Trace, budget_ms: float) -> list[Passage] | None:
        """None where the result is of no use, or not in time."""
        found = None
        try:
            if kept.until_s > time.monotonic():
                with trace.span("retrieve", stores=len(kept.query.stores), ahead=True) as span:
                    timeout_s = None if budget_ms == inf else WAIT_SHARE * budget_ms / 1e3
                    await asyncio.wait([kept.task], timeout=timeout_s)
                    if (found := kept.came()) is not None:
                        span.attributes["passages"] = len(found)
            return found
        finally:
            if found is None:
                self._drop(kept)
            else:
                self.counts[USED] += 1

    def at(self, place: Hashable) -> Searcher:
        """What begins to retrieve for the person who writes there, and finds nothing yet."""
        return _Beginning(self, place)

    def begin(self, place: Hashable, query: Query) -> None:
        """In the place of what was begun there before, which nobody has asked."""
        query = _plain(query)
        if (before := self._kept.get(place)) is not None and before.query == query and not before.task.done():
            return
        self.forget(place)
        now_s = time.monotonic()
        for each in [each for each, kept in self._kept.items() if kept.until_s <= now_s]:
            self.forget(each)
        of_tenant = sum(kept.query.tenant_id == query.tenant_id for kept in self._kept.values())
        if not self._is_free() or len(self._kept) >= KEPT_MAX or of_tenant >= TENANT_MAX:
            return
        task = asyncio.create_task(self._retrieve(query), name="retrieval ahead")
        kept = self._kept[place] = _Kept(query, task, now_s + KEPT_S)
        task.add_done_callback(lambda _: kept.came())  # asyncio would log what nobody looks at

    async def _retrieve(self, query: Query) -> list[Passage]:
        return await self._retriever.retrieve(query, Trace())

    def forget(self, place: Hashable) -> None:
        if (kept := self._kept.pop(place, None)) is not None:
            self._drop(kept)

    def _drop(self, kept: _Kept) -> None:
        self.counts[WASTED if kept.task.done() else CANCELLED] += 1
        kept.task.cancel()


@dataclass(frozen=True, slots=True)
class _Beginning:
    speculative_search: SpeculativeSearch
    place: Hashable

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        self.speculative_search.begin(self.place, query)
        return []


def _plain(query: Query) -> Query:
    return replace(query, text=query.text.strip())
