"""The waiting and running requests by priority class and tenant, and which of them come before a new one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from threading import Lock
from typing import NamedTuple

from inference.engine.fairness import Shares
from inference.frozen import dataclass
from inference.generation import Priority
from inference.request import Request

# A request that is already late, or has no due time, is ordered as if it were due this much later, so requests that can
# still be on time pass it. Longer than any target, and short enough that no client gives up.
PATIENCE_NS = 10 * 10**9

# A batch request that has waited this long gets a slot ahead of the higher classes, one such request at a time: of
# eight slots, that costs them an eighth.
FLOOR_NS = 30 * 10**9


class RequestAhead(NamedTuple):
    """A request that holds a slot or waits for one. `to_prefill`: prompt tokens that are neither cached nor prefilled
    by the current step."""

    generated: int  # tokens
    max_tokens: int
    to_prefill: int

    @classmethod
    def of(cls, request: Request) -> RequestAhead:
        return cls(len(request.generated), request.max_tokens, request.to_prefill)


@dataclass(frozen=True, slots=True)
class Ahead:
    """The requests that are computed before a new one, or beside it. `waiting` is in order of admission."""

    running: Sequence[RequestAhead] = ()
    waiting: Sequence[RequestAhead] = ()
    own: int = 0  # how many of both belong to the new request's tenant
    held: int = 0  # slots that pass from one starved request to the next, so the new request cannot get them


@dataclass(slots=True)
class Held:
    """Requests in the engine: of a tenant, or all."""

    waiting: int = 0
    running: int = 0
    tokens: int = 0  # of the waiting prompts, cached or not: they are held in memory


class Load:
    """The event loop adds requests, the engine's thread moves and removes them: a few updates per request, none per
    token.

    A forecast iterates over all of them; batch size and queue limit bound their number.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._lock = Lock()
        self._requests: dict[Request, None] = {}  # in order of arrival
        self._held: dict[str, Held] = {}  # by tenant
        self.total = Held()
        self.version = 0  # incremented with each change of the waiting and running requests

    def held_by(self, tenant: str) -> Held:
        return self._held.get(tenant) or Held()

    def is_only(self, tenant: str) -> bool:
        """Whether all requests are this tenant's; False if there are none."""
        return len(self._held) == 1 and tenant in self._held

    def holding_more_than(self, places: int) -> list[str]:
        """Tenants with more running requests than that."""
        return [tenant for tenant, held in list(self._held.items()) if held.running > places]

    def add(self, request: Request, to_prefill: int) -> None:
        """Queue a request with `to_prefill` uncached prompt tokens."""
        with self._lock:
            request.to_prefill = to_prefill
            self._requests[request] = None
            self._count(request, waiting=1)

    def moved(self, request: Request) -> None:
        """Record that the request got a slot, or lost it and waits again. One that was never added is ignored."""
        with self._lock:
            if request in self._requests:
                request.to_prefill, waits = request.remaining, request.slot is None
                self._count(request, waiting=1 if waits else -1, running=-1 if waits else 1)

    def remove(self, request: Request) -> None:
        """Remove a request that has ended; one that was never added is ignored."""
        with self._lock:
            if request in self._requests:
                del self._requests[request]
                waits = request.slot is None
                self._count(request, waiting=-int(waits), running=-int(not waits))

    def ahead(
        self, priority: Priority, tenant: str, due_ns: int | None, now_ns: int, answer: float, *, others: bool = True
    ) -> Ahead:
        """The requests that come before a new one whose first token is due at `due_ns`, or run beside it. `answer` is
        the expected number of tokens per answer.

        Before it come all requests of a higher class, those of its own tenant that are due no later, and those of other
        tenants that fair sharing serves first. Without `others`, only those of its own tenant count: this tells whether
        the tenant's own requests are what delays it.
        """
        with self._lock:
            waiting = [request for request in self._requests if request.slot is None]
            running = [request for request in self._requests if request.slot is not None]
        higher, same = list[tuple[float, RequestAhead]](), defaultdict[str, list[tuple[float, RequestAhead]]](list)
        starved = next_starved(waiting, running, now_ns)
        if starved is not None and others and priority < Priority.BATCH:
            higher.append((-1, RequestAhead.of(starved)))
        by_ns = _admit_by_ns(due_ns, now_ns, now_ns)
        for request in waiting:
            own = request.scope.tenant == tenant
            if request.priority > priority or not (own or others):
                continue
            entry = RequestAhead.of(request)
            if request.priority < priority:
                higher.append((request.priority, entry))
            elif not own or admit_by_ns(request, now_ns) <= by_ns:
                same[request.scope.tenant].append((entry.to_prefill + answer, entry))
        kept = any(request.keeps_slot for request in running)
        held = int(kept and any(is_starved(request, now_ns) for request in waiting))
        beside = [
            (request.scope.tenant == tenant, RequestAhead.of(request))
            for request in running
            if (not held if request.keeps_slot else request.priority <= priority)
        ]
        return Ahead(
            [entry for own, entry in beside if own or others],
            [entry for _, entry in [*sorted(higher, key=_first), *self._served_first(same, tenant)]],
            sum(int(own) for own, _ in beside) + len(same[tenant]),
            held if others else 0,
        )

    def _served_first(
        self, waiting: Mapping[str, Sequence[tuple[float, RequestAhead]]], tenant: str
    ) -> list[tuple[float, RequestAhead]]:
        """Of the waiting requests of a class, by tenant and each with its work in tokens: those that fair sharing
        serves before the next one of this tenant, the least served tenant first."""
        mine = self._shares.joining(tenant) + sum([work for work, _ in waiting.get(tenant, ())])
        fair = list[tuple[float, RequestAhead]]()
        for name, entries in waiting.items():
            served: float = self._shares.served(name)
            for work, entry in entries:
                if served > mine:
                    break
                fair.append((served, entry))
                served += work
        return sorted(fair, key=_first)

    def _count(self, request: Request, *, waiting: int = 0, running: int = 0) -> None:
        own = self._held.setdefault(request.scope.tenant, Held())
        for held in (own, self.total):
            held.waiting += waiting
            held.running += running
            held.tokens += waiting * len(request.prompt)
        self.version += 1
        if not (own.waiting or own.running):
            del self._held[request.scope.tenant]


_first = itemgetter(0)


def admit_by_ns(request: Request, now_ns: int) -> int:
    """The sort key of waiting requests of the same class and tenant, on the monotonic clock: the lowest goes first."""
    if request.generated:  # it was preempted: its reader waits in the middle of a sentence
        return 0
    return _admit_by_ns(request.due_ns, request.stamps.submitted_ns, now_ns)


def next_starved(waiting: Iterable[Request], running: Iterable[Request], now_ns: int) -> Request | None:
    """The batch request that gets the slot for starved ones (see FLOOR_NS) next: the one that has waited longest. None
    while another one keeps it."""
    if any(request.keeps_slot for request in running):
        return None
    starved = (request for request in waiting if is_starved(request, now_ns))
    return min(starved, key=lambda request: request.stamps.submitted_ns, default=None)


def is_starved(request: Request, now_ns: int) -> bool:
    """Whether a waiting batch request has waited for at least FLOOR_NS."""
    return request.priority is Priority.BATCH and now_ns - request.stamps.submitted_ns >= FLOOR_NS


def _admit_by_ns(due_ns: int | None, submitted_ns: int, now_ns: int) -> int:
    if due_ns is None:
        return submitted_ns + PATIENCE_NS
    return due_ns + (PATIENCE_NS if due_ns < now_ns else 0)
