"""What answers took and cost. The scope ops sees all tenants; everybody else sees their own."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.json_response import json_response
from worker.latency.queries import cost_summary
from worker.request_keys import PRINCIPAL
from worker.route_docs import RouteDocs
from worker.routes.ops import WindowQuery
from worker.services import SERVICES


def routes() -> list[web.RouteDef]:
    return needs((Scope.CHAT, Scope.OPS), web.get("/ops/api/cost", cost))


@RouteDocs(query=WindowQuery.parameters())
async def cost(request: web.Request) -> web.Response:
    """Totals by surface, model and agent, with the cost per thousand answers and their time to first token."""
    query = WindowQuery.model_validate(dict(request.query))
    services = request.app[SERVICES]
    await services.telemetry.flush()
    data: list[dict[str, Any]] = await cost_summary(services.database, request[PRINCIPAL], query.asked)
    return json_response({"object": "list", "data": data})
