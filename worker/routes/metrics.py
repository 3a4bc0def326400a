"""GET /metrics for Prometheus; operators only, since it counts every tenant's turns."""

from __future__ import annotations

import asyncio

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from worker.errors import ApiError
from worker.request_keys import PRINCIPAL
from worker.services import SERVICES


def routes() -> list[web.RouteDef]:
    return [web.get("/metrics", scrape)]


async def scrape(request: web.Request) -> web.Response:
    if not request[PRINCIPAL].is_operator:
        message = "Metrics need the scope operator. Create a key with it: firsttoken keys create NAME --operator"
        raise ApiError(403, message, type="permission_error", code="operator_required")
    services = request.app[SERVICES]
    services.telemetry.metrics.turns_active.set(services.admission.active)
    text = await asyncio.to_thread(services.telemetry.metrics.render)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
