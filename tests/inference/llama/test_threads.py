"""The number of threads follows what is measured: simulated machines whose cores others use, too."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import pytest

from inference.llama.threads import FEWER_SHARE, MORE_SHARE, ThreadChooser, thread_options

SPREAD = 0.05  # of the times of equal steps

Seconds = Callable[[int, int, float], float]  # of a step, by rows, threads and time


@dataclass(frozen=True, slots=True)
class Step:
    began_s: float
    rows: int
    seconds: float
    fastest_s: float  # with the best number of threads


class Served(list[Step]):
    """The steps of a simulated worker."""

    def loss(self, begin_s: float = 0.0, end_s: float = inf, rows: int | None = None) -> float:
        """How much longer they took than with the best numbers of threads, as a share."""
        steps = [step for step in self if begin_s <= step.began_s < end_s and rows in (None, step.rows)]
        return sum(step.seconds for step in steps) / sum(step.fastest_s for step in steps) - 1


def served(
    options: Sequence[int],
    seconds: Seconds,
    rows: Sequence[int],
    until_s: float,
    start: int = 0,
    cores: Callable[[float], float] | None = None,
) -> Served:
    """`rows` of the steps in turn; 0 is a second without work. `cores`: left by others in the window of half a second
    that ends at that time, if it is known."""
    chooser, draw, now_s, turn, done = ThreadChooser(options, start), random.Random(1), 0.0, 0, Served()
    window_s = 0.0
    while now_s < until_s:
        if cores and now_s - window_s >= 0.5:
            window_s = now_s
            chooser.notice(cores(now_s), now_s)
        count = rows[turn % len(rows)]
        turn += 1
        if not count:
            now_s += 1
            continue
        threads = chooser.choose(count, now_s)
        took_s = seconds(count, threads, now_s)
        done.append(Step(now_s, count, took_s, min(seconds(count, option, now_s) for option in options)))
        took_s *= draw.lognormvariate(0, SPREAD)
        chooser.observe(count, threads, took_s)
        now_s += took_s
    return done


def machine(cores: float, base_ms: float, row_ms: float, barriers_ms: float = 0.05) -> Seconds:
    """The time of a step where so many cores are free. Threads that share a core with something else get half of it,
    and the others wait for them at each barrier."""

    def seconds(rows: int, threads: int, _now: float) -> float:
        shared = min(1.0, max(0.0, threads - cores))
        computing_ms = (base_ms + row_ms * rows) / threads * (1 + shared)
        return (computing_ms + barriers_ms * (threads - 1) * (1 + 40 * shared)) / 1e3

    return seconds


def changing(first: Seconds, second: Seconds, at_s: float) -> Seconds:
    return lambda rows, threads, now: (first if now < at_s else second)(rows, threads, now)


FREE, TAKEN = machine(2, 2, 0.6), machine(1, 2, 0.6)
ALLOWED = 1.3 * (FEWER_SHARE + MORE_SHARE)  # what a trial costs is only known afterwards


@pytest.mark.parametrize("rows", [1, 8, 16, 64])
@pytest.mark.parametrize("seconds", [FREE, TAKEN])
def test_the_choice_settles_within_a_second_and_then_trying_costs_less_than_a_hundredth(
    rows: int, seconds: Seconds
) -> None:
    assert served([1, 2], seconds, [rows], 20).loss(1) < ALLOWED


@pytest.mark.parametrize("rows", [1, 16])
def test_a_core_that_is_taken_is_noticed_within_a_second(rows: int) -> None:
    assert served([1, 2], changing(FREE, TAKEN, 5), [rows], 15).loss(6) < ALLOWED


@pytest.mark.parametrize("rows", [1, 16])
def test_a_core_that_becomes_free_is_noticed_within_a_few_seconds(rows: int) -> None:
    assert served([1, 2], changing(TAKEN, FREE, 5), [rows], 20).loss(10) < ALLOWED


def crowded(rows: int, threads: int, now_s: float) -> float:
    """Beside a program whose threads spin: who has more than one waits for a core at each barrier."""
    return FREE(rows, threads, now_s) * (1 if threads > 1 else 1.6) + 2 * (threads > 1)


def test_a_core_that_others_leave_is_used_within_a_second_whatever_it_cost_before() -> None:
    def left(now_s: float) -> float:
        return 1.0 if now_s < 20.5 else 2.0

    after = served([1, 2], changing(crowded, FREE, 20), [16] * 15 + [64], 30, cores=left)
    assert after.loss(21.2) < ALLOWED
    assert after.loss(21.2, rows=64) < ALLOWED


def test_more_threads_are_seldom_tried_beside_a_program_that_is_known_to_go_on() -> None:
    steps = served([1, 2], crowded, [1] * 15 + [64], 300, cores=lambda _now: 1.0)
    assert sum(step.seconds for step in steps if step.seconds > 2) < 0.1 * 300


def test_a_program_that_rests_now_and_then_makes_more_threads_no_temptation() -> None:
    """Whenever they are tried, it has woken up again."""

    def left(now_s: float) -> float:
        return 1.0 + now_s // 0.5 % 2

    often, once = (served([1, 2], crowded, [1] * 15 + [64], 150, cores=cores) for cores in (left, None))
    tried = [sum(step.seconds > 2 for step in steps) for steps in (often, once)]
    assert tried[0] <= tried[1] + 8


def test_a_machine_that_stood_still_is_used_again_within_a_few_seconds() -> None:
    """What took two seconds then says nothing about what a trial costs afterwards."""

    def stalling(rows: int, threads: int, now_s: float) -> float:
        return TAKEN(rows, threads, now_s) + 2 * (now_s < 9 and threads > 1)

    assert served([1, 2], changing(stalling, FREE, 10), [1], 25).loss(18) < ALLOWED


def test_time_without_work_counts_too() -> None:
    """What a busy minute taught is asked again by the first answer after it, not after as many steps."""
    answer_and_pause = [1] * 64 + [0] * 5
    assert served([1, 2], changing(TAKEN, FREE, 60), answer_and_pause, 90).loss(70) < ALLOWED


def test_what_changes_for_one_size_of_step_is_asked_again_for_all() -> None:
    """Prompts are rare among steps of streams: by their own share of the time, they would learn it after minutes."""
    after = served([1, 2], changing(TAKEN, FREE, 5), [16] * 49 + [256], 40)
    assert after.loss(15, rows=256) < 0.1


@pytest.mark.parametrize("at_s", [0, 5])
def test_threads_that_wait_for_a_core_at_each_barrier_are_given_up_by_all_sizes_at_once(at_s: float) -> None:
    """Beside a program whose own threads spin, a step takes seconds with more than one, be it that of a short prompt.
    When that program has ended, all sizes get their threads back."""

    def crowded(rows: int, threads: int, now_s: float) -> float:
        return FREE(rows, threads, now_s) + 2 * (threads > 1)

    turns = [8] + [1] * 13 + [64] + [1] * 13 + [16] + [1] * 13
    busy = changing(changing(FREE, crowded, at_s), FREE, 60)
    steps = served([1, 2], busy, turns, 160)
    late = Counter(step.rows for step in steps if at_s <= step.began_s < 60 and step.seconds > 2)
    assert late[8] + late[16] + late[64] <= 3
    assert steps.loss(120) < 0.1


def test_each_size_of_step_gets_the_threads_that_are_fastest_for_it() -> None:
    tiny = machine(4, 0.2, 0.5, barriers_ms=0.5)
    assert served([1, 2, 3, 4], tiny, [1] * 20 + [256], 20).loss(5) < ALLOWED


def test_steps_with_different_numbers_of_rows_are_not_compared() -> None:
    """With 31 rows a step takes twice as long as with 16, with any number of threads."""
    assert served([1, 2], machine(2, 0, 1.0), [16, 31], 20).loss(1) < ALLOWED


def test_the_event_loop_and_the_database_keep_the_core_that_they_use() -> None:
    """Of four cores, they use half of one: a thread less is faster. Or a twentieth: all threads are."""
    options = thread_options(1, 4, 4)
    assert served(options, machine(3.5, 4, 1.0), [8], 10, start=4).loss(1) < ALLOWED
    assert served(options, machine(3.95, 4, 1.0, barriers_ms=0.01), [8], 10, start=4).loss(1) < ALLOWED


def test_the_halves_of_cores_are_used_only_where_they_help() -> None:
    def halves(_rows: int, threads: int, _now: float) -> float:
        """Sixteen cores. Threads on both halves of a core slow each other, and all others wait for them."""
        return 0.032 / threads * (2.2 if threads > 16 else 1.0)

    options = thread_options(1, 32, 16)
    assert {1, 15, 16, 31, 32} <= set(options) and len(options) < 16
    assert served(options, halves, [4], 10, start=16).loss(1) < ALLOWED


def test_a_model_that_is_too_small_for_many_cores_gets_few_within_a_second() -> None:
    few = machine(64, 1.0, 0.2, barriers_ms=0.1)  # fastest with three or four
    assert served(thread_options(1, 64, 64), few, [1], 10, start=64).loss(1) < 2 * ALLOWED


def test_a_large_step_is_not_slowed_by_trying_what_loses_in_small_ones() -> None:
    assert served([1, 2], FREE, [8] * 100 + [256] * 20, 3.0).loss(rows=256) == 0.0


def test_the_very_first_step_gets_all_cores_that_are_not_halves() -> None:
    assert ThreadChooser([1, 2]).choose(256, 0.0) == 2
    assert ThreadChooser(thread_options(1, 8, 4), 4).choose(1, 0.0) == 4


def test_one_core_or_a_fixed_number_of_threads_leaves_no_choice() -> None:
    assert thread_options(1, 1, 1) == [1] and thread_options(3, 3, 2) == [3]
    assert served([1], FREE, [5], 1.0).loss() == 0.0
