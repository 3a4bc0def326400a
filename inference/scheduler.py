"""The scheduler: which tokens of which requests are computed in the next step.

Continuous batching with chunked prefill (Orca, OSDI '22; Sarathi-Serve, arXiv 2403.02310): every running stream gets
its row in every step, and prompts are computed beside them in bites small enough not to be felt. Pure: no clock, no
I/O, no model. The engine carries out a plan and says what came of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.config import EngineConfig
from inference.parked import Parked
from inference.request import Phase, Request
from inference.slots import Placement, Slots


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of one request to compute now; `output` when they end where a token is to be drawn."""

    request: Request
    slot: int
    position: int
    tokens: Sequence[int]
    output: bool


@dataclass(slots=True)
class Plan:
    """First place the new requests, then compute the work, sorted by slot."""

    placements: list[tuple[Request, Placement]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


class Scheduler:
    def __init__(self, config: EngineConfig, *, rewinds: bool = True) -> None:
        self._config = config
        self.slots = Slots(config.slots, parked=Parked(config.parked_bytes_max), rewinds=rewinds)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # in order of admission

    def __repr__(self) -> str:
        return f"<Scheduler {self.waiting} waiting | {self.running} running | {self.slots!r}>"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def requests(self) -> list[Request]:
        return [*self._running, *self._waiting]

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def remove(self, request: Request) -> None:
        """Take a finished or cancelled request out; what it computed stays resident."""
        if request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        if request.slot is not None:
            self.slots.release(request.slot, request.held)

    def plan(self) -> Plan:
        """The next step: a row for every stream, then prompts, oldest first, as far as the budget goes."""
        plan = Plan()
        decoding = [r for r in self._running if r.phase is Phase.DECODE]
        for request in decoding:
            self._take(plan, request, 1)
        config = self._config
        budget = config.prefill_tokens_beside_streams if decoding else config.prefill_tokens_alone
        for request in [r for r in self._running if r.phase is Phase.PREFILL]:
            budget -= self._take(plan, request, budget)
        while budget > 0 and self._waiting and len(self._running) < config.parallel:
            if not self._admit(plan, self._waiting[0]):
                break
            budget -= self._take(plan, self._running[-1], budget)
        plan.work.sort(key=lambda work: work.slot)
        return plan

    def computed(self, plan: Plan) -> None:
        """The plan's work is in the cache now."""
        for work in plan.work:
            work.request.computed += len(work.tokens)
            self.slots.advance(work.slot, len(work.tokens))

    def _admit(self, plan: Plan, request: Request) -> bool:
        placement = self.slots.place(request.prompt, request.salt)
        if placement is None:
            return False
        self._waiting.popleft()
        self._running.append(request)
        request.slot = placement.slot
        request.reused = request.computed = placement.reused
        plan.placements.append((request, placement))
        return True

    @staticmethod
    def _take(plan: Plan, request: Request, budget: int) -> int:
        """Plan up to `budget` of a request's tokens; returns how many."""
        rest = request.uncomputed
        tokens = rest[: max(0, budget)]
        if tokens and request.slot is not None:
            plan.work.append(Work(request, request.slot, request.computed, tokens, output=len(tokens) == len(rest)))
        return len(tokens)
