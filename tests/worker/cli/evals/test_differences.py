"""Intervals of paired differences."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from worker.cli.evals import outcome
from worker.cli.evals.outcome import difference, ratio


def test_a_difference_lies_in_its_interval_in_nineteen_of_twenty_runs() -> None:
    """Two sides that are right in 80 and 70 % of 60 cases, 100 times; fewer than 86 has odds of one in ten thousand."""
    random, held = np.random.default_rng(7), 0
    for _ in range(100):
        one, other = random.random(60) < 0.8, random.random(60) < 0.7
        between = difference(one.astype(float).tolist(), other.astype(float).tolist())
        held += between.low <= 0.1 <= between.high
    assert held >= 86


def test_pairs_tell_what_two_means_would_not() -> None:
    """Cases differ far more than the sides do: each is 0.1 better."""
    other = np.random.default_rng(1).random(30)
    between = difference((other + 0.1 + np.linspace(-0.01, 0.01, 30)).tolist(), other.tolist())
    assert 0.09 < between.low < 0.1 < between.high < 0.11


def test_the_same_run_has_the_same_interval() -> None:
    one, other = [0.0, 1.0, 1.0, 0.5], [1.0, 1.0, 0.0, 0.0]
    assert difference(one, other) == difference(one, other)


def test_what_is_the_same_everywhere_has_no_width() -> None:
    between = difference([1.0, 0.0], [1.0, 0.0])
    assert (between.mean, between.low, between.high) == (0, 0, 0)


def test_a_ratio_is_told_case_by_case() -> None:
    between = ratio([10, 200, 3000], [5, 100, 1500])
    assert between is not None
    assert (between.mean, between.low, between.high) == pytest.approx((2, 2, 2))
    assert ratio([0.0], [1.0]) is None


def test_many_cases_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All resamples of these at once would be 160 MB, twice."""
    scores = np.random.default_rng(2).random(2_000)
    monkeypatch.setattr(outcome, "CELLS_MAX", 40_000)
    tracemalloc.start()
    try:
        between = difference(scores.tolist(), (scores * 0).tolist())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert abs(between.mean - 0.5) < 0.02 and between.low < between.mean < between.high
