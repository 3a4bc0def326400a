"""How a worker is. /healthz, also as /health: the process lives. /readyz: it can answer, or why not. They are public
and say nothing about tenants. And /metrics for Prometheus; for operators, since it counts every tenant's turns.

Behind one port a scrape reaches any member of a crew, so that member collects the others' metrics from their private
sockets, which are for this account alone: each sample is labelled with its process. The numbers are not added up: a
restarted process begins at zero, which Prometheus can detect only per process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from inference.remote.transport import Transport
from migrations.pool import DATABASE_AWAY
from worker.auth.scope import Scope
from worker.config import VERSION
from worker.edge.guard import remote_of
from worker.engines.exchange import EngineTransport
from worker.engines.on_demand import State
from worker.http.request import EVERYBODY, PLAIN, Routes, json_response
from worker.lifecycle.crew.member import SUFFIX, Member
from worker.lifecycle.supervisor import VITAL
from worker.services import CHECKERS, CREW, DRAINING, SERVICES, Services
from worker.telemetry.prometheus import Scraped

DATABASE_TIMEOUT_S = 1.5  # half a second more where its connection does not even take a reset: 2 s in all


routes = Routes()


@routes.get("/healthz", EVERYBODY)
@routes.get("/health", EVERYBODY)
async def live(request: web.Request) -> web.Response:
    return json_response({"status": "ok", "version": VERSION})


@routes.get("/readyz", EVERYBODY)
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
    shown: dict[str, Any] = {state: states[state] for state in get_args(State)}
    if (share := engines.loading) is not None:
        shown["share"] = round(share, 3)
    return {"models": shown}


async def _database(request: web.Request) -> str:
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_S):
            await request.app[SERVICES].database.check()
    except DATABASE_AWAY as error:
        return type(error).__name__
    return "ok"


OTHERS_S = 2.0  # a scrape has 10 s by default, so a member that hangs is left out

log = logging.getLogger("firsttoken.crew")
TEXT = {"Content-Type": CONTENT_TYPE_LATEST}


async def scrape_all(member: Member, own: bytes, transport: Transport) -> bytes:
    """`own` are this member's metrics. Those of a member that does not respond are missing, as with any target."""
    names = [path.name.removesuffix(SUFFIX) for path in sorted(member.folder.glob(f"*{SUFFIX}"))]
    others = [name for name in names if name != member.name]
    texts = await asyncio.gather(*(_ask(member.folder / f"{name}{SUFFIX}", transport) for name in others))
    answered = {name: text for name, text in zip(others, texts, strict=True) if text is not None}
    return await asyncio.to_thread(merged, {member.name: own, **answered})


async def _ask(path: Path, transport: Transport) -> bytes | None:
    try:
        answer = await transport.get(f"unix:{path}", "/metrics", OTHERS_S)
    except (ConnectionError, TimeoutError) as error:
        log.info("%s is missing from a scrape: %r", path.name, error)
        return None
    return answer.body if answer.status == 200 else None


def merged(texts: dict[str, bytes]) -> bytes:
    """The texts of several processes as one, in which each sample has the label `process`. Takes milliseconds per
    process: call it in a thread. Pure.
    """
    families: dict[str, Metric] = {}
    for process, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text.decode()):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                kept.samples.append(sample._replace(labels={**sample.labels, "process": process}))
    return generate_latest(Scraped(lambda: list(families.values())))


async def numbers(app: web.Application) -> bytes:
    """Of this process."""
    services = app[SERVICES]
    metrics = services.telemetry.metrics
    metrics.turns_active.set(services.admission.active)
    metrics.tasks.set(len(asyncio.all_tasks()))
    return await asyncio.to_thread(metrics.render)


@routes.get("/metrics", Scope.OPS, tells=(PLAIN,))
async def scrape(request: web.Request) -> web.Response:
    text, crew = await numbers(request.app), request.app.get(CREW)
    if crew is not None:
        text = await scrape_all(crew, text, EngineTransport())
    return web.Response(body=text, headers=TEXT)


def beside(app: web.Application) -> web.Application:
    """The private application of the worker whose public one this is."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=await numbers(app), headers=TEXT)

    private = web.Application()
    private[SERVICES], private[DRAINING] = app[SERVICES], app[DRAINING]
    private.add_routes([web.get("/healthz", live), web.get("/readyz", ready), web.get("/metrics", scrape)])
    return private
