"""How many turns may be in progress: a cap for the worker and a smaller one for each tenant. And the limits of an API
key.

Requests over a cap are refused at once with a time to retry, instead of waiting in an invisible queue. A tenant that
holds much leaves room for those that hold little.

An API key may have limits of requests and tokens a minute, reported in the headers that OpenAI's clients know. Token
buckets (Turner 1986): a minute's worth may be used at once, and comes back evenly. How many tokens a request took is
known when it is over; until then, what the key's requests took in the mean stands for it.

It may also have a limit of its cost per day (UTC), over all workers. The stored cost is read every few seconds while
the key sends requests; what this worker has charged since is added. So a key may exceed its budget by what it has in
progress, and by what other workers answer within those seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from inference.engine.fairness import within_share
from inference.lru_cache import LruCache
from migrations.pool import DATABASE_AWAY
from worker.auth.principal import Principal
from worker.errors import ApiError, overloaded, rate_limited

RESERVED_PART = 4  # one place of so many is reserved for turns that somebody waits for
RETRY_AFTER_S = 1.0  # about the length of a short answer: when the next turn is likely to end
MINUTE_S = 60.0
# Keys that are remembered, a few hundred bytes each. One that is forgotten begins with full buckets, and its cost is
# read again.
KEYS_MAX = 10_000
LEARNING = 0.2  # weight of the newest request in the mean


class Admission:
    """Counts turns in progress. Not thread-safe: for the event loop only.

    Those that somebody waits for are counted apart from the others, of the class batch, which may be many and long: so
    who asks for much in the background is not refused what people ask for.
    """

    def __init__(self, turns_max: int, tenant_turns_max: int) -> None:
        self._turns_max = turns_max
        self._tenant_turns_max = tenant_turns_max
        self._unwaited_max = turns_max - turns_max // RESERVED_PART
        self._waited: Counter[UUID] = Counter()
        self._unwaited: Counter[UUID] = Counter()

    @property
    def active(self) -> int:
        return self._waited.total() + self._unwaited.total()

    @contextmanager
    def turn(self, tenant_id: UUID, *, waited: bool = True) -> Iterator[None]:
        """Hold a place until the end of its block. Raises ApiError when none is free: 429 where the tenant holds its
        share, 503 where the others do."""
        turns, free, which = self._waited, self._turns_max - self.active, "turns in progress"
        if not waited:
            turns, free = self._unwaited, min(free, self._unwaited_max - self._unwaited.total())
            which = "turns of the class batch in progress"
        if (held := turns[tenant_id]) >= self._tenant_turns_max:
            raise _own(f"You already have {self._tenant_turns_max} {which}, which is the limit.")
        if free <= 0:
            raise overloaded(f"The worker is busy with {self.active} turns. Try again in a moment.", RETRY_AFTER_S)
        if not within_share(held, free):
            raise _own(f"You already have {held} {which}; what is free is left to others.")
        turns[tenant_id] += 1
        try:
            yield
        finally:
            turns[tenant_id] -= 1
            if not turns[tenant_id]:
                del turns[tenant_id]


def _own(message: str) -> ApiError:
    return rate_limited(f"{message} Try again in a moment.", RETRY_AFTER_S)


@dataclass(slots=True)
class Bucket:
    """`now_s` is monotonic. What was taken in advance too little may leave it below zero."""

    per_minute: float
    level: float
    at_s: float

    @classmethod
    def full(cls, per_minute: float, now_s: float) -> Bucket:
        return cls(per_minute, per_minute, now_s)

    def left(self, now_s: float) -> float:
        self.level = min(self.per_minute, self.level + (now_s - self.at_s) * self.per_minute / MINUTE_S)
        self.at_s = now_s
        return self.level

    def wait_s(self, count: float, now_s: float) -> float:
        """Until so much is there. More than a minute's worth never is: then a full bucket will do."""
        return max(0.0, min(count, self.per_minute) - self.left(now_s)) * MINUTE_S / self.per_minute


@dataclass(slots=True)
class _Key:
    requests: Bucket | None
    tokens: Bucket | None
    mean_tokens: float = 1.0  # of a request

    @property
    def named(self) -> Iterator[tuple[str, Bucket]]:
        yield from ((name, each) for name, each in (("requests", self.requests), ("tokens", self.tokens)) if each)


