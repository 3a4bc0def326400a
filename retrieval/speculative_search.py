"""Speculative search: retrieval for a question that is still being typed, and then prefill of the prompt with what was
found. If the same question is sent, both are reused.

It has the lowest priority: it runs only while no request waits for an answer, once per user, and the next keystroke
cancels it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import inf

from inference.generation import Generation
from inference.trace import Trace
from retrieval.passage import Passage
from retrieval.query import Query, Searcher

# From the last key to sending: people reread what they have written. Documents may have changed after that.
KEPT_S = 20.0
KEPT_MAX = 64  # results of a few passages each
TENANT_MAX = 4  # as many users as type at once; a program that speculates for many gets no more
# Share of a search's budget spent on waiting for a speculative result; the rest is left for a search of its own.
WAIT_SHARE = 0.5
USED, WASTED, CANCELLED = "used", "wasted", "cancelled"
READ_TOKENS = "read_tokens"  # of the prompt with its passages, all of which were prefilled


@dataclass(frozen=True, slots=True)
class ReadDraft:
    """The prefill of a prompt, and the passages in it: those of a search that can be read in time."""

    passages: Sequence[Passage]
    reading: Generation


@dataclass(slots=True, eq=False)
class _Kept:
    query: Query
    task: asyncio.Task[list[Passage]]
    until_s: float
    read: ReadDraft | None = None

    def came(self) -> list[Passage] | None:
        """Its result, if usable. An exception is not used: the regular search would raise it again."""
        if self.read is not None:
            return list(self.read.passages)
        task = self.task
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


class SpeculativeSearch:
    """Retrieves like `retriever`. `is_free` returns whether no request waits for an answer. For the event loop only.

    `counts` covers speculative searches: used, wasted (finished, but not requested) and cancelled by the next one.
    `engine_s` has the engine time of their prefills: used, if the result was, or wasted.
    """

    def __init__(self, retriever: Searcher, is_free: Callable[[], bool]) -> None:
        self._retriever = retriever
        self.is_free = is_free
        self._kept: dict[Hashable, _Kept] = {}
        self.counts = Counter[str]({USED: 0, WASTED: 0, CANCELLED: 0})
        self._engine_ns = Counter[str]({USED: 0, WASTED: 0})
        self._ending: list[tuple[str, Generation]] = []  # prefills whose outcome is known; their time may still grow

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        """Like the retriever's, but reuses a speculative result for the same query. Raises the retriever's errors."""
        began_s, query = time.monotonic(), _plain(query)
        place = next((place for place, kept in self._kept.items() if kept.query == query), None)
        if place is not None and (found := await self._foreseen(self._kept.pop(place), trace, budget_ms)) is not None:
            return found
        left_ms = max(0.0, budget_ms - (time.monotonic() - began_s) * 1e3)
        return await self._retriever.retrieve(query, trace, left_ms)

    async def _foreseen(self, kept: _Kept, trace: Trace, budget_ms: float) -> list[Passage] | None:
        """None if the result is unusable or late."""
        found = None
        try:
            if kept.until_s > time.monotonic():
                with trace.span("retrieve", stores=len(kept.query.stores), ahead=True) as span:
                    timeout_s = None if budget_ms == inf else WAIT_SHARE * budget_ms / 1e3
                    await asyncio.wait([kept.task], timeout=timeout_s)
                    if (found := kept.came()) is not None:
                        span.attributes["passages"] = len(found)
                    if kept.read is not None and kept.read.reading.finish is not None:
                        span.attributes[READ_TOKENS] = kept.read.reading.prompt_tokens
            return found
        finally:
            if found is None:
                self._drop(kept)
            else:
                self.counts[USED] += 1
                self._account(kept, USED)  # the prompt continues from it, and ends it if it still runs

    def begin(self, place: Hashable, query: Query) -> None:
        """Start a search for the user at a place, replacing an earlier one there that was not requested."""
        query = _plain(query)
        if (before := self._kept.get(place)) is not None and before.query == query and not before.task.done():
            return
        self.forget(place)
        now_s = time.monotonic()
        for each in [each for each, kept in self._kept.items() if kept.until_s <= now_s]:
            self.forget(each)
        of_tenant = sum(kept.query.tenant_id == query.tenant_id for kept in self._kept.values())
        if not self.is_free() or len(self._kept) >= KEPT_MAX or of_tenant >= TENANT_MAX:
            return
        task = asyncio.create_task(self._retriever.retrieve(query, Trace()), name="retrieval ahead")
        kept = self._kept[place] = _Kept(query, task, now_s + KEPT_S)
        task.add_done_callback(lambda _: kept.came())  # retrieves an exception, which asyncio would log otherwise

    async def read(self, place: Hashable, start: Callable[[list[Passage]], Awaitable[ReadDraft | None]]) -> bool:
        """Once the search at a place is done, `start` the prefill of the prompt with what it found, if any. Returns
        False if none is started: the search failed, was used, replaced or forgotten, or requests wait for an answer."""
        kept = self._kept.get(place)
        if kept is None or kept.read is not None:
            return kept is not None
        await asyncio.wait([kept.task])
        if (found := kept.came()) is None or not self._is_current(place, kept):
            return False
        read = await start(found)
        if read is None:
            return False
        kept.read = read
        if self._is_current(place, kept):
            return True
        self._account(kept, WASTED)
        read.reading.cancel()
        return False

    def _is_current(self, place: Hashable, kept: _Kept) -> bool:
        return self._kept.get(place) is kept and self.is_free()

    def forget(self, place: Hashable) -> None:
        if (kept := self._kept.pop(place, None)) is not None:
            self._drop(kept)

    def _drop(self, kept: _Kept) -> None:
        self.counts[WASTED if kept.task.done() else CANCELLED] += 1
        kept.task.cancel()
        if kept.read is not None:
            self._account(kept, WASTED)
            kept.read.reading.cancel()

    @property
    def engine_s(self) -> dict[str, float]:
        self._settle()
        return {came: ns / 1e9 for came, ns in self._engine_ns.items()}

    def _account(self, kept: _Kept, came: str) -> None:
        if kept.read is not None:
            self._ending.append((came, kept.read.reading))
            self._settle()

    def _settle(self) -> None:
        """Add up the prefills that have ended."""
        for came, reading in self._ending:
            if reading.finish is not None:
                self._engine_ns[came] += reading.facts.spent.engine_ns
        self._ending = [each for each in self._ending if each[1].finish is None]


def _plain(query: Query) -> Query:
    return replace(query, text=query.text.strip())
