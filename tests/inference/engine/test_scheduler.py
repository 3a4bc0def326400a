"""What a step computes: whose turn it is, in which chunks, and who gives a place up to whom."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.engine.scheduler import (
    AHEAD_STEP_S,
    BATCH_STEP_S,
    URGENT_NS,
    YIELDS_MAX,
    Scheduler,
)
from inference.engine.step import LONGER_MAX, MIN_CHUNK, STRETCH_MAX, Plan, Work, divide, whole_prompts, within_cells
from inference.generation import Finish, Priority
from inference.kvcache.slots import SHARED_PREFILL_MIN
from tests.inference.machine import CONFIG, VOCABULARY, Machine, expected, request


def test_a_long_prompt_is_computed_in_bites_beside_running_streams() -> None:
    machine = Machine()
    machine.scheduler.add(request([1], max_tokens=20))
    machine.step()
    machine.scheduler.add(long := request([2, 3] * 20))
    rows = [machine.step() for _ in range(3)]
    assert rows == [[1, 4], [1, 4], [1, 4]]
    assert long.slot is not None and not long.decodes


def test_a_prompt_has_the_machine_to_itself_when_nobody_streams() -> None:
    machine = Machine()
    machine.scheduler.add(request([2, 3] * 20))
    assert machine.step() == [16]


def test_a_prompt_that_is_read_alone_is_parted_where_attention_reads_more_cells() -> None:
    machine = Machine(EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256))
    machine.scheduler.add(short := request([2] * 50, max_tokens=1))
    machine.finish(short)
    machine.scheduler.add(long := request([2] * 50 + [3] * 300, max_tokens=1))
    assert [machine.step() for _ in range(2)] == [[206], [94]]
    assert long.finish


@pytest.mark.parametrize(("computed", "tokens"), [(0, 256), (50, 206), (224, 32), (225, 256), (400, 112)])
def test_no_part_of_a_prompt_is_so_short_that_it_saves_nothing(computed: int, tokens: int) -> None:
    (long := request([2] * 1000)).computed = computed
    assert within_cells(256, long) == tokens


def test_what_completes_a_prompt_is_not_parted() -> None:
    (nearly_read := request([2] * 300)).computed = 50
    assert within_cells(256, nearly_read) == 256


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
    assert (machine.scheduler.waiting, machine.scheduler.running) == (2, 3)


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    machine = Machine()
    machine.scheduler.add(first := request([2, 3] * 20))
    machine.step()
    machine.cancel(first)
    machine.scheduler.add(second := request([2, 3] * 20))
    machine.step()
    assert second.cached_tokens == 16


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
        machine.scheduler.cost.observe(17, 9.0)  # the machine became slow: the smallest chunk, so that it gets on
    assert machine.step() == [1, 16]


def test_on_a_slow_machine_a_prompt_takes_its_share_of_time_and_not_crumbs() -> None:
    config = EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256)
    scheduler = Scheduler(config)
    slow = config.inter_token_target_s  # a stream alone takes all of the target
    scheduler.cost.observe(1, slow)
    for chunk in (16, 512):
        scheduler.cost.observe(1 + chunk, slow + chunk * slow / 16)
    assert scheduler.chunks.size(streams=1, new=100) == (STRETCH_MAX - 1) * 16


def test_no_bite_is_larger_than_a_step() -> None:
    scheduler = Scheduler(EngineConfig(prefill_tokens_first=64, prefill_tokens_alone=8))
    assert scheduler.chunks.size(streams=1, new=100) == 8
    scheduler.cost.observe(1, 9.0)
    assert scheduler.chunks.size(streams=1, new=100) == 8


def test_a_long_prompt_does_not_pay_for_many_small_steps() -> None:
    """With thousands of tokens before it a step costs mostly the same for few tokens and for many."""
    scheduler = Scheduler(EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256))
    for rows, seconds in ((1, 0.1), (17, 0.59), (257, 0.9)):
        scheduler.cost.observe(rows, seconds)
    assert scheduler.chunks.size(streams=1, new=100) == 16
    assert scheduler.chunks.size(streams=1, new=4000) == 256


def test_no_prompt_is_so_long_that_the_answers_beside_it_stop() -> None:
    scheduler = Scheduler(EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256))
    for rows, seconds in ((1, 0.5), (17, 2.1), (257, 26.1)):  # a large model on a small machine: 0.1 s a row
        scheduler.cost.observe(rows, seconds)
    assert scheduler.chunks.size(streams=1, new=100) == 16
    assert scheduler.chunks.size(streams=1, new=1_000_000) * 0.1 + 0.5 <= LONGER_MAX * STRETCH_MAX * 0.5


def test_a_higher_class_takes_the_place_of_a_lower_one_which_loses_nothing() -> None:
    machine = Machine()
    batch = [request([n, n], max_tokens=6, priority=Priority.BATCH) for n in range(3)]
    for r in batch:
        machine.scheduler.add(r)
    machine.step()
    machine.scheduler.add(urgent := request([4, 4], max_tokens=2, priority=Priority.INTERACTIVE))
    machine.step()
    assert urgent.generated and batch[2].slot is None
    while not machine.scheduler.idle:
        machine.step()
    assert all(r.generated == expected(r) for r in [*batch, urgent])


def test_those_that_nobody_waits_for_stand_still_while_a_prompt_is_read() -> None:
    machine = Machine()
    machine.scheduler.add(answer := request([1, 1], 9, priority=Priority.BATCH))
    machine.step()
    machine.scheduler.add(request([2, 2] * 20, 9, priority=Priority.BATCH))
    machine.step()
    machine.scheduler.add(waited := request([3, 3] * 4, 9))
    assert machine.step() == [8]
    assert waited.generated and len(answer.generated) == 2
    machine.step()
    assert len(answer.generated) == 3


@pytest.mark.parametrize("priority", [Priority.BATCH, Priority.AHEAD])
def test_a_prompt_that_nobody_waits_for_leaves_the_step_to_one_that_somebody_does(priority: Priority) -> None:
    machine = Machine()
    machine.scheduler.add(request([2, 2] * 20, 9, priority=priority))
    machine.step()
    machine.scheduler.add(request([3, 3] * 4, 9))
    assert machine.step() == [8]


def test_what_is_read_ahead_takes_at_most_half_of_the_time_of_the_answers_beside_it() -> None:
    machine = Machine(EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256), step_s=0.020, row_s=0.001)
    machine.scheduler.add(request([1], max_tokens=20))
    machine.step()
    machine.scheduler.add(request([2, 3] * 100, 0, priority=Priority.AHEAD))
    assert machine.step() == [1, 16]
    assert machine.seconds <= 0.021 + 2 * 0.021


def test_a_longer_beginning_that_is_read_ahead_continues_from_a_shorter_one() -> None:
    machine = Machine()
    beginning = [n % 26 for n in range(32)]
    machine.add(shorter := request(beginning, 0, priority=Priority.AHEAD))
    machine.step()
    machine.add(longer := request([*beginning, *beginning], 0, priority=Priority.AHEAD))
    assert (shorter.finish, longer.finish) == (Finish.CANCELLED, None)
    machine.finish(longer)
    assert longer.cached_tokens == shorter.computed > 0


def test_those_that_nobody_waits_for_do_not_stand_still_for_good() -> None:
    machine = Machine()
    machine.scheduler.add(answer := request([1, 1], 9, priority=Priority.BATCH))
    machine.step()
    machine.scheduler.add(request([2, 3] * 1000, 9))
    for _ in range(YIELDS_MAX):
        assert len(machine.step()) == 1
    assert len(answer.generated) == 1
    machine.step()
    assert len(answer.generated) == 2


def test_nobody_takes_the_place_of_his_own_class() -> None:
    machine = Machine()
    for n in range(4):
        machine.scheduler.add(request([n, n], max_tokens=9, priority=Priority.INTERACTIVE))
    machine.step()
    machine.step()
    assert (machine.scheduler.running, machine.scheduler.waiting) == (3, 1)


def shared(length: int, *tail: int) -> list[int]:
    return [(n * 7 + n // 3) % VOCABULARY for n in range(length)] + list(tail)


def test_nobody_loses_a_place_to_somebody_who_cannot_take_it() -> None:
    machine = Machine(EngineConfig(parallel=3, resident=2, prefill_tokens_first=8, prefill_tokens_alone=16))
    batch = [request([n] * 5, 300, priority=Priority.BATCH) for n in (1, 2)]
    leader = request(shared(200, 1), 1, priority=Priority.INTERACTIVE)
    followers = [request(shared(200, n, n), 1, priority=Priority.INTERACTIVE) for n in (2, 3)]
    machine.add(*batch)
    machine.step()
    machine.add(leader)
    machine.step()
    machine.add(*followers)
    while leader.computed < 200 - SHARED_PREFILL_MIN:
        machine.step()
        assert all(r.decodes for r in batch), "a follower that waits took a place"
    machine.finish(*followers)
    assert all(r.cached_tokens > 200 - SHARED_PREFILL_MIN for r in followers)


def test_nobody_waits_for_what_a_lower_class_computes() -> None:
    """The pace of a lower class is what the higher ones leave to it: here nothing, as long as they keep coming."""
    config = EngineConfig(parallel=8, resident=4, prefill_tokens_first=16, prefill_tokens_alone=16)
    chance, machine = random.Random(3), Machine(config)
    machine.add(leader := request(shared(200, 1), 1, priority=Priority.BATCH))
    machine.step()
    machine.add(follower := request(shared(200, 2), 1, priority=Priority.INTERACTIVE))
    steps = 0
    while follower.finish is None and steps < 100:
        prompt = [chance.randrange(VOCABULARY) for _ in range(16)]
        machine.add(request(prompt, 1, tenant=str(steps), priority=Priority.INTERACTIVE))
        machine.step()
        steps += 1
    assert steps <= 200 / 8  # half of each step is its own
    assert (leader.slot, follower.cached_tokens) == (None, 16)
    machine.finish(leader)
    assert leader.generated == expected(leader)


def test_a_lower_class_goes_on_behind_the_one_that_took_its_work_over() -> None:
    machine = Machine()
    machine.add(leader := request(shared(100, 1), 1, priority=Priority.BATCH))
    machine.step()
    machine.add(follower := request(shared(100, 2), 1, priority=Priority.INTERACTIVE))
    assert machine.finish(leader, follower) < 100 / 16 + 3
    assert sum(machine.backend.steps) <= 100 + 2 * 1 + 32, "the beginning was computed once"


def test_deterministic_requests_lock_nobody_out() -> None:
    machine = Machine()
    exact = [request([n] * 5, 30, priority=Priority.BATCH, exact=True) for n in range(3)]
    machine.add(*exact)
    for _ in range(10):
        machine.step()
    machine.add(urgent := request([4] * 5, 2, priority=Priority.INTERACTIVE))
    assert machine.finish(urgent) <= 3
    machine.finish(*exact)
    assert [r.generated for r in exact] == [expected(r) for r in exact]


def test_a_deterministic_answer_that_lost_its_place_is_read_as_it_was_written() -> None:
    """Its prompt in rows together, its answer row by row: the same tokens computed otherwise differ in their bits."""
    machine = Machine(EngineConfig(parallel=1, resident=0, parked_bytes_max=0, prefill_tokens_alone=16))
    machine.add(exact := request([1] * 40, 12, priority=Priority.BATCH, exact=True))
    while len(exact.generated) < 8:
        machine.step()
    machine.add(urgent := request([4] * 5, 2, priority=Priority.INTERACTIVE))
    machine.finish(urgent)
    again = []
    while exact.finish is None:
        again += machine.step()
    assert (exact.cached_tokens, again) == (0, [16, 16, 8, *[1] * 11])
    assert exact.generated == expected(exact)


def test_of_one_class_a_deterministic_request_keeps_its_place_longest() -> None:
    machine = Machine()
    machine.add(*(batch := [request([n] * 5, 9, priority=Priority.BATCH, exact=n > 0) for n in range(3)]))
    machine.step()
    machine.add(request([4] * 5, priority=Priority.INTERACTIVE))
    machine.step()
    assert [r.slot is None for r in batch] == [True, False, False]


def test_tenants_get_fair_shares() -> None:
    machine = Machine()
    greedy = [request([n % VOCABULARY] * 10, max_tokens=2, tenant="greedy") for n in range(8)]
    for r in greedy:
        machine.scheduler.add(r)
    machine.step()
    machine.scheduler.add(modest := request([1] * 10, max_tokens=2, tenant="modest"))
    while modest.finish is None:
        machine.step()
    assert sum(r.finish is None for r in greedy) >= 3  # it overtook those who came before it


@pytest.mark.parametrize("prompt", [3, 90])
def test_beside_a_crowd_an_answer_takes_at_most_twice_its_time_and_the_crowd_gets_on(prompt: int) -> None:
    config = EngineConfig(parallel=8, resident=2)
    alone, crowded = (Machine(config, step_s=0.004, row_s=0.002) for _ in range(2))
    crowd = [request([n % VOCABULARY] * 2, 300, tenant="crowd") for n in range(7)]
    crowded.add(*crowd)
    for _ in range(50):
        crowded.step()
    before_s, before = crowded.seconds, sum(len(r.generated) for r in crowd)
    for machine in (alone, crowded):
        machine.add(modest := request([1] * prompt, 60, tenant="modest"))
        machine.finish(modest)
    took_s = crowded.seconds - before_s
    assert took_s <= 2 * alone.seconds + 0.02  # and a step of all
    assert sum(len(r.generated) for r in crowd) - before >= 7 * 0.4 * (took_s - config.inter_token_target_s) / 0.02


def test_one_long_prompt_is_no_crowd() -> None:
    machine = Machine(EngineConfig(parallel=4, resident=2), step_s=0.004, row_s=0.002)
    machine.add(*(request([n] * 2, 60, tenant=f"stream {n}") for n in range(3)))
    machine.step()
    machine.add(long := request([3] * 300, tenant="reader"))
    while not long.generated:
        before = long.computed
        machine.step()
        assert long.computed > before


def test_a_lower_class_has_no_step_to_itself_beside_a_higher_one() -> None:
    machine = Machine(EngineConfig(parallel=4, resident=2), step_s=0.004, row_s=0.002)
    machine.add(*(people := [request([n] * 2, 60, tenant="crowd") for n in range(3)]))
    machine.add(request([3] * 2, 60, tenant="modest", priority=Priority.BATCH))
    for step in range(1, 40):
        machine.step()
        assert [len(r.generated) for r in people] == [step] * 3


def test_a_tenant_has_one_share_for_deterministic_and_other_requests() -> None:
    machine = Machine()
    machine.add(request([1] * 10, 50, tenant="greedy"), request([2] * 10, 50, tenant="modest"))
    machine.add(*(greedy := [request([n] * 10, 20, tenant="greedy") for n in (3, 4)]))
    machine.finish(greedy[0])
    machine.add(
        exact := request([0] * 10, 2, tenant="greedy", exact=True), modest := request([1] * 5, 2, tenant="modest")
    )
    machine.finish(modest)
    assert exact.finish is None, "what its tenant was served before counts"


@given(st.integers(1, 600), st.lists(st.integers(1, 700), min_size=1, max_size=8))
def test_a_budget_is_never_exceeded_and_spent_but_for_a_crumb(budget: int, sizes: list[int]) -> None:
    prefilling = [request([0] * size) for size in sizes]
    for r in prefilling:
        r.slot = 0
    given_tokens = divide(budget, prefilling)
    wanted = min(budget, sum(sizes))
    assert wanted - MIN_CHUNK < sum(tokens for _, tokens in given_tokens) <= wanted
    assert all(tokens >= MIN_CHUNK or tokens == r.remaining for r, tokens in given_tokens[1:])
    assert all(0 < tokens <= r.remaining for r, tokens in given_tokens)


def test_prompts_of_one_length_are_computed_whole_and_none_is_begun_with_a_crumb() -> None:
    prefilling = [request([n] * 60) for n in range(4)]
    for r in prefilling:
        r.slot = 0
    assert [tokens for _, tokens in divide(130, prefilling)] == [60, 60]
    assert [tokens for _, tokens in divide(140, prefilling)] == [60, 60, 20]


def test_whole_prompts_are_the_oldest_and_then_the_shortest_unless_the_oldest_does_not_fit() -> None:
    prefilling = [request([n] * size) for n, size in enumerate([60, 50, 20, 30])]
    for r in prefilling:
        r.slot = 0
    oldest, longer, shortest, short = prefilling
    assert whole_prompts(120, prefilling) == [(oldest, 60), (shortest, 20), (short, 30)]
    assert whole_prompts(160, prefilling)[-1] == (longer, 50)
    assert whole_prompts(59, prefilling) == [], "it would wait for as long as short ones come"


def beside_a_stream(*, pace_s: float | None = None, priority: Priority = Priority.STANDARD) -> Machine:
    """Where 64 tokens of a prompt beside the stream are within the usual limit."""
    machine = Machine(EngineConfig(parallel=4, resident=2, prefill_tokens_alone=256))
    stream = request([1], max_tokens=20, priority=priority)
    stream.pace_s = pace_s
    machine.scheduler.add(stream)
    machine.step()
    for rows in (1, 16, 32, 64, 128, 256):
        machine.scheduler.cost.observe(rows, rows * CONFIG.inter_token_target_s / 70)
    return machine


def test_streams_do_not_wait_once_more_for_the_rest_of_a_prompt() -> None:
    machine = beside_a_stream()
    for n in (2, 3, 4):
        machine.scheduler.add(request([n] * 50))
    assert machine.step() == [1, 50, 50], "a third would be beyond twice the limit"
    assert machine.step()[-1] == 50


@pytest.mark.parametrize(("priority", "prompt"), [(Priority.STANDARD, 60), (Priority.INTERACTIVE, 16)])
def test_for_whole_prompts_of_its_class_or_a_higher_one_a_stream_falls_behind_its_pace(
    priority: Priority, prompt: int
) -> None:
    machine = beside_a_stream(pace_s=0.005, priority=priority)
    machine.scheduler.add(request([2] * 60))
    assert machine.step() == [1, prompt]


def test_what_no_other_prompt_wants_is_the_long_ones() -> None:
    prefilling = [request([n] * size) for n, size in enumerate([500, 20, 300])]
    for r in prefilling:
        r.slot = 0
    assert [tokens for _, tokens in divide(60, prefilling)] == [40, 20]


@pytest.mark.parametrize(
    ("drafts", "parted", "told"),
    [
        ([[], []], True, True),
        ([[1, 2], [3, 4]], True, True),
        ([[1, 2], []], True, False),
        ([[1, 2], []], False, True),
    ],
)
def test_a_step_whose_drafts_are_computed_apart_tells_nothing_of_the_cost_of_rows(
    drafts: list[list[int]], parted: bool, told: bool
) -> None:
    plan = Plan(work=[Work(slot, 0, [1], request=request([1])).with_draft(draft) for slot, draft in enumerate(drafts)])
    assert plan.cost_follows_rows(parted=parted) is told


@pytest.mark.parametrize(("priority", "most_s"), [(Priority.BATCH, BATCH_STEP_S), (Priority.AHEAD, AHEAD_STEP_S)])
def test_a_step_of_nothing_but_batch_requests_is_short_while_more_urgent_ones_are_to_be_expected(
    priority: Priority, most_s: float
) -> None:
    scheduler = Scheduler(EngineConfig(parallel=3, resident=2, prefill_tokens_alone=256))
    for rows in (1, 16, 64, 256, 512):
        scheduler.cost.observe(rows, rows / 1000)

    def rows_of_batch_at(seconds: float) -> int:
        scheduler.add(prompt := request([next(first), 9] * 300, priority=priority))
        rows = scheduler.fill(scheduler.admit(), int(seconds * 1e9)).rows
        scheduler.remove(prompt)
        return rows

    first = count(10)
    assert rows_of_batch_at(0.0) == 256
    scheduler.add(urgent := request([1, 1]))
    scheduler.fill(scheduler.admit(), 10**9)
    scheduler.remove(urgent)
    assert 0.6 * most_s < rows_of_batch_at(1.5) / 1000 <= most_s
    assert rows_of_batch_at(1.5 + URGENT_NS / 1e9) == 256
