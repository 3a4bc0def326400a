"""Converts our spans and metrics to those of OpenTelemetry's SDK, and sends them. The only file that imports it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from worker.telemetry.otlp.conventions import OtelSpan, metric_attributes, metric_name

BOUND = "le"
CREATED = "_created"  # when a series began: the process is older, and has counted everything since its own start
KINDS_OF_METRICS = ("counter", "gauge", "histogram")
KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
REASON_CHARS_MAX = 200
OF_SYSTEM = re.compile(r"\[Errno -?\d+\] ([^\"')]+)")

log = logging.getLogger("opentelemetry.exporter.otlp")


class _Said(logging.Handler):
    """The SDK only logs why it failed: several lines for each request while a collector is away, the first of which has
    the reason. They are shown as those of our own that are for debugging."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""
        log.addHandler(self)
        log.propagate = log.isEnabledFor(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()

    @property
    def reason(self) -> str:
        of_system = OF_SYSTEM.search(self.first)
        return of_system[1] if of_system else self.first[:REASON_CHARS_MAX] or "no reason was given"


class Sdk:
    def __init__(self, url: str, headers: Mapping[str, str], version: str, timeout_s: int) -> None:
        """`url` is that of the collector."""
        self._exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", headers=dict(headers), timeout=timeout_s)
        self._meter = OTLPMetricExporter(endpoint=f"{url}/v1/metrics", headers=dict(headers), timeout=timeout_s)
        self._said = _Said()
        self._began_ns = time.time_ns()
        self._resource = Resource({"service.name": "firsttoken", "service.version": version})
        self._scope = InstrumentationScope("firsttoken", version)

    def send(self, spans: Sequence[OtelSpan]) -> str:
        """Why the collector did not accept them; empty if it did. Blocks for at most the timeout, retries included."""
        self._said.first = ""
        result = self._exporter.export([self._readable(span) for span in spans])
        return "" if result is SpanExportResult.SUCCESS else self._said.reason

    def send_metrics(self, families: Iterable[Family]) -> str:
        """As `send`. All values are cumulative since the start of the process."""
        times = self._began_ns, time.time_ns()
        metrics = [metric for family in families if (metric := _metric(family, times)) is not None]
        told = MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(self._scope, metrics, "")], "")])
        self._said.first = ""
        return "" if self._meter.export(told) is MetricExportResult.SUCCESS else self._said.reason

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._meter.shutdown()
        log.removeHandler(self._said)

    def _readable(self, span: OtelSpan) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=SAMPLED)


def _metric(family: Family, times: tuple[int, int]) -> Metric | None:
    """None for a family without values, or of a kind that we do not have."""
    samples = [sample for sample in family.samples if not sample.name.endswith(CREATED)]
    data: Sum | Gauge | Histogram
    if family.type == "histogram":
        data = Histogram(list(_distributions(family.name, samples, times)), AggregationTemporality.CUMULATIVE)
    else:
        points = [
            NumberDataPoint(metric_attributes(family.name, sample.labels), *times, sample.value) for sample in samples
        ]
        data = Gauge(points) if family.type == "gauge" else Sum(points, AggregationTemporality.CUMULATIVE, True)
    if family.type not in KINDS_OF_METRICS or not data.data_points:
        return None
    name, unit = metric_name(family.name)
    return Metric(name, family.documentation, unit, data)


def _distributions(name: str, samples: Iterable[Sample], times: tuple[int, int]) -> Iterator[HistogramDataPoint]:
    """Buckets are cumulative in Prometheus, but not in OpenTelemetry."""
    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in samples:
        labels = tuple((label, value) for label, value in sample.labels.items() if label != BOUND)
        series.setdefault(labels, {})[sample.labels.get(BOUND, sample.name.rpartition("_")[2])] = sample.value
    for labels, values in series.items():
        total, count = values.pop("sum"), int(values.pop("count"))
        bounds = sorted(values, key=float)
        below = [int(values[bound]) for bound in bounds]
        buckets = [now - before for now, before in zip(below, [0, *below], strict=False)]
        yield HistogramDataPoint(
            *(metric_attributes(name, dict(labels)), *times, count, total, buckets, list(map(float, bounds[:-1]))),
            min=None,  # type: ignore[arg-type]  # not known, which the protocol allows
            max=None,  # type: ignore[arg-type]
        )
