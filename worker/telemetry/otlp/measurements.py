"""Converts the Prometheus metrics to OpenTelemetry metrics. Pure.

Names of the conventions for generative AI stay as they are; all others begin with `firsttoken.` or `process.`, and the
unit suffix of a Prometheus name becomes the unit. All values are cumulative since the start of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from prometheus_client import Metric
from prometheus_client.samples import Sample

from worker.telemetry.otlp.spans import OWN, PROVIDER, operation_of

Kind: TypeAlias = Literal["sum", "gauge", "histogram"]

CONVENTIONS = {
    "gen_ai_server_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "gen_ai_server_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
    "gen_ai_server_request_duration_seconds": "gen_ai.server.request.duration",
}
UNITS = {"_seconds": "s", "_bytes": "By"}
KINDS: Mapping[str, Kind] = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}
BOUND = "le"
CREATED = "_created"  # when a series began: the process is older, and has counted everything since its own start


@dataclass(frozen=True, slots=True)
class Point:
    """A value, or for a histogram their number, their sum, and the count of each bucket: one more than `bounds`."""

    attributes: Mapping[str, str]
    value: float
    count: int = 0
    bounds: Sequence[float] = ()
    buckets: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class OtelMetric:
    name: str
    description: str
    unit: str
    kind: Kind
    points: Sequence[Point] = field(default_factory=tuple)


def metrics_of(families: Iterable[Metric]) -> list[OtelMetric]:
    """The metrics that have values."""
    found = [_metric(family, KINDS[family.type]) for family in families if family.type in KINDS]
    return [metric for metric in found if metric.points]


def _metric(family: Metric, kind: Kind) -> OtelMetric:
    known = CONVENTIONS.get(family.name)
    name, unit = _split(family.name)
    samples = [sample for sample in family.samples if not sample.name.endswith(CREATED)]
    points = _histograms(samples, known is not None) if kind == "histogram" else _values(samples, known is not None)
    return OtelMetric(known or _dotted(name), family.documentation, unit, kind, tuple(points))


def _split(name: str) -> tuple[str, str]:
    """The name without its unit; "1" is OpenTelemetry's unit for none."""
    return next(((name.removesuffix(end), unit) for end, unit in UNITS.items() if name.endswith(end)), (name, "1"))


def _dotted(name: str) -> str:
    for prefix in ("firsttoken_engine_", "firsttoken_", "process_"):
        if name.startswith(prefix):
            return prefix.replace("_", ".") + name.removeprefix(prefix)
    return OWN + name


def _values(samples: Iterable[Sample], conventional: bool) -> Iterator[Point]:
    return (Point(_attributes(sample.labels, conventional), sample.value) for sample in samples)


def _histograms(samples: Iterable[Sample], conventional: bool) -> Iterator[Point]:
    """Buckets are cumulative in Prometheus, but not in OpenTelemetry."""
    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != BOUND)
        series.setdefault(labels, {})[sample.labels.get(BOUND, sample.name.rpartition("_")[2])] = sample.value
    for labels, values in series.items():
        total, count = values.pop("sum"), int(values.pop("count"))
        bounds = sorted(float(bound) for bound in values)
        below = [int(values[bound]) for bound in sorted(values, key=float)]
        buckets = [now - before for now, before in zip(below, [0, *below], strict=False)]
        yield Point(_attributes(dict(labels), conventional), total, count, tuple(bounds[:-1]), tuple(buckets))


def _attributes(labels: Mapping[str, str], conventional: bool) -> Mapping[str, str]:
    own = {OWN + name: value for name, value in labels.items()}
    if not conventional:
        return own
    return {"gen_ai.operation.name": operation_of(labels["surface"]), "gen_ai.provider.name": PROVIDER, **own}
