"""Who is taken, who is sent away and who goes first: thousands of requests of all classes on a clock of their own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.config import EngineConfig
from inference.engine.forecast import (
    DUE_BUCKET_NS,
    FACTOR_MAX,
    FACTOR_MIN,
    LEARNED_MIN,
    RETRY_AFTER_MAX_S,
    RETRY_AFTER_MIN_S,
    REUSE_S,
    SHARED_REQUESTS,
    SHARED_S,
    AnswerLengths,
    Factor,
    Forecasts,
    RetrySchedule,
    late_by_s,
    retry_after_s,
)
from inference.engine.load import Ahead
from inference.engine.sampler import Sampler
from inference.engine.scheduler import Scheduler
from inference.engine.step import Plan
from inference.errors import Late
from inference.generation import Due, Finish, Forecast, Priority, Sampling
from inference.prompt import CacheScope
from inference.request import Request
from inference.tokenizer import TextStream

CLASSES = (Priority.INTERACTIVE, Priority.STANDARD, Priority.BATCH)
SAMPLER = Sampler(Sampling(temperature=0))
CONFIG = EngineConfig(parallel=4, resident=0)
STEP_S, ROW_S = 0.01, 0.0005  # of a step without rows, and of each row
CAPACITY = 8.0  # answers a second: four slots, 27 tokens each, and the prompts beside them


@dataclass
class Shop:
    """The scheduler and the forecasts on a device whose steps cost what they say: so much, and so much for a row."""

    config: EngineConfig = CONFIG
    step_s: float = STEP_S
    row_s: float = ROW_S
    now_ns: int = 1
    inversions: int = 0
    ended: list[Request] = field(default_factory=list)
    refused: list[Late] = field(default_factory=list)
    lateness: dict[Request, float] = field(default_factory=dict)
    tokens: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    plan: Plan | None = None  # of the step under way
    ends_ns: int = 0
    ends_itself: dict[Request, int] = field(default_factory=dict)  # after so many tokens

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config)
        self.forecasts = Forecasts(self.scheduler, self.config)
        for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            self.scheduler.cost.observe(rows, self.step_s + self.row_s * rows)

    def ask(
        self,
        tenant: str,
        priority: Priority = Priority.STANDARD,
        *,
        prompt: int = 50,
        answer: int = 20,
        target_s: float = 1e9,
        waits: bool = False,
        pace_s: float | None = None,
        most: int | None = None,
    ) -> Request | None:
        """None: it was sent away. `most`: tokens that it may have, if it ends before."""
        due = Due(self.now_ns + int(target_s * 1e9), waits)
        try:
            told = self.forecasts.check(prompt, due, tenant, priority, self.now_ns)
        except Late as late:
            self.refused.append(late)
            return None
        self.numbers += 1
        request = Request(
            [self.numbers] * prompt, most or answer, SAMPLER, TextStream([b""]), CacheScope(tenant), priority
        )
        if most:
            self.ends_itself[request] = answer
        request.stamps.submitted_ns, request.forecast, request.due_ns = self.now_ns, told, due.at_ns
        request.pace_s = pace_s
        if told:
            idle_prefill_s = prompt * (self.forecasts.prefill_token_s or 0.0)
            self.lateness[request] = late_by_s(told, target_s, idle_prefill_s)
        self.scheduler.load.add(request, prompt)
        self.scheduler.add(request)
        return request

    def foretold(self, tenant: str, priority: Priority = Priority.STANDARD, prompt: int = 50) -> Forecast | None:
        return self.forecasts.expected(prompt, tenant, priority, None, self.now_ns)

    def step(self) -> None:
        """To the end of the step that is under way, or of the next one."""
        plan = self.plan or self._begin()
        self.plan, self.now_ns = None, self.ends_ns
        self.scheduler.computed(plan.work)
        for work in plan.work:
            r = work.request
            self.tokens[r.scope.tenant] += len(work.tokens)
            if work.outputs:
                r.generated.append(0)
                r.stamps.first_token_ns = r.stamps.first_token_ns or self.now_ns
                r.stamps.last_token_ns = self.now_ns
                r.decode_steps.count += 1
                self._end(r)
        self.scheduler.record_step(plan, self.step_s + self.row_s * plan.rows)

    def _begin(self) -> Plan:
        before = {r for r in self.scheduler.requests if r.slot is None}
        plan = self.plan = self.scheduler.fill(self.scheduler.admit(self.now_ns), self.now_ns)
        placed = [r for r, _ in plan.placements if r in before]
        left = [r.priority for r in self.scheduler.requests if r.slot is None]
        self.inversions += sum(r.priority > min(left, default=r.priority) for r in placed if not r.keeps_slot)
        for r in placed:
            r.stamps.admitted_ns = r.stamps.admitted_ns or self.now_ns
        self.scheduler.begin(plan, self.now_ns)
        self.ends_ns = self.now_ns + int((self.step_s + self.row_s * plan.rows) * 1e9)
        return plan

    def _end(self, r: Request) -> None:
        limited = len(r.generated) == r.max_tokens
        if limited or len(r.generated) == self.ends_itself.get(r):
            r.finish = Finish.LENGTH if limited else Finish.STOP
            self.scheduler.load.remove(r)
            self.scheduler.remove(r)
            self.forecasts.learn(r, self.now_ns)
            self.ended.append(r)

    def run_until(self, seconds: float) -> None:
        """Then a step may be under way."""
        until_ns = int(seconds * 1e9)
        while self.plan or not self.scheduler.idle:
            if not self.plan:
                if self.now_ns >= until_ns:
                    return
                self._begin()
            if self.ends_ns > until_ns:
                break
            self.step()
        self.now_ns = max(self.now_ns, until_ns)

    def learn(self) -> None:
        """From as many answers as it takes until somebody may be refused, one after another."""
        for _ in range(LEARNED_MIN):
            self.ask("first")
            while not self.scheduler.idle:
                self.step()


def ttft_s(request: Request) -> float:
    return (request.stamps.first_token_ns - request.stamps.submitted_ns) / 1e9


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), load=st.sampled_from([0.5, 1.0, 2.0, 4.0]))
def test_under_any_load_no_class_inverts_no_tenant_starves_and_nothing_is_taken_that_is_expected_late(
    seed: int, load: float
) -> None:
    rng, shop = random.Random(seed), Shop()
    shop.learn()
    at_s, asked = shop.now_ns / 1e9, Counter[str]()
    for _ in range(200):
        at_s += rng.expovariate(load * 10)
        shop.run_until(at_s)
        tenant = rng.choice("aaaaaaab")
        priority, answer = rng.choice(CLASSES), rng.randint(5, 40)
        asked[tenant] += 1
        shop.ask(tenant, priority, prompt=rng.randint(5, 120), answer=answer, target_s=rng.choice([0.2, 1, 5]))
    shop.run_until(at_s + 10**6)
    assert shop.inversions == 0
    assert not any(shop.lateness.values())
    served = Counter(r.scope.tenant for r in shop.ended)
    assert len(shop.ended) + len(shop.refused) == 200 + LEARNED_MIN
    assert all(served[tenant] > 0 for tenant in asked)
    assert all(RETRY_AFTER_MIN_S <= late.retry_after_s <= RETRY_AFTER_MAX_S for late in shop.refused)


def test_what_it_can_do_is_taken_what_is_taken_is_in_time_and_more_load_makes_it_no_slower() -> None:
    """Poisson arrivals, one in five of which nobody waits for, at multiples of what it can do."""

    def at(load: float) -> tuple[float, float, float]:
        rng, shop, taken, asked = random.Random(1), Shop(), list[Request](), 0
        shop.learn()
        began_s = at_s = shop.now_ns / 1e9
        for _ in range(600):
            at_s += rng.expovariate(load * CAPACITY)
            shop.run_until(at_s)
            batch, answer = rng.random() < 0.2, min(120, max(4, int(rng.lognormvariate(0, 0.6) * 24)))
            priority, target_s = (Priority.BATCH, 1e9) if batch else (Priority.STANDARD, 0.5)
            request = shop.ask(
                rng.choice("aaab"), priority, prompt=rng.randint(5, 95), answer=answer, target_s=target_s
            )
            if not batch:
                asked += 1
                taken += [request] if request else []
        answered = sum(len(r.generated) for r in shop.ended) / (at_s - began_s)
        shop.run_until(at_s + 1000)
        return len(taken) / asked, sum(ttft_s(r) <= 0.5 for r in taken) / len(taken), answered

    half, whole, threefold = at(0.5), at(1.0), at(3.0)
    assert half[0] >= 0.97  # taken
    assert min(half[1], whole[1]) >= 0.97  # in time
    assert threefold[1] >= 0.9
    assert threefold[2] >= 0.95 * whole[2]  # tokens a second


def test_a_small_tenant_keeps_its_share_beside_a_large_one() -> None:
    """Ten times as many clients, each of which asks again when it has its answer."""

    def served(clients: dict[str, int]) -> Counter[str]:
        shop, seen = Shop(), 0
        asking = [tenant for tenant, count in clients.items() for _ in range(count)]
        for _ in range(1000):
            for tenant in asking:
                shop.ask(tenant, answer=10)
            shop.step()
            asking, seen = [r.scope.tenant for r in shop.ended[seen:]], len(shop.ended)
        return shop.tokens

    beside = served({"large": 40, "small": 4})
    assert beside["small"] >= 0.45 * beside.total()


def answered(
    clients: dict[str, int], row_s: float, seconds: float = 40.0, step_s: float = 0.03
) -> tuple[Counter[str], Shop]:
    """Answers by tenant. Each of its clients thinks for a second when it has one, and asks again."""
    shop, counts, seen = Shop(EngineConfig(parallel=8, resident=8), step_s=step_s, row_s=row_s), Counter[str](), 0
    named = [client for tenant, count in clients.items() for client in enumerate([tenant] * count)]
    lengths = {client: random.Random(str(client)) for client in named}
    coming = [(random.Random(str(client)).random(), client) for client in lengths]
    asking = dict[Request, tuple[int, str]]()
    heapify(coming)
    while shop.now_ns < seconds * 1e9:
        while coming and coming[0][0] * 1e9 <= shop.now_ns:
            _, client = heappop(coming)
            prompt, answer = lengths[client].randint(5, 95), lengths[client].randint(5, 40)
            request = shop.ask(client[1], prompt=prompt, answer=answer, target_s=0.5, waits=True)
            assert request is not None
            asking[request] = client
        if shop.scheduler.idle:
            shop.now_ns = int(coming[0][0] * 1e9) + 1
            continue
        shop.step()
        for request in shop.ended[seen:]:
            counts[request.scope.tenant] += 1
            heappush(coming, (shop.now_ns / 1e9 + 1.0, asking.pop(request)))
        seen = len(shop.ended)
    return counts, shop


def test_who_asks_for_less_than_its_share_keeps_nine_tenths_of_it_beside_who_asks_for_ten_times_as_much() -> None:
    """Where a row costs next to nothing, as on what reads its weights in most of a step."""
    alone, quiet = answered({"small": 4}, row_s=0.0001)
    beside, busy = answered({"large": 40, "small": 4}, row_s=0.0001)
    assert beside["small"] >= 0.9 * alone["small"]
    first_s = [mean(ttft_s(r) for r in shop.ended if r.scope.tenant == "small") for shop in (quiet, busy)]
    assert first_s[1] <= 1.2 * first_s[0]
    assert beside["large"] >= 2 * beside["small"]


def test_a_place_is_taken_from_no_request_twice_and_from_nobody_within_its_share() -> None:
    shop = Shop(EngineConfig(parallel=4, resident=4), step_s=0.03, row_s=0.0001)
    large = [shop.ask("large", answer=100) for _ in range(8)]
    shop.step()
    small = [shop.ask("small", answer=100) for _ in range(3)]
    shop.step()
    running = [r for r in shop.scheduler.requests if r.slot is not None]
    assert [r in large for r in running] == [True, True, False, False]
    displaced = [r for r in large if r and r.preempted]
    assert len(displaced) == 2
    shop.run_until(10**6)
    assert all(r and r.finish is Finish.LENGTH for r in [*large, *small])


def test_who_will_be_given_a_place_is_not_told_to_wait_for_one() -> None:
    shop = Shop(EngineConfig(parallel=4, resident=4), step_s=0.03, row_s=0.0001)
    shop.learn()
    for _ in range(8):
        shop.ask("large", answer=100)
    shop.step()
    told = [shop.foretold(tenant, Priority.STANDARD, 50) for tenant in ("small", "large")]
    assert [each is not None and each.wait_s > 0 for each in told] == [False, True]


def test_where_rows_are_dear_nobody_loses_a_place_and_who_holds_less_than_its_share_gets_one_more() -> None:
    shop = Shop(EngineConfig(parallel=4, resident=4), step_s=0.001, row_s=0.001)
    shop.learn()
    large = [shop.ask("large", answer=100) for _ in range(8)]
    shop.step()
    told = [shop.foretold(tenant) for tenant in ("small", "large")]
    assert [each is not None and each.wait_s > 0 for each in told] == [False, True]
    small = [shop.ask("small", answer=100) for _ in range(3)]
    waits = shop.foretold("small")
    assert waits is not None and waits.wait_s > 0  # there is one such slot, and it is taken
    shop.step()
    assert not any(r and r.preempted for r in large)
    assert [r is not None and r.slot is not None for r in small] == [True, False, False]
    shop.run_until(10**6)
    assert all(r and r.finish is Finish.LENGTH for r in [*large, *small])


def test_without_slots_of_resident_conversations_nobody_runs_beyond_those_for_running_requests() -> None:
    shop = Shop(EngineConfig(parallel=4, resident=0), step_s=0.001, row_s=0.001)
    for tenant in ["large"] * 8 + ["small"]:
        shop.ask(tenant, answer=100)
        shop.step()
        assert shop.scheduler.running <= 4


def test_who_asks_for_less_than_its_share_hardly_waits_for_a_place_where_rows_are_dear() -> None:
    """As on two cores with a small model: a full step takes half as long again as one that is half full."""
    clients = {"large": 40, "small": 4}
    [(alone, quiet), (beside, busy)] = [
        answered(them, row_s=0.0005, step_s=0.003, seconds=30.0) for them in ({"small": 4}, clients)
    ]
    first_s = [mean(ttft_s(r) for r in shop.ended if r.scope.tenant == "small") for shop in (quiet, busy)]
    assert first_s[1] <= 1.7 * first_s[0]
    assert beside["small"] >= 0.9 * alone["small"]


def test_who_waits_for_others_is_told_so_and_its_own_fault_is_told_apart() -> None:
    shop = Shop(row_s=0.002)
    shop.learn()
    for _ in range(30):
        shop.ask("large", answer=100)
        shop.step()
    assert shop.ask("large", target_s=0.1) is None
    assert shop.refused[-1].status == 429
    shop.ask("small", answer=100)
    assert shop.ask("small", target_s=0.1) is None
    assert (shop.refused[-1].status, shop.refused[-1].code) == (503, "overloaded")
    assert shop.ask("large", target_s=0.1, waits=True) is not None


def test_a_young_worker_refuses_nobody() -> None:
    shop = Shop()
    for _ in range(LEARNED_MIN - 1):
        shop.ask("first")
    while not shop.scheduler.idle:
        shop.step()
    for _ in range(30):
        assert shop.ask("large", answer=100) is not None
    shop.step()
    taken = shop.ask("large", target_s=0.1)
    assert taken is not None and taken.forecast is not None and taken.forecast.most_s > 0.1
    while len(shop.ended) < LEARNED_MIN:
        shop.step()
    shop.step()  # the free place is taken
    assert shop.ask("large", target_s=0.1) is None


def test_who_comes_back_when_told_is_taken() -> None:
    shop = Shop()
    shop.learn()
    for _ in range(12):
        shop.ask("a", target_s=0.2, waits=True)
    shop.step()
    assert shop.ask("a", target_s=0.3) is None
    shop.run_until(shop.now_ns / 1e9 + 2 * shop.refused[-1].retry_after_s)
    assert shop.ask("a", target_s=0.3) is not None


def test_a_higher_class_waits_for_no_lower_one() -> None:
    shop = Shop()
    shop.learn()
    for _ in range(30):
        shop.ask("a", Priority.BATCH)
    told = shop.foretold("b", Priority.INTERACTIVE, 10)
    assert told is not None and told.wait_s == 0


def test_a_prompt_that_is_late_by_itself_is_taken_where_nobody_waits() -> None:
    shop = Shop()
    shop.learn()
    assert shop.ask("a", prompt=10_000, target_s=0.1) is not None


def test_a_slow_machine_refuses_nothing_while_nobody_else_is_there() -> None:
    shop = Shop()
    shop.learn()
    for _ in range(100):
        request = shop.ask("a")
        assert request is not None and request.forecast is not None
        request.forecast = replace(request.forecast, prefill_s=1e-9)  # everything takes longer than foretold
        shop.run_until(shop.now_ns / 1e9 + 10)
    told = shop.foretold("a", Priority.STANDARD, 100)
    assert told is not None
    for share in (0.1, 0.4, 0.7, 0.9, 1.1):
        assert shop.ask("a", prompt=100, target_s=share * told.total_s) is not None
        shop.run_until(shop.now_ns / 1e9 + 10)


def test_nothing_is_foretold_before_anything_was_learned() -> None:
    shop = Shop()
    assert shop.foretold("a", Priority.STANDARD, 10) is None
    assert shop.ask("a", target_s=0.0) is not None


def test_who_is_due_first_goes_first_and_who_is_late_lets_others_pass() -> None:
    shop = Shop()
    running = [shop.ask("a", answer=30) for _ in range(4)]
    shop.step()
    late = shop.ask("a", target_s=0.001)
    patient, urgent, whenever = shop.ask("a", target_s=5), shop.ask("a", target_s=1), shop.ask("a", target_s=50)
    shop.run_until(100)
    order = sorted(shop.ended, key=lambda r: r.stamps.admitted_ns)
    assert [r for r in order if r not in running and r is not None] == [urgent, patient, late, whenever]


def test_who_waits_knows_its_place() -> None:
    shop = Shop()
    running = [shop.ask("a", answer=30) for _ in range(4)]
    shop.step()
    patient, person = shop.ask("a", target_s=50), shop.ask("a", Priority.INTERACTIVE, target_s=50)
    urgent, batch = shop.ask("a", target_s=1), shop.ask("a", Priority.BATCH)
    order = [person, urgent, patient, batch]
    assert [shop.scheduler.queue_position(each, shop.now_ns) for each in order if each] == [1, 2, 3, 4]
    assert all(each and each.slot is not None for each in running)
    shop.step()  # the person has the place of one of the four, which goes first now
    assert [shop.scheduler.queue_position(each, shop.now_ns) for each in order[1:] if each] == [2, 3, 4]


def test_a_flood_of_people_leaves_one_slot_to_what_nobody_waits_for() -> None:
    shop = Shop()
    batch = [shop.ask("b", Priority.BATCH, answer=5) for _ in range(3)]
    most = 0
    while not all(r and r.finish for r in batch):
        while shop.scheduler.load.total.waiting + shop.scheduler.load.total.running < 10:
            shop.ask("a", Priority.INTERACTIVE)
        shop.step()
        most = max(most, sum(r.priority is Priority.BATCH for r in shop.scheduler.requests if r.slot is not None))
    assert [r.finish for r in batch if r] == [Finish.LENGTH] * 3
    assert most == 1


def gap_s(request: Request) -> float:
    """Between two tokens, in the mean."""
    return (request.stamps.last_token_ns - request.stamps.first_token_ns) / 1e9 / (len(request.generated) - 1)


def beside_prompts(
    pace_s: float | None, *, target_s: float = 1e9, priority: Priority = Priority.STANDARD
) -> tuple[float, float]:
    """The gaps of a stream beside long prompts that come one after another, and the first tokens of these.
    `target_s`: when those are due; `priority`: the stream's."""
    shop = Shop()
    stream, prompts = shop.ask("a", priority, answer=60, pace_s=pace_s), list[Request | None]()
    assert stream is not None
    shop.step()
    while stream.finish is None:
        if not any(prompt and prompt.finish is None for prompt in prompts):
            prompts.append(shop.ask("b", prompt=300, answer=2, target_s=target_s))
        shop.step()
    shop.run_until(10**6)
    return gap_s(stream), max(ttft_s(prompt) for prompt in prompts if prompt)


