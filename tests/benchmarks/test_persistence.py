"""The statistics of the benchmark of persistence."""

from __future__ import annotations

import pytest

from benchmarks.persistence import Round, summary, verdict


def test_the_ratio_is_that_of_the_rounds_and_not_of_the_medians() -> None:
    """A slow minute falls on both halves of its round."""
    row = summary([Round(1.01, 1.0), Round(101.0, 100.0), Round(2.02, 2.0)])
    assert row["ratio"] == pytest.approx(1.01)
    assert (row["stored_ms"], row["rounds"]) == (2.02, 3)


def test_ratios_that_differ_much_give_no_verdict() -> None:
    calm = summary([Round(1.00, 1.0), Round(1.01, 1.0), Round(1.02, 1.0)])
    noisy = summary([Round(0.5, 1.0), Round(1.0, 1.0), Round(1.5, 1.0)])
    assert verdict(calm) == "within the target of 1.02"
    assert verdict({**calm, "ratio": 1.03}) == "above the target of 1.02"
    assert verdict(noisy) == "too noisy to tell"
