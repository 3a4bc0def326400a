"""The cost of steps is learned."""

from __future__ import annotations

import pytest

from inference.cost import StepCost


def test_nothing_is_predicted_from_nothing_comparable() -> None:
    cost = StepCost()
    assert cost.predict(8) is None
    cost.observe(64, 1.0)
    assert cost.predict(8) is None  # a large step says nothing about the price of a small one


def test_a_size_not_seen_costs_per_row_what_the_nearest_smaller_one_does() -> None:
    cost = StepCost()
    cost.observe(1, 0.5)
    cost.observe(8, 0.8)
    assert cost.predict(100) == pytest.approx(10.0)
    assert cost.predict(2) == pytest.approx(1.0)


def test_the_prediction_follows_the_machine() -> None:
    cost = StepCost()
    cost.observe(8, 0.8)
    for _ in range(30):
        cost.observe(8, 1.6)
    assert cost.predict(8) == pytest.approx(1.6, rel=0.02)