# What completes a prompt does not wait for a stream of its class, which is behind its pace then.
WITH_LAST_STEPS = 1.05


def test_prompts_are_read_at_the_pace_of_the_streams_beside_them() -> None:
    hurried, prefill_s = beside_prompts(None)
    paced, read_beside_it_s = beside_prompts(0.03)
    assert hurried > 0.035
    assert paced <= WITH_LAST_STEPS * 0.03
    assert prefill_s < read_beside_it_s < 3 * prefill_s


def test_a_prompt_that_would_be_late_does_not_wait_for_the_pace_of_streams() -> None:
    _, prefill_s = beside_prompts(0.03)
    _, urgent_s = beside_prompts(0.03, target_s=0.2)
    assert urgent_s < 0.2 < prefill_s


def test_a_stream_of_a_higher_class_keeps_its_pace_beside_a_prompt_that_would_be_late() -> None:
    paced, prefill_s = beside_prompts(0.03, target_s=0.2, priority=Priority.INTERACTIVE)
    assert paced <= 0.03
    assert prefill_s > 0.2


def test_beside_a_prompt_that_is_late_whatever_is_done_streams_keep_their_pace() -> None:
    paced, _ = beside_prompts(0.03, target_s=0.001)
    assert paced <= WITH_LAST_STEPS * 0.03


