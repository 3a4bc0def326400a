"""The cost of steps is learned."""

from __future__ import annotations

import pytest

from inference.engine.step import StepCost


def test_nothing_is_predicted_from_nothing_comparable() -> None:
    cost = StepCost()
    assert cost.predict(8) is None
    cost.observe(64, 1.0)
    assert cost.predict(8) is None  # a large step says nothing about the price of a small one


def test_between_two_sizes_the_cost_is_straight() -> None:
    cost = StepCost()
    cost.observe(1, 0.5)
    cost.observe(9, 0.9)
    assert cost.predict(5) == pytest.approx(0.7)


def test_beyond_the_largest_size_a_row_costs_what_it_does_there() -> None:
    cost = StepCost()
    cost.observe(1, 0.5)
    cost.observe(8, 0.8)
    assert cost.predict(100) == pytest.approx(10.0)


def test_the_prediction_follows_the_machine() -> None:
    cost = StepCost()
    cost.observe(8, 0.8)
    for _ in range(30):
        cost.observe(8, 1.6)
    assert cost.predict(8) == pytest.approx(1.6, rel=0.02)


def test_a_pause_of_the_machine_says_little_of_the_next_step() -> None:
    cost = StepCost()
    for _ in range(5):
        cost.observe(8, 0.01)
    cost.observe(8, 2.0)
    assert cost.predict(8) == pytest.approx(0.012)


def test_of_the_first_steps_the_mean_counts() -> None:
    """The first step of a size often pays for what all later ones use."""
    cost = StepCost()
    for seconds in (0.09, 0.01, 0.02):
        cost.observe(8, seconds)
    assert cost.predict(8) == pytest.approx(0.04)


def test_the_time_between_two_steps_is_a_mean_that_one_long_pause_hardly_moves() -> None:
    cost = StepCost()
    for _ in range(300):
        cost.observe_between(0.002)
    assert cost.between_s == pytest.approx(0.002, rel=0.01)
    cost.observe_between(60.0)
    assert cost.between_s < 0.005
