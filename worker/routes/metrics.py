"""GET /metrics for Prometheus; for operators, since it counts every tenant's turns. And the private sockets of a crew's
members, for this account alone: whether they are ready, and their own numbers."""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.engines.exchange import EngineTransport
from worker.http.json_response import json_response
from worker.http.route_docs import PLAIN, RouteDocs
from worker.lifecycle.crew.scrape import scrape_all
from worker.routes.health import ready
from worker.services import CREW, DRAINING, SERVICES

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