def test_a_pace_that_this_machine_cannot_keep_slows_nobody() -> None:
    assert beside_prompts(STEP_S / 2) == beside_prompts(None)


def test_a_flood_of_batch_moves_the_first_tokens_of_people_by_no_more_than_the_step_under_way() -> None:
    def p95_s(flood: int) -> float:
        rng, shop, people = random.Random(1), Shop(), list[Request | None]()
        for _ in range(flood):
            shop.ask("b", Priority.BATCH, answer=30)
        for number in range(200):
            shop.run_until(0.2 * number)
            people.append(shop.ask("a", Priority.INTERACTIVE, prompt=rng.randint(5, 95)))
        assert not flood or shop.scheduler.load.total.waiting > 10  # to the end
        while not all(each and each.finish for each in people):
            shop.step()
        return sorted(ttft_s(each) for each in people if each)[190]

    assert p95_s(250) <= p95_s(0) + STEP_S + 4 * ROW_S


def test_what_has_ended_or_lost_its_place_counts_no_more_than_once() -> None:
    shop = Shop()
    for _ in range(4):
        shop.ask("low", Priority.BATCH)
    shop.step()
    shop.ask("high", Priority.INTERACTIVE)
    shop.step()
    load = shop.scheduler.load
    assert (load.total.running, load.total.waiting, load.total.tokens) == (4, 1, 50)
    shop.run_until(10**6)
    assert (load.total.running, load.total.waiting, load.total.tokens) == (0, 0, 0)
    assert load.ahead(Priority.BATCH, "low", None, shop.now_ns, 10.0) == Ahead([], [])


