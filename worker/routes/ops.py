"""The operators' data: recent turns, one turn span by span, percentiles over a window.

Operators see all tenants; everybody else sees the latencies of their own turns.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from worker.errors import ApiError
from worker.reply import reply
from worker.request_keys import PRINCIPAL
from worker.services import SERVICES

WINDOW_S_MAX = 7 * 24 * 3600
WINDOW_S = 3600
TRACES_MAX = 200


class WindowQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    window_s: Annotated[float, Field(ge=1, le=WINDOW_S_MAX)] = WINDOW_S


class TracesQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    window_s: Annotated[float, Field(ge=1, le=WINDOW_S_MAX)] = WINDOW_S_MAX
    limit: Annotated[int, Field(ge=1, le=TRACES_MAX)] = 50
    order: Literal["recent", "slowest"] = "recent"
    status: Literal["completed", "incomplete", "failed", "cancelled", "refused", "invalid"] | None = None


def routes() -> list[web.RouteDef]:
    return [
        web.get("/ops/api/summary", summary),
        web.get("/ops/api/traces", list_traces),
        web.get("/ops/api/traces/{id}", get_trace),
    ]


async def summary(request: web.Request) -> web.Response:
    query = WindowQuery.model_validate(dict(request.query))
    services = request.app[SERVICES]
    await services.telemetry.flush()  # who asks right after an answer finds it
    found = await services.telemetry.traces.summary(request[PRINCIPAL], query.window_s)
    for row in found["surfaces"]:
        target = services.targets.by_surface.get(row["surface"])
        row["target"] = None if target is None else asdict(target)
    return reply(found)


async def list_traces(request: web.Request) -> web.Response:
    query = TracesQuery.model_validate(dict(request.query))
    telemetry = request.app[SERVICES].telemetry
    await telemetry.flush()
    traces = await telemetry.traces.list(
        request[PRINCIPAL], limit=query.limit, order=query.order, status=query.status, window_s=query.window_s
    )
    return reply({"object": "list", "data": traces})


async def get_trace(request: web.Request) -> web.Response:
    telemetry = request.app[SERVICES].telemetry
    await telemetry.flush()
    trace = await telemetry.traces.get(request[PRINCIPAL], request.match_info["id"])
    if trace is None:
        raise ApiError(404, "There is no trace with this id.", type="not_found_error", code="trace_not_found")
    return reply(trace)
