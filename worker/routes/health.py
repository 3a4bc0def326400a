"""/healthz: the process lives. /readyz: it can answer, or why not. Both are public and say nothing about tenants."""

from __future__ import annotations

import asyncio

import asyncpg
from aiohttp import web

from worker.config import VERSION
from worker.reply import reply
from worker.services import DRAINING, SERVICES

DATABASE_TIMEOUT_S = 2.0


def routes() -> list[web.RouteDef]:
    return [web.get("/healthz", live), web.get("/readyz", ready)]


async def live(request: web.Request) -> web.Response:
    return reply({"status": "ok", "version": VERSION})


async def ready(request: web.Request) -> web.Response:
    """503 while a part does not answer or the worker is being stopped: a balancer sends nothing more then."""
    services = request.app[SERVICES]
    stats = dict(services.engine_stats())
    parts = {
        "worker": "draining" if request.app[DRAINING].is_set() else "ok",
        "database": await _database(request),
        "engine": stats.pop("failed", None) or "ok",
    }
    well = all(state == "ok" for state in parts.values())
    detail = {
        "engine": stats,
        "embedders": services.embedders.states,
        "turns": services.admission.active,
        "traces_dropped": services.telemetry.dropped,
    }
    return reply({"status": "ok" if well else "unavailable", "parts": parts, **detail}, status=200 if well else 503)


async def _database(request: web.Request) -> str:
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_S), request.app[SERVICES].database.anonymous() as connection:
            await connection.fetchval("select 1")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        return type(error).__name__
    return "ok"