def ratios(load: float, *, most: int | None, tenants: str = "a") -> tuple[list[tuple[float, float]], list[float]]:
    """Of the time until first tokens, to what was told as usual and as the most for those that waited for a place, and
    to what was told to those that did not. `most`: tokens that answers may have; None: as many as they get."""
    waited, placed, rng = list[tuple[float, float]](), list[float](), random.Random(1)
    shop = Shop(EngineConfig(parallel=8, resident=8), step_s=0.03, row_s=0.0001)
    shop.learn()
    at_s = shop.now_ns / 1e9
    for _ in range(1200):
        at_s += rng.expovariate(load * CAPACITY)
        shop.run_until(at_s)
        prompt, answer = rng.randint(5, 95), rng.randint(4, 60)
        shop.ask(rng.choice(tenants), prompt=prompt, answer=answer, target_s=1.0, most=most)
    for request in shop.ended[300:]:
        if request.forecast and request.forecast.wait_s:
            assert request.forecast.most_s >= request.forecast.total_s
            waited.append((ttft_s(request) / request.forecast.total_s, ttft_s(request) / request.forecast.most_s))
        elif request.forecast:
            placed.append(ttft_s(request) / request.forecast.total_s)
    return waited, placed


def right(ratios: Sequence[float]) -> float:
    """The share within a fifth."""
    return mean(0.8 <= ratio <= 1.2 for ratio in ratios)


