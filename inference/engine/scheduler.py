"""The scheduler: which tokens of which requests are computed in the next step.

Continuous batching with chunked prefill (Orca, OSDI '22; Sarathi-Serve, arXiv 2403.02310): every stream in decode gets
its row in every step, and prompts are prefilled beside them in chunks small enough not to be noticed. There are two
exceptions: batch requests pause while a more urgent prompt is prefilled, and where rows are expensive, the rows of a
tenant with many requests pause while a tenant with few has its turn. Pure: no clock, no I/O, no model. The engine
executes a plan and reports the outcome.

Order: the higher priority class first, then the least served tenant, then the earliest due first token; requests that
are already late let others pass for a while. A higher class preempts a lower one, which is queued again and loses only
time. To prevent starvation, a batch request that has waited long gets a slot ahead of the higher classes, one at a
time. A request that shares a prefix with one in prefill waits for that prefix, unless the other belongs to a lower
class: that one is preempted, and the new request continues from what it has computed, at its own priority.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from operator import attrgetter

from inference.config import EngineConfig
from inference.engine.fairness import RowFairness, Share, Shares, in_turns
from inference.engine.load import Load, admit_by_ns, next_starved
from inference.engine.step import PREFILL_CHUNKS, Chunks, Plan, StepCost, Work, whole
from inference.generation import Priority
from inference.kvcache.checkpoints import CHECKPOINT_SHARE, Checkpoints
from inference.kvcache.host_cache import HostCache
from inference.kvcache.radix import SharedPrefixes
from inference.kvcache.slots import Placement, Slots
from inference.request import Request

# Waiting requests considered per step: each may have to wait for a prefix that another one computes.
CANDIDATES_MAX = 32
# Batch requests pause for at most this many consecutive steps: a steady flow of more urgent prompts must not stop them
# for good.
YIELDS_MAX = 16
# A more urgent request waits for the step in progress. If one ran less than URGENT_NS ago, the next one is to be
# expected: then a step of nothing but batch requests takes at most this long, or twice what it takes without prefill.
BATCH_STEP_S = 0.025
# A prefill ahead may take longer steps: its own prompt is to be expected as well, and short steps take longer in all.
AHEAD_STEP_S = 0.1
URGENT_NS = 10 * 10**9
# Rows are cheap if a step with all places taken takes at most this many times as long as one with half of them.
CHEAP_ROWS = 1.1
# Of fewer new tokens, a prefix is not worth prefilling ahead: that step may still be running when the prompt itself
# arrives. "Hi" has seven with the markup behind it, all of which a draft that stands still saves. Five are the markup
# between an answer and the next question, which costs that question's own step less than a step of their own.
AHEAD_TOKENS_MIN = 6


class Scheduler:
    def __init__(self, config: EngineConfig, *, rewinds: bool = True, streams: bool = True) -> None:
        self._config = config
        self.shared_prefixes = SharedPrefixes()
        checkpoint_bytes = 0 if rewinds else int(CHECKPOINT_SHARE * config.parked_bytes_max)
        self.slots = Slots(
            config.slots,
            parked=HostCache(config.parked_bytes_max - checkpoint_bytes, self.shared_prefixes),
            checkpoints=Checkpoints(checkpoint_bytes, self.shared_prefixes),
            shared_prefixes=self.shared_prefixes,
            rewinds=rewinds,
            streams=streams,
        )
        self.cost = StepCost()
        self.chunks = Chunks(config, self.cost, streams=streams)
        self._outputs_max, self._running_max = config.outputs_max, config.parallel + config.guests
        self._shares = Shares()
        self._turns = RowFairness(config.inter_token_target_s)
        self.load = Load(self._shares)
        self._waiting: list[Request] = []  # in order of arrival
        self._running: list[Request] = []  # in order of admission
        self._began_ns = self._ended_ns = 0  # start and end of the latest step; end 0 if none follows at once
        self._ends_ns = 0  # predicted end of the running step; 0 if none is running
        self._yielded = 0  # consecutive steps in which batch requests paused
        self._urgent_ns: int | None = None  # when something other than batch requests ran last

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def running_requests(self) -> Sequence[Request]:
        return tuple(self._running)

    @property
    def can_compute(self) -> bool:
        """Whether a running request does not wait for a picture."""
        return any(not request.awaits_encoder for request in self._running)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def requests(self) -> list[Request]:
        """A copy: the event loop reads it while the engine's thread adds and removes requests."""
        return [*self._running, *self._waiting]

    def add(self, request: Request) -> None:
        self._waiting.append(request)
        self._shares.join(request.scope.tenant)

    def superseded(self, request: Request) -> list[Request]:
        """The requests that a new one makes redundant: speculative prefills (`Request.ahead`) of its own prefix, which
        it continues from; and the new one itself, if it is such a prefill of what is already cached."""
        if request.ahead and self.slots.uncached(request.prompt, request.scope) < AHEAD_TOKENS_MIN:
            return [request]
        others = [other for other in self.requests if other.ahead and other.scope == request.scope]
        shorter = [other for other in others if other is not request]
        return [other for other in shorter if other.prompt == request.prompt[: len(other.prompt)]]

    def remove(self, request: Request) -> None:
        """Remove a finished or cancelled request; what it computed stays resident."""
        (self._waiting if request.slot is None else self._running).remove(request)
        self._shares.leave(request.scope.tenant)
        if request.slot is not None:
            self.slots.release(request.slot, request.kept)

    def admit(self, now_ns: int = 0) -> Plan:
        """The next step, to which requests are admitted. They are placed, and answers begin that need no step, before
        it is filled with `work`."""
        plan = Plan()
        if not self._waiting:
            return plan
        if (starved := next_starved(self._waiting, self._running, now_ns)) is not None:
            starved.keeps_slot = True
        for request in islice(self._ranked(now_ns), CANDIDATES_MAX):
            is_free, displaceable = self._room_for(request)
            if not (is_free or displaceable):
                # A starved request gets the next slot that becomes free; others may displace requests meanwhile.
                if request.keeps_slot or self._shares.tenants > 1:
                    continue
                break
            prefix_owners = self._prefix_owners(request)
            if any(owner not in displaceable for owner in prefix_owners):
                continue
            if prefix_owners or not is_free:
                self._preempt(plan, prefix_owners or displaceable)
            self._place(plan, request)
        return plan

    def fill(self, plan: Plan, now_ns: int = 0) -> Plan:
        """Add the work of the step: a row for every stream, then as many prompt tokens as fit beside them."""
        streams, prefilling = [], []
        computing, within_s = self._in_turn(self._computing())
        for request in computing:
            if request.decodes:
                streams.append(request)
                assert request.slot is not None
                plan.work.append(Work(request.slot, request.computed, request.generated[-1:], request=request))
            else:
                prefilling.append(request)
        outputs = self._outputs_max - len(computing)
        if prefilling:
            within_s = min(within_s, self._batch_step_s(computing, now_ns))
        for request, tokens in self.chunks.divided(streams, prefilling, within_s, now_ns):
            if request.is_unscored:
                tokens = whole(request, min(tokens, max(0, outputs)))
                outputs -= tokens
            if tokens:
                self._take(plan, request, tokens)
        plan.work.sort(key=attrgetter("slot"))
        return plan

    def _batch_step_s(self, computing: Sequence[Request], now_ns: int) -> float:
        """The most seconds for a step of nothing but batch requests, while more urgent ones are to be expected."""
        if any(r.priority < Priority.BATCH for r in computing):
            self._urgent_ns = now_ns
        elif self._urgent_ns is not None and now_ns - self._urgent_ns < URGENT_NS:
            return AHEAD_STEP_S if any(r.ahead for r in computing) else BATCH_STEP_S
        return inf

    def _computing(self) -> list[Request]:
        """The requests that take part in the next step. While a more urgent prompt is in prefill, batch requests pause,
        except one that keeps its slot."""
        urgent_prefill = any(request.priority < Priority.BATCH and not request.decodes for request in self._running)
        self._yielded = self._yielded + 1 if urgent_prefill and self._yielded < YIELDS_MAX else 0
        ready = [request for request in self._running if not (request.pictures and request.awaits_encoder)]
        if not self._yielded:
            return ready
        return [r for r in ready if r.priority < Priority.BATCH or r.keeps_slot]

    def _in_turn(self, computing: list[Request]) -> tuple[list[Request], float]:
        """The requests that get the next step to themselves, or else all; and the most seconds it may take."""
        if max(self._shares.tenants, len(self._turns)) < 2 or self._rows_are_cheap:
            return computing, inf
        urgent = min((r.priority for r in computing), default=None)
        by_tenant: defaultdict[str, list[Request]] = defaultdict(list)
        for request in computing:
            if request.priority is urgent:
                by_tenant[request.scope.tenant].append(request)
        due_s = self._turns.due_s({tenant: self._share(tenant, theirs) for tenant, theirs in by_tenant.items()})
        if not due_s:
            return computing, inf
        return [r for r in computing if r.priority is urgent and r.scope.tenant in due_s], min(due_s.values())

    def _share(self, tenant: str, requests: Sequence[Request]) -> Share:
        streams = sum(r.decodes for r in requests)
        chunk = PREFILL_CHUNKS[-1] if streams < len(requests) else 0
        return Share(self._shares.present(tenant), self.cost.predict(streams + chunk) or inf)

    def begin(self, plan: Plan, now_ns: int) -> None:
        """Record that the step has started."""
        if self._ended_ns:
            self.cost.observe_between((now_ns - self._ended_ns) / 1e9)
        self._began_ns = now_ns
        self._ends_ns = now_ns + int((self.cost.predict(plan.rows) or 0.0) * 1e9) if plan.work else 0

    def rest_s(self, now_ns: int) -> float:
        """Predicted seconds until the running step ends."""
        return max(0.0, (self._ends_ns - now_ns) / 1e9)

    def record_step(self, plan: Plan, seconds: float) -> None:
        """Record that the step has ended, `seconds` after it started."""
        self._ends_ns = 0
        self._ended_ns = 0 if self.idle else self._began_ns + int(seconds * 1e9)
        if len(self._turns) < 2:
            return
        rows: Counter[str] = Counter()
        for work in plan.work:
            rows[work.request.scope.tenant] += len(work.tokens)
        self._turns.charge(seconds, rows)

    def restart_prefill(self, request: Request, placement: Placement) -> None:
        """Let a request prefill from the start: the slot it was just placed in turned out to be empty."""
        self.slots.restart(placement.slot)
        request.computed = 0
        if request.miss is placement.miss:  # its first placement: nothing was cached after all
            request.cached_tokens, request.miss = 0, self.slots.lost(request.prompt, request.scope)

    def computed(self, done: Sequence[Work]) -> None:
        """Record that this work is in the KV cache. Drafted tokens are left out: they count once accepted."""
        for work in done:
            self.advance(work.request, len(work.tokens) - max(0, work.sampled - 1))

    def advance(self, request: Request, tokens: int) -> None:
        """Record that this many more tokens of a request are in the KV cache."""
        assert request.slot is not None
        request.computed += tokens
        self.slots.advance(request.slot, tokens)
        self._shares.charge(request.scope.tenant, tokens)

    def queue_position(self, request: Request, now_ns: int) -> int:
        """Position of a request in the queue, from 1. The event loop calls it too: a request that is still in the
        engine's inbox counts as last."""
        ranked = list(self._ranked(now_ns))
        return ranked.index(request) + 1 if request in ranked else len(ranked) + 1

    def _room_for(self, request: Request) -> tuple[bool, list[Request]]:
        """Whether a slot is free for a waiting request, and the running requests that it may displace."""
        lower = [r for r in self._running if r.priority > request.priority and not r.keeps_slot]
        is_free = self.running < self._config.parallel
        if is_free or lower:
            return is_free, lower
        over_share = self._over_share(request)
        if over_share and not self._rows_are_cheap:
            return self.running < self._running_max, []
        return False, [r for r in over_share if not (r.preempted or r.keeps_slot)]

    def gets_slot(self, tenant: str, own: int) -> bool:
        """Whether the next request of a tenant, behind `own` of its own, gets a slot although all are taken, because
        another tenant holds more than its share of them: that of a running request where rows are cheap, or else one
        beyond `parallel`."""
        share = self._shares.place_share(self._config.parallel, newcomers=int(not self._shares.present(tenant)))
        over_share = self.load.holding_more_than(share)
        if own >= share or not any(self._shares.gives_way(other, to=tenant) for other in over_share):
            return False
        ahead = self.load.total.running + self.load.held_by(tenant).waiting
        return self._rows_are_cheap or ahead < self._running_max

    def _over_share(self, request: Request) -> list[Request]:
        """The running requests of the same class whose tenants hold more than their share of slots, if this request's
        tenant holds less and demands less. Where rows are cheap, one of them is displaced, each at most once, so that
        its client waits for a slot only once more. Where they are expensive, `_in_turn` divides the time, and one more
        row slows the others little, while a displaced prompt may have to be prefilled again."""
        if self._shares.tenants < 2 or request.ahead:
            return []
        share, held = self._shares.place_share(self._config.parallel), Counter(r.scope.tenant for r in self._running)
        if held[request.scope.tenant] >= share:
            return []
        return [r for r in self._running if self._gives_way(r, request) and held[r.scope.tenant] > share]

    def _gives_way(self, running: Request, to: Request) -> bool:
        same_class = running.priority is to.priority
        return same_class and self._shares.gives_way(running.scope.tenant, to=to.scope.tenant)

    @property
    def _rows_are_cheap(self) -> bool:
        places = self._config.parallel
        half_s, full_s = self.cost.predict(max(1, places // 2)), self.cost.predict(places)
        return half_s is not None and full_s is not None and full_s <= CHEAP_ROWS * half_s

    def _ranked(self, now_ns: int) -> Iterator[Request]:
        """The waiting requests in order of admission."""
        if (starved := next_starved(self._waiting, self._running, now_ns)) is not None:
            yield starved
        all_waiting = [r for r in list(self._waiting) if r is not starved and r.slot is None]
        for priority in sorted({request.priority for request in all_waiting}):
            waiting = [r for r in all_waiting if r.priority is priority]
            waiting.sort(key=lambda r: admit_by_ns(r, now_ns))
            yield from in_turns(waiting, lambda r: r.scope.tenant, self._shares.served, lambda r: r.remaining)

    def _prefix_owners(self, request: Request) -> list[Request]:
        """The running requests that are computing a prefix of this one."""
        slots = self.slots.prefix_owners(
            request.reusable, request.scope, recomputed=request.recomputed, answers=request.begins
        )
        return [r for r in self._running if r.slot in slots]

    def _place(self, plan: Plan, request: Request) -> None:
        placement = self.slots.place(
            request.reusable,
            request.scope,
            recomputed=request.recomputed,
            ahead=request.ahead,
            boundaries=request.boundaries,
            answers=request.begins,
        )
        assert placement is not None, "fewer requests run than there are slots"
        self._waiting.remove(request)
        self._running.append(request)
        if request.miss is None:
            request.cached_tokens = min(placement.reused, len(request.prompt))  # it may also hold some of its answer
            request.miss = placement.miss
        request.slot, request.computed = placement.slot, placement.reused
        request.boundaries = self.slots[placement.slot].boundaries
        self.load.moved(request)
        plan.placements.append((request, placement))

    def _preempt(self, plan: Plan, lower: Sequence[Request]) -> None:
        """Preempt the youngest request of the lowest class and queue it again, ahead of all others. Exact requests are
        preempted last: they would have to decode their answer again, token by token."""
        victim = max(reversed(lower), key=lambda r: (r.priority, not r.exact, not r.generated))
        assert victim.slot is not None
        self.slots.release(victim.slot, victim.kept)
        victim.slot, victim.computed, victim.preempted = None, 0, True
        self._running.remove(victim)
        self._waiting.insert(0, victim)
        self.load.moved(victim)
        plan.preempted += 1

    def _take(self, plan: Plan, request: Request, tokens: int) -> None:
        assert request.slot is not None
        chunk = request.uncomputed[:tokens]
        request.to_prefill = max(0, request.to_prefill - len(chunk))
        sampled, apart = int(len(chunk) == request.remaining), request.exact and len(chunk) > 1
        scored = len(chunk) - sampled if request.is_unscored else 0
        work = Work(request.slot, request.computed, chunk, scored + sampled, apart, request=request, scored=scored)
        if (picture := request.current_picture) is not None:
            begin, embeddings = request.computed - picture.start, request.embeddings[picture.start]
            work.embeddings = replace(embeddings, rows=embeddings.rows[begin : begin + len(chunk)])
            work.apart = True
        plan.prefills = True
        plan.work.append(work)