class RateLimits:
    """Pure. For the event loop only; keys without rates cost a look at their bounds."""

    def __init__(self) -> None:
        self._keys = LruCache[str, _Key](KEYS_MAX)

    def take(self, principal: Principal, now_s: float) -> float:
        """Count a request; returns the tokens that were taken in advance. Raises ApiError 429."""
        key = self._key(principal, now_s)
        if key is None:
            return 0.0
        for name, bucket in key.named:
            wait_s = bucket.wait_s(1.0 if name == "requests" else key.mean_tokens, now_s)
            if wait_s > 0:
                raise _refused(name, bucket, wait_s)
        if key.requests:
            key.requests.level -= 1
        if key.tokens:
            key.tokens.level -= key.mean_tokens
        return key.mean_tokens

    def give_back(self, principal: Principal, taken: float, now_s: float) -> None:
        """A request is over: what it took in advance counts no more, only what is charged."""
        key = self._key(principal, now_s)
        if key and key.tokens:
            key.tokens.level += taken

    def charge(self, principal: Principal, tokens: int, now_s: float) -> None:
        """A turn has read and generated so many tokens."""
        key = self._key(principal, now_s)
        if key and key.tokens:
            key.tokens.level -= tokens
            if tokens:  # what was refused tells nothing of what answers take
                key.mean_tokens += LEARNING * (tokens - key.mean_tokens)

    def headers(self, principal: Principal, now_s: float) -> dict[str, str]:
        """`x-ratelimit-*`, of the limits that the key has."""
        key, headers = self._key(principal, now_s), {}
        for name, bucket in key.named if key else ():
            headers[f"X-RateLimit-Limit-{name.capitalize()}"] = str(int(bucket.per_minute))
            headers[f"X-RateLimit-Remaining-{name.capitalize()}"] = str(max(0, int(bucket.left(now_s))))
            headers[f"X-RateLimit-Reset-{name.capitalize()}"] = duration(bucket.wait_s(bucket.per_minute, now_s))
        return headers

    def _key(self, principal: Principal, now_s: float) -> _Key | None:
        bounds = principal.bounds
        if bounds is None or not (bounds.requests_per_minute or bounds.tokens_per_minute):
            return None
        key = self._keys.get(principal.subject)
        if key is None:
            requests, tokens = bounds.requests_per_minute, bounds.tokens_per_minute
            key = _Key(
                Bucket.full(requests, now_s) if requests else None, Bucket.full(tokens, now_s) if tokens else None
            )
            self._keys.put(principal.subject, key)
        return key


def duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 6.5s, 1m3s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.0f}s" if minutes else f"{rest:.1f}s"


def _refused(name: str, bucket: Bucket, wait_s: float) -> ApiError:
    return rate_limited(f"This key may use {bucket.per_minute:.0f} {name} per minute. Try again later.", wait_s)


REREAD_S = 5.0
Read: TypeAlias = Callable[[UUID, str, datetime], Awaitable[float]]  # tenant, key, since when -> cost


@dataclass(slots=True)
class _Spending:
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

    def __init__(self, read: Read, flush: Callable[[], Awaitable[None]]) -> None:
        """`flush` returns when everything charged so far is stored, as far as possible."""
        self._read = read
        self._flush = flush
        self._keys = LruCache[str, _Spending](KEYS_MAX)
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

    async def _look(self, principal: Principal, key: _Spending) -> None:
        key.read_at = time.monotonic()
        counted = key.charged
        try:
            await self._flush()
            stored = await self._read(principal.tenant_id, principal.subject, key.day)
        except DATABASE_AWAY:
            return  # keep what is already known
        key.stored, key.counted = stored, counted

    def _key(self, principal: Principal) -> _Spending | None:
        if principal.bounds is None or principal.bounds.cost_per_day is None:
            return None
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        key = self._keys.get(principal.subject)
        if key is None or key.day != today:
            key = _Spending(today)
            self._keys.put(principal.subject, key)
        return key


def _spent(budget: float, key: _Spending) -> ApiError:
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
