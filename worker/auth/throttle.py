"""Throttles addresses that send wrong credentials, and keeps them from occupying the database.

Keys have 256 random bits, so nobody guesses one; what matters is what each guess costs. A valid credential is accepted
from any address, always: an office or a balancer with one address is not locked out by one of its users.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

from inference.lru_cache import LruCache
from worker.errors import ApiError

FAILURES_MAX = 20  # in a burst: a person who mistypes a key needs fewer
FORGIVEN_PER_S = 0.5
ADDRESSES_MAX = 10_000  # remembered, in about two megabytes; the one that was seen longest ago is evicted first
WRONG = 401


@dataclass(frozen=True, slots=True)
class _Failures:
    count: float
    at: float  # time.monotonic()

    @property
    def now(self) -> float:
        return max(0.0, self.count - (time.monotonic() - self.at) * FORGIVEN_PER_S)


class Throttle:
    """Counts failures by address. Addresses over the limit get 429 instead of 401, and their credentials are checked
    one at a time.
    """

    def __init__(self) -> None:
        self._failures = LruCache[str, _Failures](ADDRESSES_MAX)
        self._one_by_one = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Throttle {len(self._failures)} addresses>"

    @asynccontextmanager
    async def checking(self, address: str) -> AsyncIterator[None]:
        """Wraps the check of a credential. Raises ApiError(429) in place of 401 for an address over the limit."""
        async with self._one_by_one if self._count(address) >= FAILURES_MAX else nullcontext():
            try:
                yield
            except ApiError as error:
                if error.status == WRONG and self._fail(address) > FAILURES_MAX:
                    raise _slow_down() from None
                raise

    def _count(self, address: str) -> float:
        failures = self._failures.get(address)
        return failures.now if failures else 0.0

    def _fail(self, address: str) -> float:
        count = min(self._count(address), FAILURES_MAX) + 1
        self._failures.put(address, _Failures(count, time.monotonic()))
        return count


def _slow_down() -> ApiError:
    message = "Too many wrong credentials came from this address. Check yours, and try again in a moment."
    return ApiError(429, message, code="too_many_failures", retry_after_s=1 / FORGIVEN_PER_S)
