"""The numbers of several processes as one answer that Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from worker.routes.health import merged


def numbers(turns: int, waiting: float | None = None) -> bytes:
    registry = CollectorRegistry()
    Counter("turns", "Finished turns", ["surface"], registry=registry).labels("chat").inc(turns)
    Histogram("seconds", "How long", registry=registry, buckets=(1, 2)).observe(turns)
    if waiting is not None:
        Gauge("vllm:waiting", "Who waits", registry=registry).set(waiting)
    return generate_latest(registry)


def test_every_sample_says_whose_it_is_and_a_family_is_told_once() -> None:
    text = merged({"worker-1": numbers(1), "engine": numbers(0, 3), "worker-2": numbers(2)}).decode()
    assert text.count("# TYPE turns_total counter") == text.count("# TYPE seconds histogram") == 1
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["turns_total", ("process", "worker-2"), ("surface", "chat")] == 2
    assert samples["seconds_bucket", ("le", "1.0"), ("process", "worker-1")] == 1
    assert samples["vllm:waiting", ("process", "engine")] == 3
    assert len(samples) == 3 * (1 + 1 + 5 + 1) + 1  # with what tells when each was made
