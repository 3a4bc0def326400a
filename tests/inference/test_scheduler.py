"""The scheduler against a model of the cells: whatever arrives, is cancelled or shares a prefix, the tokens that come
out are those of an undisturbed run."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.detokenizer import TextStream
from inference.parked import Entry
from inference.request import Phase, Request
from inference.sampler import Sampler
from inference.scheduler import CRUMB, LONGER_MAX, STRETCH_MAX, Scheduler, divide
from inference.sequence import Finish, Priority, Sampling
from inference.testing import ScriptedBackend, scripted_token

VOCABULARY = 5  # small: prompts share beginnings by chance
CONFIG = EngineConfig(parallel=3, resident=2, prefill_tokens_first=4, prefill_tokens_alone=16)
GREEDY = Sampling(temperature=0)


def request(prompt: list[int], max_tokens: int = 3, salt: str = "", priority: Priority = Priority.STANDARD) -> Request:
    text = TextStream([b""] * VOCABULARY)
    return Request(prompt, max_tokens, Sampler(GREEDY), text, salt, priority)


class Machine:
    """A scheduler on a scripted device, stepped by hand."""

    def __init__(self, rewinds: bool = True) -> None:
        self.scheduler = Scheduler(CONFIG, rewinds=rewinds)
        rows_max = CONFIG.rows_max
        self.backend = ScriptedBackend(CONFIG.slots, 200, rows_max, vocabulary=VOCABULARY, rewinds=rewinds)
        self.clock = 0

    def step(self) -> list[int]:
        """Returns the rows of each request in the step."""
        plan = self.scheduler.plan()
        parked = self.scheduler.slots.parked
        self.clock += 1
        for r, p in plan.placements:
            r.stamps.admitted_ns = self.clock
            if p.saves:
                parked.put(Entry(p.saves.tokens, p.saves.salt, self.backend.save(p.saves.slot)))
            if p.restored is not None:
                self.backend.restore(p.slot, p.restored.state)
                self.backend.truncate(p.slot, p.reused)
            elif p.source == p.slot:
                self.backend.truncate(p.slot, p.reused)
            else:
                self.backend.fork(p.source, p.slot, p.reused)
        assert plan.work or self.scheduler.idle, "work is waiting and nothing is done"
        if not plan.work:
            return []
        logits = self.backend.decode(plan.work)
        self.scheduler.computed(plan)
        for row, work in zip(logits, [w for w in plan.work if w.outputs], strict=True):
            r = work.request
            r.generated.append(r.sampler.draw(row))
            if len(r.generated) == r.max_tokens:
                r.finish = Finish.LENGTH
                self.scheduler.remove(r)
        return [len(work.tokens) for work in plan.work]

    def cancel(self, r: Request) -> None:
        if r.finish is None:
            r.finish = Finish.CANCELLED
            self.scheduler.remove(r)


def expected(r: Request) -> list[int]:
    tokens = list(r.prompt)
    for _ in range(r.max_tokens):
        tokens.append(scripted_token(tokens, VOCABULARY))
    return tokens[len(r.prompt) :]


prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=90)


class Arrival(NamedTuple):
    prompt: list[int]
    max_tokens: int
    salt: str
    priority: Priority
    steps: int  # until the next one
    cancels: bool  # somebody who came before


arrivals = st.lists(
    st.builds(
        Arrival,
        prompt=prompts,
        max_tokens=st.integers(1, 6),
        salt=st.sampled_from(["a", "b"]),
        priority=st.sampled_from(Priority),
        steps=st.integers(0, 3),
        cancels=st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(arrivals, st.booleans())
def test_output_is_that_of_an_undisturbed_run(plan: list[Arrival], rewinds: bool) -> None:
    machine, requests = Machine(rewinds), list[Request]()
    for arrival in plan:
        requests.append(request(arrival.prompt, arrival.max_tokens, arrival.salt, arrival.priority))
        machine.scheduler.add(requests[-1])
        for _ in range(arrival.steps):
            machine.step()
        if arrival.cancels:
            machine.cancel(requests[len(requests) // 2])
    for _ in range(2000):
        if machine.scheduler.idle:
            break
        machine.step()
    assert machine.scheduler.idle
    for r in requests:
        whole = r.generated == expected(r)
        assert whole if r.finish is Finish.LENGTH else r.generated == expected(r)[: len(r.generated)]


def test_a_long_prompt_is_computed_in_bites_beside_running_streams() -> None:
    machine = Machine()
    machine.scheduler.add(request([1], max_tokens=20))
    machine.step()
    machine.scheduler.add(long := request([2, 3] * 20))
    rows = [machine.step() for _ in range(3)]
    assert rows == [[1, 4], [1, 4], [1, 4]]
    assert long.phase is Phase.PREFILL


def test_a_prompt_has_the_machine_to_itself_when_nobody_streams() -> None:
    machine = Machine()
    machine.scheduler.add(request([2, 3] * 20))
    assert machine.step() == [16]


def test_several_short_prompts_share_a_step() -> None:
    machine = Machine()
    for first in (1, 2, 3):
        machine.scheduler.add(request([first] * 4))
    assert machine.step() == [4, 4, 4]


def test_a_stream_gets_its_row_in_every_step() -> None:
    machine = Machine()
    machine.scheduler.add(stream := request([1], max_tokens=10))
    machine.step()
    machine.scheduler.add(request([2] * 50))
    for step in range(2, 6):
        machine.step()
        assert len(stream.generated) == step


def test_no_more_requests_run_than_the_limit() -> None:
    machine = Machine()
    for first in range(5):
        machine.scheduler.add(request([first, first]))
    machine.step()
    assert repr(machine.scheduler) == "<Scheduler 2 waiting | 3 running | <Slots 3 live | 0 resident | 2 empty>>"


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    machine = Machine()
    machine.scheduler.add(first := request([2, 3] * 20))
    machine.step()
    machine.cancel(first)
    machine.scheduler.add(second := request([2, 3] * 20))
    machine.step()
    assert second.reused == 16


def test_a_short_prompt_does_not_queue_behind_a_long_one() -> None:
    machine = Machine()
    machine.scheduler.add(request([2] * 150))
    machine.step()
    machine.scheduler.add(short := request([3] * 8))
    assert machine.step() == [8, 8]
    assert short.generated


def test_a_long_prompt_gets_on_whatever_comes() -> None:
    long, *short = [request([n] * 20) for n in range(5)]
    for r in (long, *short):
        r.slot = 0
    assert dict(divide(16, [long, *short]))[long] >= 8


def test_prompts_beside_streams_are_as_large_as_the_target_allows() -> None:
    machine = Machine()
    machine.scheduler.add(request([1], max_tokens=20))
    machine.step()
    for rows in (1, 16, 32, 64):
        machine.scheduler.cost.observe(rows, rows * CONFIG.inter_token_target_s / 20)
    machine.scheduler.add(request([2, 3] * 20))
    assert machine.step() == [1, 16]
    for _ in range(50):
        machine.scheduler.cost.observe(17, 9.0)  # the machine became slow: the smallest bite, so that it gets on
    assert machine.step() == [1, 16]


def test_on_a_slow_machine_a_prompt_takes_its_share_of_time_and_not_crumbs() -> None:
    config = EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256)
    scheduler = Scheduler(config)
    slow = config.inter_token_target_s  # a stream alone takes all of the target
    scheduler.cost.observe(1, slow)
    for bite in (16, 512):
        scheduler.cost.observe(1 + bite, slow + bite * slow / 16)
    assert scheduler.bite(streams=1, new=100) == (STRETCH_MAX - 1) * 16


def test_a_long_prompt_does_not_pay_for_many_small_steps() -> None:
    """With thousands of tokens before it a step costs mostly the same for few tokens and for many."""
    scheduler = Scheduler(EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256))
    for rows, seconds in ((1, 0.1), (17, 0.59), (257, 0.9)):
        scheduler.cost.observe(rows, seconds)
    assert scheduler.bite(streams=1, new=100) == 16
    assert scheduler.bite(streams=1, new=4000) == 256


def test_no_prompt_is_so_long_that_the_answers_beside_it_stop() -> None:
    scheduler = Scheduler(EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256))
    for rows, seconds in ((1, 0.5), (17, 2.1), (257, 26.1)):  # a large model on a small machine: 0.1 s a row
        scheduler.cost.observe(rows, seconds)
    assert scheduler.bite(streams=1, new=100) == 16
    assert scheduler.bite(streams=1, new=1_000_000) * 0.1 + 0.5 <= LONGER_MAX * STRETCH_MAX * 0.5


def test_a_higher_class_takes_the_place_of_a_lower_one_which_loses_nothing() -> None:
    machine = Machine()
    batch = [request([n, n], max_tokens=6, priority=Priority.BATCH) for n in range(3)]
    for r in batch:
        machine.scheduler.add(r)
    machine.step()
    machine.scheduler.add(urgent := request([4, 4], max_tokens=2, priority=Priority.INTERACTIVE))
    machine.step()
    assert urgent.generated and batch[2].phase is Phase.WAITING
    while not machine.scheduler.idle:
        machine.step()
    assert all(r.generated == expected(r) for r in [*batch, urgent])


def test_nobody_takes_the_place_of_his_own_class() -> None:
    machine = Machine()
    for n in range(4):
        machine.scheduler.add(request([n, n], max_tokens=9, priority=Priority.INTERACTIVE))
    machine.step()
    machine.step()
    assert (machine.scheduler.running, machine.scheduler.waiting) == (3, 1)


def test_tenants_get_fair_shares() -> None:
    machine = Machine()
    greedy = [request([n % VOCABULARY] * 10, max_tokens=2, salt="greedy") for n in range(8)]
    for r in greedy:
        machine.scheduler.add(r)
    machine.step()
    machine.scheduler.add(modest := request([1] * 10, max_tokens=2, salt="modest"))
    while modest.finish is None:
        machine.step()
    assert sum(r.finish is None for r in greedy) >= 3  # it overtook those who came before it


@given(st.integers(1, 600), st.lists(st.integers(1, 700), min_size=1, max_size=8))
def test_a_budget_is_never_exceeded_and_spent_but_for_a_crumb(budget: int, sizes: list[int]) -> None:
    prefilling = [request([0] * size) for size in sizes]
    for r in prefilling:
        r.slot = 0
    given_tokens = divide(budget, prefilling)
    wanted = min(budget, sum(sizes))
    assert wanted - CRUMB < sum(tokens for _, tokens in given_tokens) <= wanted
    assert all(tokens >= CRUMB or tokens == r.remaining for r, tokens in given_tokens[1:])
    assert all(0 < tokens <= r.remaining for r, tokens in given_tokens)


def test_prompts_of_one_length_are_computed_whole_and_none_is_begun_with_a_crumb() -> None:
    prefilling = [request([n] * 60) for n in range(4)]
    for r in prefilling:
        r.slot = 0
    assert [tokens for _, tokens in divide(130, prefilling)] == [60, 60]
    assert [tokens for _, tokens in divide(140, prefilling)] == [60, 60, 20]


def test_what_no_other_prompt_wants_is_the_long_ones() -> None:
    prefilling = [request([n] * size) for n, size in enumerate([500, 20, 300])]
    for r in prefilling:
        r.slot = 0
    assert [tokens for _, tokens in divide(60, prefilling)] == [40, 20]
