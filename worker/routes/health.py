"""/healthz, also as /health: the process lives. /readyz: it can answer, or why not. They are public and say nothing
about tenants.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, get_args

from aiohttp import web

from migrations.pool import DATABASE_AWAY
from worker.config import VERSION
from worker.edge.guard import remote_of
from worker.engines.on_demand import State
from worker.http.request import json_response
from worker.http.route import EVERYBODY, declare
from worker.lifecycle.supervisor import VITAL
from worker.services import CHECKERS, DRAINING, SERVICES, Services

DATABASE_TIMEOUT_S = 1.5  # half a second more where its connection does not even take a reset: 2 s in all


def routes() -> list[web.RouteDef]:
    return declare(EVERYBODY, web.get("/healthz", live), web.get("/health", live), web.get("/readyz", look))


async def live(request: web.Request) -> web.Response:
    return json_response({"status": "ok", "version": VERSION})


async def look(request: web.Request) -> web.Response:
    """Whether the worker is ready. A worker that stops waits for balancers that check regularly."""
    answer = await ready(request)
    request.app[CHECKERS].asked(remote_of(request))
    return answer


async def ready(request: web.Request) -> web.Response:
    """503 while a part does not answer or the worker is being stopped: a balancer sends nothing more then.

    Only the states of the parts: numbers of what is going on would tell anybody about other people's requests. They are
    in the metrics.
    """
    services = request.app[SERVICES]
    down = services.supervisor.down
    parts = {
        "worker": "draining" if request.app[DRAINING].is_set() else "ok",
        "database": await _database(request),
        "engine": "failed" if services.engine_stats().get("failed") else "ok",
        "background": "down" if VITAL & down.keys() else "ok",
    }
    well = all(state == "ok" for state in parts.values())
    body = {
        "status": "ok" if well else "unavailable",
        "parts": parts,
        **_models(services),
        "down": {part: round(since) for part, since in down.items()},
    }
    return json_response(body, status=200 if well else 503)


def _models(services: Services) -> dict[str, Any]:
    """How many of several models can answer at once, and how far the others are; no names, which are not public."""
    engines = services.engines
    if engines is None or len(engines.states) == 1:
        return {}
    states = Counter(engines.states.values())
    told: dict[str, Any] = {state: states[state] for state in get_args(State)}
    if (share := engines.loading) is not None:
        told["share"] = round(share, 3)
    return {"models": told}


async def _database(request: web.Request) -> str:
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_S), request.app[SERVICES].database.anonymous() as connection:
            await connection.fetchval("select 1")
    except DATABASE_AWAY as error:
        return type(error).__name__
    return "ok"
