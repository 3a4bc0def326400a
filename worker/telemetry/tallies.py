"""Counts and histograms by label, which are read at each scrape and cost half a microsecond to add to.

Those of prometheus_client hold a lock for each of up to fifteen buckets; with them, counting a finished turn took a
twentieth of its request. For the event loop only, except `collect`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString


class Counts:
    """A counter with a series for each combination of the values of its labels; without labels, one from the start."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        self._series[labels] = self._series.get(labels, 0.0) + amount

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in list(self._series.items()):
            family.add_metric(labels, value)
        return [family]


class Histogram:
    """A histogram for each combination of the values of its labels. `bounds` ascend; a value belongs to the first one
    that is not less."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._series: dict[tuple[str, ...], list[float]] = {}  # a count for each bound, one for what is above, the sum
        registry.register(self)

    def add(self, value: float, *labels: str) -> None:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0.0] * (len(self._bounds) + 2)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def collect(self) -> list[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, (*counts, total) in list(self._series.items()):
            family.add_metric(labels, list(zip(ends, accumulate(counts), strict=True)), total)
        return [family]
