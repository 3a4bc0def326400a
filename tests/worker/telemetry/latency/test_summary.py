"""What got slower is told from what is chance."""

from __future__ import annotations

import random

import pytest

from worker.telemetry.latency.measures import SPAN, Tally, bucket, encode
from worker.telemetry.latency.queries import Estimate, compared, difference, estimate


def tally(*values_ms: float, name: str = "ttft") -> Tally:
    return Tally(b"".join(encode({(name, bucket(value)): 1}) for value in values_ms))


def drawn(median_ms: float, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [median_ms * chance.lognormvariate(0, 0.3) for _ in range(count)]


def test_the_true_median_lies_in_its_interval_about_as_often_as_it_says() -> None:
    found = [estimate(tally(*drawn(100, 60, seed)), "ttft", 0.5) for seed in range(300)]
    within = sum(each is not None and each.low_ms * 0.99 <= 100 <= each.high_ms * 1.01 for each in found)
    assert 0.92 <= within / 300 <= 1.0


def test_what_is_slower_beyond_chance_is_named_and_what_is_not_is_the_same() -> None:
    same, slower = tally(*drawn(100, 200, 1)), tally(*drawn(140, 200, 2))
    [row] = compared(slower, same, [])
    assert (row["name"], row["p50"]["verdict"], row["turns"]) == ("ttft", "slower", 200)
    assert row["p50"]["low_ms"] < row["p50"]["change_ms"] < row["p50"]["high_ms"]
    assert compared(same, slower, [])[0]["p50"]["verdict"] == "faster"
    assert compared(tally(*drawn(100, 200, 3)), same, [])[0]["p50"]["verdict"] == "same"


def test_few_answers_tell_nothing() -> None:
    row = compared(tally(500, 500), tally(100, 100), [])[0]["p50"]
    assert (row["verdict"], row["ms"] > row["then_ms"]) == ("unknown", True)


def test_a_span_that_only_one_side_has_is_shown_without_a_change() -> None:
    rows = compared(tally(5, 5, name=f"{SPAN}queue"), tally(7, name=f"{SPAN}decode"), ["queue", "decode"])
    assert [row["name"] for row in rows] == ["queue", "decode"]
    assert [(row["turns"], row["turns_then"], row["p50"]["change_ms"]) for row in rows] == [(2, 0, None), (0, 1, None)]


def test_the_interval_of_a_difference_is_wider_than_those_of_its_sides() -> None:
    assert difference(Estimate(10, 7, 13), Estimate(4, 0, 8)) == pytest.approx((1.0, 11.0))
