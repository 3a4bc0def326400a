"""GET /metrics for Prometheus; for operators, since it counts every tenant's turns."""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.described import PLAIN, Described
from worker.services import SERVICES


def routes() -> list[web.RouteDef]:
    return needs(Scope.OPS, web.get("/metrics", scrape))


@Described(tells=(PLAIN,))
async def scrape(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    metrics = services.telemetry.metrics
    metrics.turns_active.set(services.admission.active)
    metrics.tasks.set(len(asyncio.all_tasks()))
    text = await asyncio.to_thread(metrics.render)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
