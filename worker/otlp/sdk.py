"""Our spans as those of OpenTelemetry's SDK, and its exporter. The only file that imports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from worker.otlp.spans import OtelSpan

KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Sdk:
    def __init__(self, url: str, headers: Mapping[str, str], version: str, timeout_s: int) -> None:
        self._exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=timeout_s)
        self._resource = Resource({"service.name": "firsttoken", "service.version": version})
        self._scope = InstrumentationScope("firsttoken", version)

    def send(self, spans: Sequence[OtelSpan]) -> bool:
        """Whether the collector took them. Blocks, for some tries, as long as the timeout."""
        return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

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
