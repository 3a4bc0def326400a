"""What reaches a collector: a receiver of OTLP over HTTP that reads the official protocol."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.pages.past import answer
from worker.database import NotStored
from worker.lifecycle.supervisor import Supervisor
from worker.runs.record import TurnRecord
from worker.telemetry.otlp.conventions import spans_of
from worker.telemetry.otlp.exporter import WAITING_MAX, Exporter
from worker.telemetry.prometheus import Metrics


@dataclass(slots=True)
class Collector:
    url: str = ""
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        self.asked.append("traces")
        if self.status == 200:
            body = ExportTraceServiceRequest.FromString(await request.read())
            self.spans += [span for each in body.resource_spans for scope in each.scope_spans for span in scope.spans]
            self.headers = dict(request.headers)
        self.came.set()
        return web.Response(status=self.status)

    async def measure(self, request: web.Request) -> web.Response:
        self.asked.append("metrics")
        if self.status == 200:
            body = ExportMetricsServiceRequest.FromString(await request.read())
            told = [
                metric for each in body.resource_metrics for scope in each.scope_metrics for metric in scope.metrics
            ]
            assert len({metric.name for metric in told}) == len(told), "two have one name"
            self.metrics |= {metric.name: metric for metric in told}
        return web.Response(status=self.status)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    app.router.add_post("/v1/metrics", collector.measure)
    async with TestServer(app) as server:
        collector.url = str(server.make_url("/"))
        yield collector


async def test_every_turn_reaches_the_collector_with_all_of_its_spans(collector: Collector) -> None:
    exporter = Exporter(collector.url, {"x-team": "edge"}, "1.2.3")
    exporter.start(Supervisor(), tuple)
    records = [answer(uuid4(), age_s=60, number=n) for n in range(3)]
    for record in records:
        exporter.offer(record)
    await exporter.close()
    expected = {(span.trace_id, span.id, span.name) for record in records for span in spans_of(record.payload())}
    assert {(span.trace_id.hex(), span.span_id.hex(), span.name) for span in collector.spans} == expected
    root = next(span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER)
    assert {pair.key for pair in root.attributes} >= {"gen_ai.request.model", "gen_ai.usage.output_tokens"}
    assert collector.headers["x-team"] == "edge"


def counted(*records: TurnRecord) -> Metrics:
    """The metrics of a worker that has answered."""
    metrics = Metrics(lambda: {"running": 2, "generated_tokens_total": 7}, Supervisor())
    for record in records:
        metrics.observe(record)
    return metrics


def attributes(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


async def test_what_is_counted_reaches_the_collector_under_the_names_of_the_conventions(collector: Collector) -> None:
    records = [answer(uuid4(), age_s=60, number=n) for n in range(3)]
    exporter = Exporter(collector.url, {}, "1.2.3")
    exporter.start(Supervisor(), counted(*records).collect)
    await exporter.close()
    ttft = collector.metrics["gen_ai.server.time_to_first_token"]
    [point] = ttft.histogram.data_points
    assert (ttft.unit, point.count, sum(point.bucket_counts)) == ("s", 3, 3)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.sum == pytest.approx(sum(record.ttft_ms or 0 for record in records) / 1e3)
    assert not point.HasField("max"), "what is not known is not told"
    assert attributes(point) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "firsttoken",
        "firsttoken.surface": "chat",
    }
    [turns] = collector.metrics["firsttoken.turns"].sum.data_points
    assert (turns.as_double, attributes(turns)["firsttoken.status"]) == (3, "completed")
    assert collector.metrics["firsttoken.turns"].sum.is_monotonic
    assert collector.metrics["firsttoken.engine.running"].gauge.data_points[0].as_double == 2
    assert collector.metrics["firsttoken.engine.generated_tokens"].sum.data_points[0].as_double == 7


async def test_metrics_that_a_collector_refuses_are_made_up_for_by_the_next(collector: Collector) -> None:
    exporter, metrics = Exporter(collector.url, {}, "1"), counted(answer(uuid4(), age_s=60))
    exporter.start(Supervisor(), metrics.collect)
    collector.status = 400
    with pytest.raises(NotStored):
        await exporter.send_metrics()
    collector.status = 200
    metrics.observe(answer(uuid4(), age_s=60))
    await exporter.send_metrics()
    assert collector.metrics["firsttoken.turns"].sum.data_points[0].as_double == 2
    await exporter.close()


async def test_what_a_collector_refuses_is_dropped_and_counted_and_holds_nothing_up(collector: Collector) -> None:
    collector.status = 400
    exporter = Exporter(collector.url, {}, "1")
    exporter.offer(answer(uuid4(), age_s=60))
    with pytest.raises(NotStored, match="code: 400"):
        await exporter._writer.flush()
    assert exporter.dropped == 1
    collector.status = 200
    exporter.offer(answer(uuid4(), age_s=60))
    await exporter.close()
    assert len({span.trace_id for span in collector.spans}) == 1


async def test_a_collector_that_is_away_costs_a_line_that_says_why() -> None:
    log = logging.StreamHandler(StringIO())  # pytest's own sees what is not passed on to the log, too
    logging.getLogger().addHandler(log)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        exporter = Exporter(f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}", {}, "1")
        exporter.offer(answer(uuid4(), age_s=60))
        await exporter.close()
    logging.getLogger().removeHandler(log)
    assert log.stream.getvalue() == (
        "not sent before the end: 1 traces, at the collector of --otlp-endpoint: Connection refused\n"
    )


async def test_a_collector_that_takes_no_traces_is_not_waited_for_with_metrics(collector: Collector) -> None:
    """Each may take seconds, which a worker that stops does not have."""
    collector.status = 400
    exporter = Exporter(collector.url, {}, "1")
    exporter.offer(answer(uuid4(), age_s=60))
    await exporter.close()
    assert collector.asked == ["traces"]


async def test_what_waits_for_a_collector_is_bounded(collector: Collector) -> None:
    exporter = Exporter(collector.url, {}, "1")
    record = answer(uuid4(), age_s=60)
    for _ in range(WAITING_MAX + 5):
        exporter.offer(record)
    assert exporter.dropped == 5
