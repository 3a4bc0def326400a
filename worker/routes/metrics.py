"""GET /metrics for Prometheus; for operators, since it counts every tenant's turns."""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.crew.scrape import scrape_all
from worker.engines.exchange import EngineTransport
from worker.route_docs import PLAIN, RouteDocs
from worker.services import CREW, SERVICES

TEXT = {"Content-Type": CONTENT_TYPE_LATEST}


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
