"""What waits and what runs, by class and tenant: the part of it that comes before a new request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock

from inference.core import Priority
from inference.engine.fairness import Shares
from inference.engine.queue_simulation import Ahead, RequestAhead
from inference.request import Request

# How long a request that is late, or due at no time, lets those pass that can be in time: longer than any target, and
# short enough that nobody gives up.
PATIENCE_NS = 10 * 10**9

# After so long a request that nobody waits for gets a slot, one such request at a time: a slot of eight then costs the
# others an eighth of their places.
FLOOR_NS = 30 * 10**9


@dataclass(slots=True)
class Held:
    """What a tenant has in the engine: requests, and tokens of whole prompts that wait."""

    waiting: int = 0
    running: int = 0
    tokens: int = 0


class Load:
    """The event loop adds, the engine's thread moves and removes: each request a few times, never for a token.

    A forecast looks at all requests that are present, of which there are no more than places.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._lock = Lock()
        self._held: dict[str, Held] = {}
        self._waiting: dict[Request, int] = {}  # tokens of its prompt that were not cached
        self._reading: dict[Request, int] = {}  # of those that have a slot: tokens of the prompt that are left
        self._tokens = 0  # of whole prompts that wait
        self.changes = 0  # of what waits and what runs, so that a forecast can tell whether it is still that of now

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._reading)

    @property
    def tokens(self) -> int:
        """Of the prompts that wait, cached or not: they are held in memory."""
        return self._tokens

    def held_by(self, tenant: str) -> Held:
        return self._held.get(tenant) or Held()

    def is_all_of(self, tenant: str) -> bool:
        """Whether nobody else has anything here."""
        return len(self._held) == 1 and tenant in self._held

    def holding_more_than(self, places: int) -> list[str]:
        """Tenants of which more requests run."""
        return [tenant for tenant, held in list(self._held.items()) if held.running > places]

    def add(self, request: Request, unread: int) -> None:
        with self._lock:
            self._wait(request, unread)

    def place(self, request: Request) -> None:
        """It has a slot now."""
        with self._lock:
            if request in self._waiting:
                self._stop_waiting(request)
                self._reading[request] = request.remaining
                self._count(request, running=1)

    def preempt(self, request: Request) -> None:
        """It has lost its slot."""
        with self._lock:
            if request in self._reading:
                self._stop_running(request)
                self._wait(request, request.remaining)

    def read(self, request: Request, tokens: int) -> None:
        """The next step reads so many tokens of its prompt."""
        left = self._reading.get(request)
        if left is not None:
            self._reading[request] = max(0, left - tokens)

    def remove(self, request: Request) -> None:
        """It has ended. Nothing happens with one that was not added."""
        with self._lock:
            if request in self._waiting:
                self._stop_waiting(request)
            elif request in self._reading:
                self._stop_running(request)

    def ahead(
        self, priority: Priority, tenant: str, due_ns: int | None, now_ns: int, answer: float, *, others: bool = True
    ) -> Ahead:
        """Who comes before a newcomer that is due then, if answers have so many tokens.

        Before it are all of a higher class, those of its own tenant that are due no later, and of each other tenant
        what that is behind it in service. `others`: without them, it is what its own tenant has brought about.
        """
        with self._lock:
            waiting, running = list(self._waiting.items()), list(self._reading.items())
        by_ns = _by_ns(due_ns, now_ns, now_ns)
        starved, held = _kept(waiting, running, now_ns)
        higher, same = list[tuple[float, RequestAhead]](), defaultdict[str, list[tuple[float, RequestAhead]]](list)
        for request, unread in waiting:
            if request is starved and others and priority < Priority.BATCH:
                higher.append((-1, RequestAhead(len(request.generated), request.max_tokens, unread)))
            if request.priority > priority or not (others or request.scope.tenant == tenant):
                continue
            place = RequestAhead(len(request.generated), request.max_tokens, unread)
            if request.priority < priority:
                higher.append((request.priority, place))
            elif request.scope.tenant != tenant or placed_by_ns(request, now_ns) <= by_ns:
                same[request.scope.tenant].append((unread + answer, place))
        mine = self._shares.joining(tenant) + sum([work for work, _ in same[tenant]])
        line = list[tuple[float, RequestAhead]]()
        for name, places in same.items():
            served: float = self._shares.served(name)
            for work, place in places:
                if served > mine:
                    break
                line.append((served, place))
                served += work
        places = [
            (request.scope.tenant == tenant, RequestAhead(len(request.generated), request.max_tokens, unread))
            for request, unread in running
            if (not held if request.keeps_slot else request.priority <= priority)
        ]
        return Ahead(
            [place for own, place in places if own or others],
            [place for _, place in [*sorted(higher, key=_first), *sorted(line, key=_first)]],
            sum(int(own) for own, _ in places) + len(same[tenant]),
            held if others else 0,
        )

    def _wait(self, request: Request, unread: int) -> None:
        self._waiting[request] = unread
        self._count(request, waiting=1, tokens=len(request.prompt))

    def _stop_waiting(self, request: Request) -> None:
        del self._waiting[request]
        self._count(request, waiting=-1, tokens=-len(request.prompt))

    def _stop_running(self, request: Request) -> None:
        del self._reading[request]
        self._count(request, running=-1)

    def _count(self, request: Request, *, waiting: int = 0, running: int = 0, tokens: int = 0) -> None:
        held = self._held.setdefault(request.scope.tenant, Held())
        held.waiting += waiting
        held.running += running
        held.tokens += tokens
        self._tokens += tokens
        self.changes += 1
        if not (held.waiting or held.running):
            del self._held[request.scope.tenant]


_first = itemgetter(0)


def placed_by_ns(request: Request, now_ns: int) -> int:
    """By when a request that waits is to have its place: among those of its tenant, the first of them goes first."""
    if request.generated:  # it was preempted: its reader waits in the middle of a sentence
        return 0
    return _by_ns(request.due_ns, request.stamps.submitted_ns, now_ns)


def _kept(
    waiting: Sequence[tuple[Request, int]], running: Sequence[tuple[Request, int]], now_ns: int
) -> tuple[Request | None, int]:
    """Of the place that one of the lowest class gets after FLOOR_NS: who goes first for it, or whether the next one has
    it after the one that does."""
    batch = Priority.BATCH
    starved = [request for request, _ in waiting if request.priority is batch and is_starved(request, now_ns)]
    if any(request.keeps_slot for request, _ in running):
        return None, int(bool(starved))
    return min(starved, key=lambda request: request.stamps.submitted_ns, default=None), 0


def is_starved(request: Request, now_ns: int) -> bool:
    """Whether one that waits, and that nobody waits for, has done so for too long."""
    return request.priority is Priority.BATCH and now_ns - request.stamps.submitted_ns >= FLOOR_NS


def _by_ns(due_ns: int | None, submitted_ns: int, now_ns: int) -> int:
    if due_ns is None:
        return submitted_ns + PATIENCE_NS
    return due_ns + (PATIENCE_NS if due_ns < now_ns else 0)
