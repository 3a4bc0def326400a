"""What waits and what runs, by class and tenant: the part of it that comes before a new request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from inference.core import Priority
from inference.engine.fairness import Shares
from inference.request import Request


@dataclass(slots=True)
class Queue:
    """Requests of one class and tenant. `tokens` are those of the prompts that wait and were not cached when they
    came."""

    waiting: int = 0
    tokens: int = 0
    running: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.running)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is computed before a new request, or beside it while its prompt is read.

    `waiting` is a share of requests: how many of others' come first depends on how much each tenant was served.
    `prompts` are the tokens that running requests of its class or a higher one have left to read; `answers` how many
    tokens each of those that keep their slots has said, and how many it may say at most.
    """

    waiting: float = 0.0
    tokens: float = 0.0
    running: int = 0
    prompts: tuple[int, ...] = ()
    answers: tuple[tuple[int, int], ...] = ()


class Load:
    """The event loop adds, the engine's thread moves and removes: each request a few times, never for a token.

    A forecast looks at the tenants that are present, of which there are no more than places.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._lock = Lock()
        self._queues: dict[Priority, dict[str, Queue]] = {priority: {} for priority in Priority}
        self._waiting: dict[Request, int] = {}  # tokens of its prompt that were not cached
        self._reading: dict[Request, int] = {}  # of those that have a slot: tokens of the prompt that are left
        self._tokens = 0  # of whole prompts that wait
        self._tokens_of: dict[str, int] = {}

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

    def waiting_of(self, tenant: str) -> int:
        return sum(queues[tenant].waiting for queues in self._queues.values() if tenant in queues)

    def running_of(self, tenant: str) -> int:
        return sum(queues[tenant].running for queues in self._queues.values() if tenant in queues)

    def tokens_of(self, tenant: str) -> int:
        return self._tokens_of.get(tenant, 0)

    def add(self, request: Request, uncached: int) -> None:
        with self._lock:
            self._wait(request, uncached)

    def place(self, request: Request) -> None:
        """It has a slot now."""
        with self._lock:
            if request in self._waiting:
                self._stop_waiting(request)
                self._reading[request] = request.remaining
                with self._queue(request) as queue:
                    queue.running += 1

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

    def ahead(self, priority: Priority, tenant: str, answer: float, *, others: bool = True) -> Ahead:
        """What comes before a new request, if answers have so many tokens.

        Before it are all of a higher class, those of its own tenant, and of each other tenant what that is behind it
        in service. `others`: without them, it is what its own tenant has brought about.
        """
        with self._lock:
            own = self._queues[priority].get(tenant) or Queue()
            mine = self._shares.served(tenant) + own.tokens + own.waiting * answer
            waiting, tokens, running = 0.0, 0.0, 0
            for level in (each for each in Priority if each <= priority):
                for name, queue in self._queues[level].items():
                    if name != tenant and not others:
                        continue
                    share = 1.0
                    if level == priority and name != tenant and queue.waiting:
                        work = queue.tokens + queue.waiting * answer
                        # One more than the difference: at the same service, who came first goes first.
                        credit = mine - self._shares.served(name) + work / queue.waiting
                        share = min(1.0, max(0.0, credit / work)) if work else 1.0
                    waiting += share * queue.waiting
                    tokens += share * queue.tokens
                    running += queue.running
            if priority < Priority.BATCH and others:
                running += sum(request.keeps_slot for request in self._reading)
            reading = tuple(
                left
                for request, left in self._reading.items()
                if left and request.priority <= priority and (others or request.scope.tenant == tenant)
            )
            answers = tuple(
                (len(request.generated), request.max_tokens)
                for request in self._reading
                if request.priority <= priority or request.keeps_slot
            )
        return Ahead(waiting, tokens, running, reading, answers)

    def _wait(self, request: Request, uncached: int) -> None:
        self._waiting[request] = uncached
        with self._queue(request) as queue:
            queue.waiting += 1
            queue.tokens += uncached
        self._hold(request, len(request.prompt))

    def _stop_waiting(self, request: Request) -> None:
        uncached = self._waiting.pop(request)
        with self._queue(request) as queue:
            queue.waiting -= 1
            queue.tokens -= uncached
        self._hold(request, -len(request.prompt))

    def _stop_running(self, request: Request) -> None:
        del self._reading[request]
        with self._queue(request) as queue:
            queue.running -= 1

    def _hold(self, request: Request, tokens: int) -> None:
        tenant = request.scope.tenant
        self._tokens += tokens
        self._tokens_of[tenant] = self._tokens_of.get(tenant, 0) + tokens
        if not self._tokens_of[tenant]:
            del self._tokens_of[tenant]

    @contextmanager
    def _queue(self, request: Request) -> Iterator[Queue]:
        queues, tenant = self._queues[request.priority], request.scope.tenant
        queue = queues.setdefault(tenant, Queue())
        yield queue
        if queue.is_empty:
            del queues[tenant]
