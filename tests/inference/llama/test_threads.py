"""The number of threads follows what is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from inference.llama.threads import EXPLORATION_SHARE, ThreadChooser


def run(chooser: ThreadChooser, rows: int, seconds: Callable[[int], float], steps: int) -> Counter[int]:
    chosen: Counter[int] = Counter()
    for _ in range(steps):
        threads = chooser.choose(rows)
        chosen[threads] += 1
        chooser.observe(rows, threads, seconds(threads))
    return chosen


def test_each_size_of_step_gets_the_threads_that_are_fastest_for_it() -> None:
    chooser = ThreadChooser([1, 4])
    small = run(chooser, 1, lambda threads: 1.0 * threads, 500)
    large = run(chooser, 512, lambda threads: 100.0 / threads, 500)
    assert small[1] > 480 and large[4] > 480


def test_trying_the_slower_choice_costs_next_to_nothing() -> None:
    chooser = ThreadChooser([1, 2])
    chosen = run(chooser, 1, lambda threads: {1: 1.0, 2: 8.0}[threads], 20_000)
    assert chosen[2] > 1
    assert chosen[2] * 7.0 < 20_000 * EXPLORATION_SHARE * 1.5


def test_a_change_of_the_machine_turns_the_choice_around() -> None:
    chooser = ThreadChooser([1, 2])
    run(chooser, 64, lambda threads: 1.0 / threads, 1000)
    after = run(chooser, 64, lambda threads: {1: 1.0, 2: 10.0}[threads], 1000)
    assert after[1] > 900


def test_when_a_busy_machine_is_free_again_one_try_tells() -> None:
    chooser = ThreadChooser([1, 2])
    run(chooser, 8, lambda threads: {1: 3.0, 2: 9.0}[threads], 1000)
    after = run(chooser, 8, lambda threads: {1: 3.0, 2: 1.7}[threads], 500)
    assert after[2] > 250


def test_one_odd_step_changes_nothing() -> None:
    chooser = ThreadChooser([1, 2])
    run(chooser, 64, lambda threads: 1.0 / threads, 100)
    chooser.observe(64, 2, 1.2)
    assert run(chooser, 64, lambda threads: 1.0 / threads, 10)[2] >= 9


def test_a_large_step_is_not_slowed_by_trying_what_loses_in_small_ones() -> None:
    chooser = ThreadChooser([1, 2])
    run(chooser, 8, lambda threads: 1.0 / threads, 10)
    assert run(chooser, 256, lambda threads: 30.0 / threads, 10) == {2: 10}


def test_a_large_step_gets_all_threads_where_a_small_one_does_not() -> None:
    chooser = ThreadChooser([1, 2])
    run(chooser, 1, lambda threads: 1.0 * threads, 100)
    assert run(chooser, 256, lambda threads: 30.0 / threads, 100)[2] > 90


def test_the_very_first_steps_get_all_threads() -> None:
    assert run(ThreadChooser([1, 2]), 256, lambda threads: 30.0 / threads, 3) == {2: 3}


def test_a_single_core_has_no_choice() -> None:
    assert run(ThreadChooser([1, 1]), 5, lambda threads: 1.0, 50) == {1: 50}
