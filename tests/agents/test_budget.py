from __future__ import annotations

import pytest

from agents.turn import IDENTICAL_CALLS_MAX, Budget, Limits

SECOND = 1_000_000_000


def test_nothing_is_spent_at_the_start() -> None:
    assert Budget(Limits(), 0).spent(0) is None


@pytest.mark.parametrize(
    ("used", "now_s", "name"),
    [
        (Budget(Limits(steps=3), 0, steps=2), 0, "steps"),
        (Budget(Limits(steps=3), 0, steps=1), 0, None),
        (Budget(Limits(steps=1), 0), 0, "steps"),
        (Budget(Limits(calls=2), 0, calls=2), 0, "calls"),
        (Budget(Limits(calls=2), 0, calls=1), 0, None),
        (Budget(Limits(seconds=5), 0), 5, "wall_clock"),
        (Budget(Limits(seconds=5), 0), 4.9, None),
        (Budget(Limits(tokens=4096), 0, tokens=3840), 0, "tokens"),
        (Budget(Limits(tokens=4096), 0, tokens=3839), 0, None),
        (Budget(Limits(tokens=100), 0, tokens=75), 0, "tokens"),
        (Budget(Limits(tokens=100), 0, tokens=74), 0, None),
    ],
)
def test_a_budget_is_spent_when_the_next_step_must_be_the_answer(used: Budget, now_s: float, name: str | None) -> None:
    assert used.spent(int(now_s * SECOND)) == name


def test_as_many_calls_run_as_the_budget_has() -> None:
    budget = Budget(Limits(calls=3), 0)
    assert [budget.admit("f", f'{{"x": {i}}}') for i in range(5)] == [True, True, True, False, False]


def test_the_same_call_again_and_again_is_refused() -> None:
    budget = Budget(Limits(), 0)
    assert all(budget.admit("f", '{"a": 1, "b": 2}') for _ in range(IDENTICAL_CALLS_MAX))
    assert not budget.admit("f", '{"b":2,"a":1}')
    assert budget.spent(0) == "repeated_call"


def test_other_arguments_are_another_call() -> None:
    budget = Budget(Limits(), 0)
    assert all(budget.admit(name, text) for name in "fgh" for text in ('{"x": 1}', '{"x": "1"}', "not json"))
    assert budget.spent(0) is None