@pytest.mark.parametrize(
    "load", [pytest.param(0.6, marks=pytest.mark.long), 1.2, pytest.param(2.0, marks=pytest.mark.long)]
)
def test_where_answers_get_as_long_as_they_may_nearly_all_forecasts_are_right(load: float) -> None:
    waited, placed = ratios(load, most=None)
    assert len(waited) > 100
    assert right(placed) >= 0.9
    assert right([usual for usual, _ in waited]) >= 0.9


def test_those_of_other_tenants_who_come_later_and_go_first_are_not_foreseen() -> None:
    waited, placed = ratios(2.0, most=None, tenants="aaaaaaaaab")
    assert right(placed) >= 0.9
    assert right([usual for usual, _ in waited]) >= 0.6


@pytest.mark.parametrize("load", [pytest.param(1.2, marks=pytest.mark.long), 2.0])
def test_where_nobody_knows_how_long_answers_get_the_usual_wait_is_told_and_a_long_one_decides(load: float) -> None:
    waited, placed = ratios(load, most=200)
    assert len(waited) > 100 and right(placed) >= 0.9
    assert mean(usual <= 1 for usual, _ in waited) == pytest.approx(0.5, abs=0.1)
    assert mean(most <= 1 for _, most in waited) == pytest.approx(0.95, abs=0.05)


