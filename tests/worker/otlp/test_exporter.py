"""What reaches a collector: a receiver of OTLP over HTTP that reads the official protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.pages.past import answer
from worker.batch_writer import NotStored
from worker.otlp.exporter import WAITING_MAX, Exporter
from worker.otlp.spans import spans_of
from worker.supervisor import Supervisor


@dataclass(slots=True)
class Collector:
    url: str = ""
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        if self.status == 200:
            body = ExportTraceServiceRequest.FromString(await request.read())
            self.spans += [span for each in body.resource_spans for scope in each.scope_spans for span in scope.spans]
            self.headers = dict(request.headers)
        self.came.set()
        return web.Response(status=self.status)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    async with TestServer(app) as server:
        collector.url = str(server.make_url("/"))
        yield collector


async def test_every_turn_reaches_the_collector_with_all_of_its_spans(collector: Collector) -> None:
    exporter = Exporter(collector.url, {"x-team": "edge"}, "1.2.3")
    exporter.start(Supervisor())
    records = [answer(uuid4(), age_s=60, number=n) for n in range(3)]
    for record in records:
        exporter.offer(record)
    await exporter.close()
    expected = {(span.trace_id, span.id, span.name) for record in records for span in spans_of(record.payload())}
    assert {(span.trace_id.hex(), span.span_id.hex(), span.name) for span in collector.spans} == expected
    root = next(span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER)
    assert {pair.key for pair in root.attributes} >= {"gen_ai.request.model", "gen_ai.usage.output_tokens"}
    assert collector.headers["x-team"] == "edge"


async def test_what_a_collector_refuses_is_dropped_and_counted_and_holds_nothing_up(collector: Collector) -> None:
    collector.status = 400
    exporter = Exporter(collector.url, {}, "1")
    exporter.offer(answer(uuid4(), age_s=60))
    with pytest.raises(NotStored):
        await exporter._writer.flush()
    assert exporter.dropped == 1
    collector.status = 200
    exporter.offer(answer(uuid4(), age_s=60))
    await exporter.close()
    assert len({span.trace_id for span in collector.spans}) == 1


async def test_what_waits_for_a_collector_is_bounded(collector: Collector) -> None:
    exporter = Exporter(collector.url, {}, "1")
    record = answer(uuid4(), age_s=60)
    for _ in range(WAITING_MAX + 5):
        exporter.offer(record)
    assert exporter.dropped == 5
