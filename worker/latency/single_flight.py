"""Single flight: a query that several viewers send at the same time is computed once, and cached for a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

KEPT_S = 2.0  # shorter than the polling interval of the pages
KEPT_MAX = 64  # results of some kilobytes; beyond it the oldest are evicted


@dataclass(frozen=True, slots=True)
class CachedResult:
    asked_at: float
    answer: asyncio.Task[Any]


class SingleFlight:
    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._kept: dict[Hashable, CachedResult] = {}

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[Any]]) -> Any:
        """A caller that is cancelled does not cancel the query for the others. Failures are not cached."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or now - kept.asked_at >= self._kept_s or _failed(kept.answer):
            self._kept.pop(key, None)
            while len(self._kept) >= KEPT_MAX:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[key] = CachedResult(now, asyncio.create_task(_result(compute), name="latency view"))
        return await asyncio.shield(kept.answer)


async def _result(compute: Callable[[], Awaitable[Any]]) -> Any:
    return await compute()


def _failed(answer: asyncio.Task[Any]) -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)
