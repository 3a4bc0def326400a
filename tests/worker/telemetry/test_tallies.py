"""Counts and histograms say what those of prometheus_client say."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from worker.telemetry.prometheus import Counts, Histogram

BOUNDS = (0.001, 0.5, 1, 30)


def lines(registry: CollectorRegistry) -> list[str]:
    """As a scrape has them, without the times at which theirs began."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([0.0, 0.001, 0.25, 0.5, 1.0, 30.0, 31.0]))))
def test_a_histogram_is_written_like_theirs(values: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("seconds", "Seconds", ["kind"], BOUNDS, ours)
    usual = prometheus_client.Histogram("seconds", "Seconds", ["kind"], buckets=BOUNDS, registry=theirs)
    for kind, value in values:
        histogram.add(value, kind)
        usual.labels(kind).observe(value)
    assert lines(ours) == lines(theirs)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([1.0, 2.5]))))
def test_a_counter_is_written_like_theirs(amounts: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts = Counts("tokens", "Tokens", ["kind", "of"], ours)
    usual = prometheus_client.Counter("tokens", "Tokens", ["kind", "of"], registry=theirs)
    for kind, amount in amounts:
        counts.add(kind, "x", amount=amount)
        usual.labels(kind, "x").inc(amount)
    assert lines(ours) == lines(theirs)


def test_a_counter_without_labels_is_there_from_the_start() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Counts("dropped", "Dropped", (), ours)
    prometheus_client.Counter("dropped", "Dropped", registry=theirs)
    assert lines(ours) == lines(theirs)
