"""Converts our spans and metrics to those of OpenTelemetry's SDK, and sends them. The only file that imports it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

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

from worker.telemetry.otlp.conventions import OtelMetric, OtelSpan

KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Sdk:
    def __init__(self, url: str, headers: Mapping[str, str], version: str, timeout_s: int) -> None:
        """`url` is that of the collector."""
        self._exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", headers=dict(headers), timeout=timeout_s)
        self._meter = OTLPMetricExporter(endpoint=f"{url}/v1/metrics", headers=dict(headers), timeout=timeout_s)
        self._began_ns = time.time_ns()
        self._resource = Resource({"service.name": "firsttoken", "service.version": version})
        self._scope = InstrumentationScope("firsttoken", version)

    def send(self, spans: Sequence[OtelSpan]) -> bool:
        """Whether the collector accepted them. Blocks for at most the timeout, retries included."""
        return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def send_metrics(self, metrics: Sequence[OtelMetric]) -> bool:
        """As `send`."""
        now_ns = time.time_ns()
        scoped = ScopeMetrics(self._scope, [self._metric(metric, now_ns) for metric in metrics], "")
        told = MetricsData([ResourceMetrics(self._resource, [scoped], "")])
        return self._meter.export(told) is MetricExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._meter.shutdown()

    def _metric(self, metric: OtelMetric, now_ns: int) -> Metric:
        times = (self._began_ns, now_ns)
        data: Sum | Gauge | Histogram
        if metric.kind == "histogram":
            data = Histogram(
                [
                    HistogramDataPoint(
                        *(point.attributes, *times, point.count, point.value, point.buckets, point.bounds),
                        min=None,  # type: ignore[arg-type]  # not known, which the protocol allows
                        max=None,  # type: ignore[arg-type]
                    )
                    for point in metric.points
                ],
                AggregationTemporality.CUMULATIVE,
            )
        else:
            points = [NumberDataPoint(point.attributes, *times, point.value) for point in metric.points]
            data = Gauge(points) if metric.kind == "gauge" else Sum(points, AggregationTemporality.CUMULATIVE, True)
        return Metric(metric.name, metric.description, metric.unit, data)

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