def test_who_comes_in_the_middle_of_a_step_is_told_to_wait_for_the_rest_of_it() -> None:
    shop = Shop(row_s=0.0)
    shop.learn()
    shop.ask("a", answer=30)
    shop.step()
    told = []
    for share in (0.1, 0.9):
        shop.run_until((shop.ends_ns / 1e9 if shop.plan else shop.now_ns / 1e9) + share * STEP_S)
        told.append(shop.foretold("a"))
        while shop.plan:
            shop.step()
    early, late = told
    assert early and late
    assert early.prefill_s - late.prefill_s == pytest.approx(0.8 * STEP_S, rel=0.1)


def test_the_place_of_those_that_have_waited_for_too_long_gets_free_for_nobody_else() -> None:
    shop = Shop()
    shop.learn()
    for _ in range(3):
        shop.ask("b", Priority.BATCH, answer=50)
    for _ in range(3500):
        while shop.scheduler.load.total.waiting + shop.scheduler.load.total.running < 8:
            shop.ask("a", answer=50)
        shop.step()
        if any(r.keeps_slot and r.slot is not None for r in shop.scheduler.requests):
            break
    told = shop.scheduler.load.ahead(Priority.STANDARD, "a", None, shop.now_ns, 10.0)
    assert (told.held, len(told.running)) == (1, 3)
    alone = shop.scheduler.load.ahead(Priority.STANDARD, "a", None, shop.now_ns, 10.0, others=False)
    assert alone.held == 0


