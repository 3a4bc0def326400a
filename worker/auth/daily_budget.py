"""The cost limit of an API key per day (UTC), counted over all workers.

The stored cost is read every few seconds while the key sends requests; what this worker has charged since is added. So
a key may exceed its budget by what it has in progress, and by what other workers answer within those seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from migrations.pool import DATABASE_AWAY
from worker.auth.principal import Principal
from worker.errors import ApiError

REREAD_S = 5.0
KEYS_MAX = 10_000  # that are remembered; a key that was dropped is read again

Read: TypeAlias = Callable[[UUID, str, datetime], Awaitable[float]]  # tenant, key, since when -> cost


@dataclass(slots=True)
class _Key:
    day: datetime
    stored: float = 0.0
    charged: float = 0.0  # by this worker, since it first saw the key
    counted: float = 0.0  # the part of `charged` that `stored` includes
    read_at: float = float("-inf")  # time.monotonic()
    first_look: asyncio.Task[None] | None = None

    @property
    def spent(self) -> float:
        return self.stored + self.charged - self.counted


class DailyBudgets:
    """For the event loop only; keys without a budget cost one lookup of their limits."""

    def __init__(self, read: Read | None = None, flush: Callable[[], Awaitable[None]] | None = None) -> None:
        """`flush` returns when everything charged so far is stored, as far as possible."""
        self._read = read
        self._flush = flush
        self._keys: OrderedDict[str, _Key] = OrderedDict()
        self._reading: set[asyncio.Task[None]] = set()

    async def know(self, principal: Principal) -> None:
        """Return when the spending of the key is known; later reads happen in the background."""
        key = self._key(principal)
        if key is None:
            return
        if key.first_look is None:
            key.first_look = asyncio.create_task(self._look(principal, key), name="first look at a budget")
        if not key.first_look.done():  # the first caller may disconnect while the others still wait
            await asyncio.shield(key.first_look)

    def check(self, principal: Principal) -> None:
        """Raises ApiError 429 when the budget of the day is spent."""
        key = self._key(principal)
        if key is None:
            return
        # One key at a time: however many send requests at once, budgets use one connection, and all share the flush.
        if time.monotonic() >= key.read_at + REREAD_S and not self._reading:
            task = asyncio.create_task(self._look(principal, key), name="budget of a key")
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        budget = principal.bounds.cost_per_day if principal.bounds else None
        if budget is not None and key.spent >= budget:
            raise _spent(budget, key)

    def charge(self, principal: Principal, cost: float) -> None:
        key = self._key(principal)
        if key is not None:
            key.charged += cost

    async def _look(self, principal: Principal, key: _Key) -> None:
        if self._read is None or self._flush is None:
            return
        key.read_at = time.monotonic()
        counted = key.charged
        try:
            await self._flush()
            stored = await self._read(principal.tenant_id, principal.subject, key.day)
        except DATABASE_AWAY:
            return  # keep what is already known
        key.stored, key.counted = stored, counted

    def _key(self, principal: Principal) -> _Key | None:
        if principal.bounds is None or principal.bounds.cost_per_day is None:
            return None
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        key = self._keys.get(principal.subject)
        if key is None or key.day != today:
            key = self._keys[principal.subject] = _Key(today)
            if len(self._keys) > KEYS_MAX:
                self._keys.popitem(last=False)
        self._keys.move_to_end(principal.subject)
        return key


def _spent(budget: float, key: _Key) -> ApiError:
    """Clients retry a 429 automatically, which is pointless before tomorrow."""
    left_s = (key.day + timedelta(days=1) - datetime.now(UTC)).total_seconds()
    return ApiError(
        429,
        f"This key has spent its budget of {budget:g} for today: {key.spent:.6g}. It can be used again at 00:00 UTC. "
        "For more, create a key with a higher cost_per_day.",
        type="insufficient_quota",
        code="insufficient_quota",
        retry_after_s=max(1.0, left_s),
        headers={"X-Should-Retry": "false"},
    )
