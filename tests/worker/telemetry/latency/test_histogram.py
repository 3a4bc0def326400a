"""A percentile of merged histograms is that of all values, to 1 %."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import asyncpg
import numpy as np
import pytest

from worker.telemetry.latency.measures import AMOUNT, BUCKET_MAX, Tally, bucket, encode, value_ms

TIMES_MS = [random.Random(7).lognormvariate(3, 2) for _ in range(5000)]


def piece(times_ms: Iterable[float], measure: str = "ttft") -> bytes:
    return encode(Counter((measure, bucket(ms)) for ms in times_ms))


@pytest.mark.parametrize("parts", [1, 7, 5000])
def test_percentiles_of_any_parts_are_those_of_the_whole(parts: int) -> None:
    merged = b"".join(piece(TIMES_MS[part::parts]) for part in range(parts))
    exact = np.quantile(TIMES_MS, (0, 0.5, 0.95, 0.99, 1), method="inverted_cdf")
    assert Tally(merged).percentiles((0, 0.5, 0.95, 0.99, 1), "ttft") == pytest.approx(list(exact), rel=0.0101)


def test_measures_are_told_apart_and_read_together() -> None:
    tally = Tally(piece([1.0] * 99) + piece([1000.0], "call") + encode({("tokens", AMOUNT): 7}) * 2)
    assert tally.percentiles((0.5,), "ttft") == pytest.approx([1.0], rel=0.01)
    assert tally.percentiles((1,), "ttft", "call") == pytest.approx([1000.0], rel=0.01)
    assert [tally.amount(name) for name in ("ttft", "call", "tokens", "other")] == [99, 1, 14, 0]
    assert tally.percentiles((0.5,), "tokens") == [None]


def test_of_two_answers_the_tail_is_the_slower_one() -> None:
    tally = Tally(encode({("ttft", bucket(78.0)): 1, ("ttft", bucket(280.0)): 1}))
    assert tally.percentiles((0.5, 0.95, 0.99), "ttft") == pytest.approx([78.0, 280.0, 280.0], rel=0.0101)


def test_nothing_measured_has_no_percentiles() -> None:
    assert Tally(b"").percentiles((0.5, 0.95), "ttft") == [None, None]


@pytest.mark.parametrize("ms", [0.0, 1e-9, 1e12])
def test_what_no_clock_measures_has_a_bucket_too(ms: float) -> None:
    assert 0 <= bucket(ms) <= BUCKET_MAX


async def test_the_database_finds_the_same_buckets(owner_dsn: str) -> None:
    connection = await asyncpg.connect(owner_dsn)
    sample = [*TIMES_MS[:300], 0.0, 1e12]
    rows = await connection.fetch("select latency_entry('ttft', ms) as entry from unnest($1::float8[]) as ms", sample)
    await connection.close()
    assert [row["entry"] for row in rows] == [piece([ms]) for ms in sample]
    assert value_ms(bucket(50.0)) == pytest.approx(50.0, rel=0.01)