def test_those_of_its_tenant_that_are_due_later_go_behind_a_newcomer() -> None:
    shop = Shop()
    for _ in range(4):
        shop.ask("a", answer=100)
    shop.step()
    for target_s in (1, 5, 9):
        shop.ask("a", target_s=target_s)
    at_ns = shop.now_ns
    ahead = [shop.scheduler.load.ahead(Priority.STANDARD, "a", at_ns + s * 10**9, at_ns, 10.0) for s in (0, 3, 20)]
    assert [len(each.waiting) for each in ahead] == [0, 1, 3]


def test_a_factor_finds_its_quantile() -> None:
    rng = random.Random(1)
    for quantile in (0.5, 0.9):
        factor, missed = Factor(quantile), 0
        for number in range(6000):
            took_s = rng.lognormvariate(0, 0.4)
            missed += number >= 1000 and took_s > factor.value
            factor.observe(factor.value, took_s)
        assert missed / 5000 == pytest.approx(1 - quantile, abs=0.01)
        for took_s, end in ((100.0, FACTOR_MAX), (0.0, FACTOR_MIN)):
            for _ in range(1000):
                factor.observe(1.0, took_s)
            assert factor.value == end


def test_a_factor_that_lets_nobody_in_is_forgotten() -> None:
    """Only those that waited teach how long it takes."""
    factor = Factor(0.9)
    for _ in range(100):
        factor.observe(1.0, 9.0)
    for _ in range(500):
        factor.decay()
    assert factor.value == pytest.approx(1.0, abs=0.01)


def test_the_time_without_a_slot_is_no_time_in_one() -> None:
    shop = Shop()
    shop.learn()
    batch = shop.ask("b", Priority.BATCH, answer=5)
    shop.step()
    for _ in range(1500):
        while shop.scheduler.load.total.waiting + shop.scheduler.load.total.running < 6:
            shop.ask("a")
        shop.step()
    assert batch is not None and batch.preempted
    shop.run_until(10**6)
    assert shop.forecasts.next_slot_s == RETRY_AFTER_MIN_S


def test_what_is_foretold_for_a_newcomer_grows_with_those_that_wait() -> None:
    shop = Shop()
    foretold = [shop.forecasts.next_ttft_s(shop.now_ns)]
    shop.learn()
    foretold.append(shop.forecasts.next_ttft_s(shop.now_ns))
    for _ in range(12):
        shop.ask("a")  # all of one tenant: that others would come before them is no reason to have fewer engines
    foretold.append(shop.forecasts.next_ttft_s(shop.now_ns))
    unknown, idle_s, busy_s = foretold
    assert unknown is None and idle_s and busy_s and busy_s > 5 * idle_s


