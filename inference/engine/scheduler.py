"""The scheduler: which tokens of which requests are computed in the next step.

Continuous batching with chunked prefill (Orca, OSDI '22; Sarathi-Serve, arXiv 2403.02310): every running stream gets
its row in every step, and prompts are computed next to them in chunks small enough not to be felt. Only those that
nobody waits for stand still while somebody's prompt is read; and where rows are dear, those of a tenant with many
requests while one with few has its turn. Pure: no clock, no I/O, no model. The engine carries out a plan and says what
came of it.

Who goes first: the higher class, then the tenant that was served least, then the one whose first token is due first;
what is late already lets others pass for a while. A higher class takes the place of a lower one, which waits again and
loses nothing but time. What waits in the lowest class for long gets one slot, so that it is never starved. Who begins
with what another request is computing waits for it, but not for a lower class: that one's work continues at the new
request's pace and in its name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from operator import attrgetter

from inference.config import EngineConfig
from inference.core import Priority
from inference.engine.fairness import Shares, in_turns
from inference.engine.load import Load, is_starved, placed_by_ns
from inference.engine.row_fairness import RowFairness, Share
from inference.engine.step_cost import StepCost
from inference.kvcache.host_cache import HostCache
from inference.kvcache.shared_prefixes import SharedPrefixes
from inference.kvcache.slots import Placement, Slots
from inference.request import EXACT_ROWS_MIN, Phase, Request

# Chunks of prompt beside streams, largest first. Multiples of 16 suit the matrix kernels; the smallest is taken however
# long it takes, because a prompt must get on.
PREFILL_CHUNKS = tuple(range(512, 0, -16))
# A step with a chunk may take this many times as long as without, where that is more than the target: on a slow machine
# no chunk fits the target, and tiny ones would slow the streams for much longer and the new request down to a crawl.
# Five sixths of the time are then the new request's, who waits a fifth longer than with the machine to itself.
STRETCH_MAX = 6.0
# Beside a stream that has fallen behind its own pace, a step with a chunk takes no more than this many times as long.
BEHIND_STRETCH = 2.0
# Or this share of the time that the prompts under way take. The more tokens precede a chunk, the less its cost
# depends on its size: a strict bound would make a long prompt take half as long again.
PROMPT_SHARE = 1 / 32
# But no more than this many times the bound: no prompt, however long, may stop the others' answers for seconds.
LONGER_MAX = 4.0
# Prompts of different lengths are computed part by part: the prefixes together, then what the longer ones have more.
# A part of few rows costs two or three times as much a row, so no prompt gets so few tokens of its own.
MIN_CHUNK = 16
# Waiting requests that are looked at in one step: each may have to wait for a prefix that another one computes.
CANDIDATES_MAX = 32
# While a prompt that somebody waits for is read, those that nobody waits for stand still, for so many steps in a row:
# a higher class that keeps on reading must not stop them for good.
YIELDS_MAX = 16
# Rows are cheap where a step with all places taken takes no longer than this many times one with half of them.
CHEAP_ROWS = 1.1
# Fewer tokens are not worth reading ahead: the step that computes them may still run when the prompt itself arrives.
AHEAD_TOKENS_MIN = 64


@dataclass(slots=True)  # not frozen, which takes three times as long to make: one is made for each token
class Work:
    """Tokens of one request to compute now. `outputs` is 1 when they end where a token is to be sampled; with a draft
    behind the newest token there is one for each drafted token more. `forced`: the draft is what a grammar leaves no
    choice of.

    `apart`: a prompt of an exact request, see EXACT_ROWS_MIN. Rows of one stream are cut to fit those of the others.
    """

    request: Request
    slot: int
    position: int
    tokens: Sequence[int]
    outputs: int
    apart: bool = False
    forced: bool = False

    @property
    def draft(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.outputs + 1 :] if self.outputs > 1 else ()

    def with_draft(self, draft: Sequence[int], *, forced: bool = False) -> Work:
        return replace(self, tokens=[*self.tokens, *draft], outputs=1 + len(draft), forced=forced)


@dataclass(slots=True)
class Plan:
    """First place the requests, then compute the work, which is sorted by slot."""

    placements: list[tuple[Request, Placement]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    preempted: int = 0

    @property
    def decodes_only(self) -> bool:
        """No prompt is in the step."""
        return all(work.request.phase is Phase.DECODE for work in self.work)

    @property
    def rows(self) -> int:
        return sum(len(work.tokens) for work in self.work)

    def cost_follows_rows(self, *, parted: bool) -> bool:
        """Whether its time tells of other steps of as many rows: drafts of different lengths fall into parts of their
        own (see inference.speculative.draft_length.step_parts) where slots have KV streams of their own."""
        return not parted or len({work.outputs or 1 for work in self.work}) == 1


class Scheduler:
    def __init__(self, config: EngineConfig, *, rewinds: bool = True, streams: bool = True) -> None:
        self._config = config
        self.shared_prefixes = SharedPrefixes()
        parked = HostCache(config.parked_bytes_max, self.shared_prefixes)
        self.slots = Slots(
            config.slots, parked=parked, shared_prefixes=self.shared_prefixes, rewinds=rewinds, streams=streams
        )
        self.cost = StepCost()
        alone = config.prefill_tokens_alone
        self._chunks = [chunk for chunk in PREFILL_CHUNKS if chunk <= alone] or [alone]
        self._shares = Shares()
        self._turns = RowFairness(config.inter_token_target_s)
        self.load = Load(self._shares)
        self._waiting: list[Request] = []  # in order of arrival
        self._running: list[Request] = []  # in order of admission
        self._began_ns = self._ended_ns = 0  # of the newest step; it has not ended where nothing follows it
        self._ends_ns = 0  # of the step under way; 0: there is none
        self._yielded = 0  # steps in a row in which the lowest class stood still

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
        """A copy: the event loop reads it too, while the engine's thread adds and removes."""
        return [*self._running, *self._waiting]

    def add(self, request: Request) -> None:
        self._waiting.append(request)
        self._shares.join(request.scope.tenant)

    def superseded(self, request: Request) -> list[Request]:
        """Which prefills ahead end now that this request has arrived: of its own prefix, as it continues from there;
        and the request itself, if it only reads ahead what others have read."""
        if request.ahead:
            needless = self.slots.uncached(request.prompt, request.scope) < AHEAD_TOKENS_MIN
            return [request] if needless else []
        ahead = [other for other in self.requests if other.ahead and other.scope == request.scope]
        return [other for other in ahead if other.prompt == request.prompt[: len(other.prompt)]]

    def remove(self, request: Request) -> None:
        """Take a finished or cancelled request out; what it computed stays resident."""
        (self._waiting if request.slot is None else self._running).remove(request)
        self._shares.leave(request.scope.tenant)
        if request.slot is not None:
            self.slots.release(request.slot, request.kept)

    def plan(self, now_ns: int = 0) -> Plan:
        """The next step: a row for every stream, then as much of the prompts as fits next to them."""
        plan = Plan()
        self._admit(plan, now_ns)
        streams, prefilling = [], []
        computing, within_s = self._in_turn(self._computing())
        for request in computing:
            if request.decodes:
                streams.append(request)
                assert request.slot is not None
                plan.work.append(Work(request, request.slot, request.computed, request.generated[-1:], outputs=1))
            else:
                prefilling.append(request)
        if prefilling:
            new = sum(len(r.prompt) - r.reused for r in prefilling)
            chunk = self.prefill_chunk(len(streams), new, min(within_s, self._patience_s(streams, now_ns)))
            for request, tokens in divide(chunk, prefilling):
                self._take(plan, request, tokens)
        plan.work.sort(key=attrgetter("slot"))
        return plan

    def _computing(self) -> list[Request]:
        """Those that take part in the next step: while somebody waits for a first token, not those that nobody waits
        for, but for one that keeps its slot."""
        reading = any(not request.decodes and request.priority < Priority.BATCH for request in self._running)
        self._yielded = self._yielded + 1 if reading and self._yielded < YIELDS_MAX else 0
        if not self._yielded:
            return self._running
        return [r for r in self._running if r.priority is not Priority.BATCH or r.keeps_slot]

    def _in_turn(self, computing: list[Request]) -> tuple[list[Request], float]:
        """Those of them that have the next step to themselves, or all; and how long it may take."""
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
        """The step is under way."""
        if self._ended_ns:
            self.cost.observe_between((now_ns - self._ended_ns) / 1e9)
        self._began_ns = now_ns
        self._ends_ns = now_ns + int((self.cost.predict(plan.rows) or 0.0) * 1e9) if plan.work else 0

    def rest_s(self, now_ns: int) -> float:
        """Of the step under way, as long as such steps usually take."""
        return max(0.0, (self._ends_ns - now_ns) / 1e9)

    def record_step(self, plan: Plan, seconds: float) -> None:
        """The step is done."""
        self._ends_ns = 0
        self._ended_ns = 0 if self.idle else self._began_ns + int(seconds * 1e9)
        if len(self._turns) < 2:
            return
        rows: Counter[str] = Counter()
        for work in plan.work:
            rows[work.request.scope.tenant] += len(work.tokens)
        self._turns.charge(seconds, rows)

    def restart_prefill(self, plan: Plan, request: Request, placement: Placement) -> None:
        """The slot of a request that was just placed is empty: its prompt is computed from the next step on."""
        self.slots.advance(placement.slot, -request.computed)
        request.computed = 0
        if request.miss is placement.miss:  # its first place: nothing was cached after all
            request.reused, request.miss = 0, self.slots.lost(request.prompt, request.scope)
        plan.work = [work for work in plan.work if work.request is not request]

    def computed(self, done: Sequence[Work]) -> None:
        """That work is in the cache now. Drafts in it count only when they are accepted."""
        for work in done:
            self.advance(work.request, len(work.tokens) - max(0, work.outputs - 1))

    def advance(self, request: Request, tokens: int) -> None:
        """That many more tokens of a request are in the cache."""
        assert request.slot is not None
        request.computed += tokens
        self.slots.advance(request.slot, tokens)
        self._shares.charge(request.scope.tenant, tokens)

    def prefill_chunk(self, streams: int, new: int, patience_s: float = inf) -> int:
        """Prompt tokens for a step with that many streams, which can do without a token for so long, of prompts with
        that many new tokens in total."""
        if not streams:
            return self._config.prefill_tokens_alone if patience_s == inf else self._largest(0, patience_s)
        without = self.cost.predict(streams)
        if without is None:
            return min(self._config.prefill_tokens_first, self._config.prefill_tokens_alone)
        limit_s = max(self._config.inter_token_target_s, STRETCH_MAX * without)
        if patience_s < limit_s:
            return self._largest(streams, max(patience_s, BEHIND_STRETCH * without))
        chunk = self._largest(streams, limit_s)
        prompts_s = new / chunk * (self.cost.predict(streams + chunk) or 0.0)
        return max(chunk, self._largest(streams, min(PROMPT_SHARE * prompts_s, LONGER_MAX * limit_s)))

    def _patience_s(self, streams: Sequence[Request], now_ns: int) -> float:
        """How long the next step may take so that no stream falls behind its pace. Those that cannot keep it on this
        machine, whatever is computed beside them, do not count."""
        paced = [request for request in streams if request.pace_s is not None]
        alone_s = self.cost.predict(len(streams)) if paced else None
        if alone_s is None:
            return inf
        return min((r.spare_s(now_ns) for r in paced if (r.pace_s or 0.0) > alone_s), default=inf)

    def _largest(self, streams: int, limit_s: float) -> int:
        """The largest chunk that keeps a step within that time, or the smallest."""
        fits = bisect_left(self._chunks, -limit_s, key=lambda chunk: -(self.cost.predict(streams + chunk) or 0.0))
        return self._chunks[min(fits, len(self._chunks) - 1)]

    def place_of(self, request: Request, now_ns: int) -> int:
        """Of one that waits, 1 for the next one. For the event loop too; one that has only arrived is the last."""
        ranked = list(self._ranked(now_ns))
        return ranked.index(request) + 1 if request in ranked else len(ranked) + 1

    def _admit(self, plan: Plan, now_ns: int) -> None:
        if not self._waiting:
            return
        if (starved := self._starved(now_ns)) is not None:
            starved.keeps_slot = True
        for request in islice(self._ranked(now_ns), CANDIDATES_MAX):
            lower = [r for r in self._running if r.priority > request.priority and not r.keeps_slot]
            full = self.running >= self._config.parallel
            if full and not lower:
                lower = self._greedy(request)
            if full and not lower:
                # One that keeps a slot gets that of the next one that leaves; others may take places meanwhile.
                if request.keeps_slot or self._shares.tenants > 1:
                    continue
                return
            prefix_owners = self._prefix_owners(request)
            if any(owner not in lower for owner in prefix_owners):
                continue
            if prefix_owners or full:
                self._preempt(plan, prefix_owners or lower)
            self._place(plan, request)

    def is_given_place(self, tenant: str, own: int) -> bool:
        """Whether the next request of a tenant takes the place of a tenant's that has more than its share, behind so
        many of its own."""
        if not self._rows_are_cheap:
            return False
        share = self._shares.place_share(self._config.parallel, newcomers=int(not self._shares.present(tenant)))
        greedy = self.load.holding_more_than(share)
        return own < share and any(self._shares.gives_way(other, to=tenant) for other in greedy)

    def _greedy(self, request: Request) -> list[Request]:
        """Those of its class whose tenants have more than their share of the places, while its own has less and asks
        for less. None where rows are dear: there tenants compete for time, which `in_turns` divides."""
        if self._shares.tenants < 2 or request.ahead or not self._rows_are_cheap:
            return []
        share, held = self._shares.place_share(self._config.parallel), Counter(r.scope.tenant for r in self._running)
        if held[request.scope.tenant] >= share:
            return []
        return [r for r in self._running if self._may_be_displaced(r, request) and held[r.scope.tenant] > share]

    def _may_be_displaced(self, running: Request, by: Request) -> bool:
        """Once at most: whoever reads it waits for a place only once."""
        same = running.priority is by.priority and not (running.preempted or running.keeps_slot)
        return same and self._shares.gives_way(running.scope.tenant, to=by.scope.tenant)

    @property
    def _rows_are_cheap(self) -> bool:
        places = self._config.parallel
        half_s, full_s = self.cost.predict(max(1, places // 2)), self.cost.predict(places)
        return half_s is not None and full_s is not None and full_s <= CHEAP_ROWS * half_s

    def _ranked(self, now_ns: int) -> Iterator[Request]:
        """Those that wait, the first to go first."""
        if (starved := self._starved(now_ns)) is not None:
            yield starved
        all_waiting = [r for r in list(self._waiting) if r is not starved and r.slot is None]
        for priority in sorted({request.priority for request in all_waiting}):
            waiting = [r for r in all_waiting if r.priority is priority]
            waiting.sort(key=lambda r: placed_by_ns(r, now_ns))
            yield from in_turns(waiting, lambda r: r.scope.tenant, self._shares.served, lambda r: r.remaining)

    def _starved(self, now_ns: int) -> Request | None:
        """The first of the lowest class, if it has waited for too long and no other such one runs."""
        if any(request.keeps_slot for request in self._running):
            return None
        starved = [request for request in self._waiting if is_starved(request, now_ns)]
        return min(starved, key=lambda r: r.stamps.submitted_ns, default=None)

    def _prefix_owners(self, request: Request) -> list[Request]:
        """The requests that are computing a prefix of this one."""
        slots = self.slots.prefix_owners(request.reusable, request.scope, recomputed=request.recomputed)
        return [r for r in self._running if r.slot in slots]

    def _place(self, plan: Plan, request: Request) -> None:
        placement = self.slots.place(
            request.reusable, request.scope, recomputed=request.recomputed, ahead=request.ahead
        )
        assert placement is not None, "fewer requests run than there are slots"
        self._waiting.remove(request)
        self._running.append(request)
        if request.miss is None:
            request.reused, request.miss = placement.reused, placement.miss
        request.slot, request.computed = placement.slot, placement.reused
        self.load.place(request)
        plan.placements.append((request, placement))

    def _preempt(self, plan: Plan, lower: Sequence[Request]) -> None:
        """Make room for a higher class: the youngest request of the lowest class waits again, before all others. Exact
        ones last: they would have to write their answer again."""
        victim = max(reversed(lower), key=lambda r: (r.priority, not r.exact, not r.generated))
        assert victim.slot is not None
        self.slots.release(victim.slot, victim.kept)
        victim.slot, victim.computed, victim.preempted = None, 0, True
        self._running.remove(victim)
        self._waiting.insert(0, victim)
        self.load.preempt(victim)
        plan.preempted += 1

    def _take(self, plan: Plan, request: Request, tokens: int) -> None:
        assert request.slot is not None
        chunk = request.uncomputed[:tokens]
        self.load.read(request, len(chunk))
        outputs, apart = int(len(chunk) == request.remaining), request.exact and len(chunk) > 1
        plan.work.append(Work(request, request.slot, request.computed, chunk, outputs, apart))


def divide(budget: int, prefilling: Sequence[Request]) -> list[tuple[Request, int]]:
    """Share a step's prompt tokens: half to the request that has been running longest, so that it always progresses;
    the rest to the shortest first, so that no request queues behind the long prompt of another. A higher class before
    all.

    What is left for the next one then goes to the first again, or is not spent, if it is a tiny chunk of its prompt."""
    if not prefilling:
        return []
    first = min(prefilling, key=lambda r: r.priority)  # in order of admission: the oldest of the highest class
    given = {first: min(first.batchable, max(1, budget // 2))}
    left = budget - given[first]
    for request in sorted(prefilling, key=lambda r: (r.priority, r.batchable)):
        wanted = request.batchable - given.get(request, 0)
        more = min(wanted, left)
        if more == wanted or more >= MIN_CHUNK or request is first:
            given[request] = given.get(request, 0) + more
            left -= more
    given[first] += min(first.batchable - given[first], left)
    shares = [(request, _whole(request, tokens)) for request, tokens in given.items()]
    return [(request, tokens) for request, tokens in shares if tokens]


def _whole(request: Request, tokens: int) -> int:
    """Fewer tokens where an exact request would be left with, or get, a single row of prompt."""
    if not request.exact or tokens == request.batchable:
        return tokens
    tokens -= int(request.batchable - tokens < EXACT_ROWS_MIN)
    return tokens if tokens >= EXACT_ROWS_MIN else 0
