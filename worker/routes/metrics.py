"""GET /metrics for Prometheus; for operators, since it counts every tenant's turns. And the private sockets of a crew's
members, for this account alone: whether they are ready, and their own numbers.

Behind one port a scrape reaches any member, so that member collects the others' metrics: each sample is labelled with
its process. The numbers are not added up: a restarted process begins at zero, which Prometheus can detect only per
process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from inference.remote.transport import Transport
from worker.auth.principal import Scope
from worker.engines.exchange import EngineTransport
from worker.http.request import json_response
from worker.http.route import PLAIN, RouteDocs, needs
from worker.lifecycle.crew.member import SUFFIX, Member
from worker.routes.health import ready
from worker.services import CREW, DRAINING, SERVICES

OTHERS_S = 2.0  # a scrape has 10 s by default, so a member that hangs is left out

log = logging.getLogger("firsttoken.crew")
TEXT = {"Content-Type": CONTENT_TYPE_LATEST}


async def scrape_all(member: Member, own: bytes, transport: Transport) -> bytes:
    """`own` are this member's metrics. Those of a member that does not respond are missing, as with any target."""
    names = [path.name.removesuffix(SUFFIX) for path in sorted(member.folder.glob(f"*{SUFFIX}"))]
    others = [name for name in names if name != member.name]
    texts = await asyncio.gather(*(_ask(member.folder / f"{name}{SUFFIX}", transport) for name in others))
    told = {member.name: own, **{name: text for name, text in zip(others, texts, strict=True) if text is not None}}
    return await asyncio.to_thread(merged, told)


async def _ask(path: Path, transport: Transport) -> bytes | None:
    try:
        answer = await transport.get(f"unix:{path}", "/metrics", OTHERS_S)
    except (ConnectionError, TimeoutError) as error:
        log.info("%s is missing from a scrape: %r", path.name, error)
        return None
    return answer.body if answer.status == 200 else None


def merged(told: dict[str, bytes]) -> bytes:
    """The texts of several processes as one, in which each sample has the label `process`. Takes milliseconds per
    process: call it in a thread. Pure.
    """
    families: dict[str, Metric] = {}
    for process, text in sorted(told.items()):
        for family in text_string_to_metric_families(text.decode()):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                kept.samples.append(sample._replace(labels={**sample.labels, "process": process}))
    return generate_latest(_Told(families))


class _Told(Collector):
    def __init__(self, families: dict[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def routes() -> list[web.RouteDef]:
    return needs(Scope.OPS, web.get("/metrics", scrape))


async def numbers(app: web.Application) -> bytes:
    """Of this process."""
    services = app[SERVICES]
    metrics = services.telemetry.metrics
    metrics.turns_active.set(services.admission.active)
    metrics.tasks.set(len(asyncio.all_tasks()))
    return await asyncio.to_thread(metrics.render)


@RouteDocs(tells=(PLAIN,))
async def scrape(request: web.Request) -> web.Response:
    text, crew = await numbers(request.app), request.app.get(CREW)
    if crew is not None:
        text = await scrape_all(crew, text, EngineTransport())
    return web.Response(body=text, headers=TEXT)


def beside(app: web.Application) -> web.Application:
    """The private application of the worker whose public one this is."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=await numbers(app), headers=TEXT)

    async def live(_: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    private = web.Application()
    private[SERVICES], private[DRAINING] = app[SERVICES], app[DRAINING]
    private.add_routes([web.get("/healthz", live), web.get("/readyz", ready), web.get("/metrics", scrape)])
    return private