class CountedLengths(AnswerLengths):
    lookups = 0

    def left(
        self, generated: NDArray[np.int64], max_tokens: NDArray[np.int64], quantiles: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        self.lookups += 1
        return super().left(generated, max_tokens, quantiles)


def flooded(tenants: str) -> tuple[Shop, CountedLengths]:
    """Forty requests that may take long, of answers that may be short."""
    shop, lengths = Shop(), CountedLengths()
    for tokens in range(1, 65):
        lengths.add(tokens, limited=False)
    shop.forecasts._lengths = lengths
    shop.learn()
    for number in range(40):
        shop.ask(tenants[number % len(tenants)], answer=100, target_s=0.2, waits=True)
    shop.run_until(shop.now_ns / 1e9 + 0.1)
    lengths.lookups = 0
    return shop, lengths


def test_a_flood_that_is_refused_is_simulated_once_for_each_tenant_and_target() -> None:
    shop, lengths = flooded("a")
    for _ in range(100):
        assert shop.ask("a", target_s=0.5) is shop.ask("a", target_s=0.2) is None
        shop.now_ns += 400_000  # all of them within forty milliseconds
    assert lengths.lookups == 2
    assert {late.status for late in shop.refused} == {429}
    shop, lengths = flooded("ab")
    for _ in range(100):
        assert shop.ask("a", target_s=0.5) is shop.ask("b", target_s=0.5) is None
    assert lengths.lookups == 4  # with the requests of the other tenant and without


def test_a_repeated_forecast_is_what_a_new_one_would_be_less_the_time_gone_by() -> None:
    shop, _ = flooded("a")
    due = Due(shop.now_ns + 10**15 + DUE_BUCKET_NS // 2)

    def told() -> Forecast:
        forecast = shop.forecasts.check(50, due, "a", Priority.STANDARD, shop.now_ns)
        assert forecast is not None
        return forecast

    first = told()
    assert first == shop.foretold("a")
    shop.now_ns += 20_000_000
    assert told().wait_s == pytest.approx(first.wait_s - 0.02)
    assert told().wait_most_s == pytest.approx(first.wait_most_s - 0.02)
    assert told().prefill_s == first.prefill_s
    shop.now_ns += int(REUSE_S * 1e9)
    assert told() == shop.foretold("a")  # too old to be repeated
    shop.ask("a", answer=100)
    assert told() == shop.foretold("a")  # the load has changed
    assert shop.foretold("a") != first


def test_behind_a_long_queue_those_who_wait_share_a_forecast_while_it_is_about_as_long() -> None:
    shop, lengths = flooded("a")

    def told(prompt: int = 50, *, waits: bool = True) -> Forecast | None:
        due = Due(shop.now_ns + 10**15, waits)
        return shop.forecasts.check(prompt, due, "a", Priority.STANDARD, shop.now_ns)

    def leave() -> None:
        request = shop.scheduler._waiting[-1]
        shop.scheduler.load.remove(request)
        shop.scheduler.remove(request)

    shop.now_ns += int(SHARED_S * 1e9)  # what was told before is too old
    first = told()
    for _ in range(20):
        shop.ask("a", answer=100, waits=True)
        leave()
        shop.now_ns += 5_000_000
        assert told() is first
    assert lengths.lookups == 1
    for _ in range(SHARED_REQUESTS):
        leave()
    assert told() == shop.foretold("a") != first  # it is shorter
    lengths.lookups = 0
    assert told(500) != first
    shop.ask("a", answer=100, waits=True)
    leave()
    told(waits=False)  # decides whether it is refused: made anew
    assert lengths.lookups == 2
    shop.now_ns += int(SHARED_S * 1e9)
    told()
    assert lengths.lookups == 3  # too old


def test_requests_that_find_a_slot_say_nothing_of_the_wait_for_one() -> None:
    shop = Shop()
    shop.learn()
    for _ in range(50):
        request = shop.ask("a")
        assert request is not None and request.forecast is not None
        request.forecast = replace(request.forecast, prefill_s=1e-9)  # far too little was foretold
        shop.run_until(shop.now_ns / 1e9 + 10)
    for _ in range(4):
        shop.ask("a")
        shop.step()
    assert shop.ask("b", target_s=0.5) is not None


def test_those_who_are_sent_away_come_back_one_after_another() -> None:
    schedule = RetrySchedule()
    assert [schedule.assign("a", 1.0, 0.5, 0) for _ in range(3)] == [1.0, 1.5, 2.0]
    assert schedule.assign("b", 1.0, 0.5, 0) == 1.0
    assert schedule.assign("a", 1.0, 0.5, 10**10) == 1.0
    for _ in range(1000):
        last = schedule.assign("a", 1.0, 0.5, 10**10)
    assert last == RETRY_AFTER_MAX_S


def test_the_time_to_come_back_is_what_it_would_be_late() -> None:
    assert retry_after_s(late_by_s(Forecast(5.0, 0.5), 0.5, 0.1)) == pytest.approx(5.0)
