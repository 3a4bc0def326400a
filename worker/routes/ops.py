"""The operators' data: recent turns, one turn span by span, percentiles and costs over a window; the audit log; and
what is on trial.

The scope ops sees the latencies of all tenants and what is on trial; everybody else sees the latencies of their own
turns. With the scope admin beside it one starts, promotes and ends what concerns the conversations of all tenants. The
audit log is that of the tenant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Annotated, Any, Literal, Self, TypeAlias
from uuid import UUID

from aiohttp import web
from pydantic import ConfigDict, Field, StringConstraints, model_validator

from worker.auth.audit import Note
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.config import VERSION
from worker.edge.body import BUDGET
from worker.errors import ApiError
from worker.http.query import Query
from worker.http.request import BODY, PRINCIPAL, Json, Routes, actor_of, path_id
from worker.runs.manager import RUNS
from worker.services import SERVICES, Services
from worker.telemetry.canaries import AlreadyExists
from worker.telemetry.latency.answer_list import Order, Search, calls_of, questions_of
from worker.telemetry.latency.measures import COMPLETED, LATE, Cache, Length, Slice, Status
from worker.telemetry.latency.queries import LatencyQuery, cost_summary
from worker.telemetry.otlp.conventions import otlp_json, spans_of
from worker.telemetry.trial import NAME_PATTERN, Proposal, State
from worker.wire import limits
from worker.wire.strict import Strict, parsed

AUDIT_MAX = 200
POSITION_MAX = 2**63 - 1
WINDOW_S_MAX = 400 * 24 * 3600  # as long as days are kept
WINDOW_S = 3600
TRACES_MAX = 200
SECONDS_MAX = 253_401_000_000  # the year 9999, with room for a chart that ends a week later
NAME_CHARS_MAX = 200
LATE_MAX = 200  # dots in a chart
DIMENSIONS = tuple(each.name for each in fields(Slice))

Seconds: TypeAlias = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
Name: TypeAlias = Annotated[str, Field(max_length=NAME_CHARS_MAX)]


class ExactQuery(Query):
    model_config = ConfigDict(extra="forbid")


def _check_order(start: float | None, end: float | None, prefix: str = "") -> None:
    if (start is None) != (end is None):
        raise ValueError(f"{prefix}start and {prefix}end must be given together")
    if start is not None and end is not None and not 0 < end - start <= WINDOW_S_MAX:
        raise ValueError(f"{prefix}end must be after {prefix}start, by at most 400 days")


class WindowQuery(ExactQuery):
    """The last `window_s` seconds, or from `start` to `end` (Unix seconds); of all answers, or those of one slice."""

    window_s: Annotated[float, Field(ge=1, le=WINDOW_S_MAX)] = WINDOW_S
    start: Seconds | None = None
    end: Seconds | None = None
    surface: Name | None = None
    model: Name | None = None
    agent: Name | None = None
    tenant: UUID | None = None
    key: Name | None = None
    worker: Name | None = None
    status: Status | None = None
    cache: Cache | None = None
    length: Length | None = None

    @model_validator(mode="after")
    def in_order(self) -> Self:
        _check_order(self.start, self.end)
        return self

    @property
    def slice(self) -> Slice:
        return Slice(**{name: getattr(self, name) for name in DIMENSIONS})

    @property
    def asked(self) -> LatencyQuery:
        return LatencyQuery(self.window_s, self.slice, self.start, self.end)

    @property
    def moments(self) -> tuple[float, float]:
        if self.start is not None and self.end is not None:
            return self.start, self.end
        return time.time() - self.window_s, SECONDS_MAX


class ComparisonQuery(WindowQuery):
    """Against another stretch or another slice; without either, against the time of the same length before."""

    against_start: Seconds | None = None
    against_end: Seconds | None = None
    against_surface: Name | None = None
    against_model: Name | None = None
    against_agent: Name | None = None
    against_tenant: UUID | None = None
    against_key: Name | None = None
    against_worker: Name | None = None
    against_status: Status | None = None
    against_cache: Cache | None = None
    against_length: Length | None = None

    @model_validator(mode="after")
    def against_in_order(self) -> Self:
        _check_order(self.against_start, self.against_end, "against_")
        return self

    @property
    def against(self) -> LatencyQuery:
        other = Slice(**{name: getattr(self, f"against_{name}") or getattr(self, name) for name in DIMENSIONS})
        start, end = self.against_start, self.against_end
        if start is None and other == self.slice:
            until = time.time() if self.end is None else self.end
            length = self.window_s if self.start is None else until - self.start
            # Of whole seconds, so that who asks within the same moment asks the same.
            start, end = math.floor(until - 2 * length), math.floor(until - length)
        elif start is None:
            start, end = self.start, self.end
        return LatencyQuery(self.window_s, other, start, end)


class TracesQuery(WindowQuery):
    window_s: Annotated[float, Field(ge=1, le=WINDOW_S_MAX)] = WINDOW_S_MAX
    limit: Annotated[int, Field(ge=1, le=TRACES_MAX)] = 50
    order: Order = "recent"
    slower_ms: Annotated[float, Field(ge=0, le=1e9)] | None = None
    q: Name | None = None
    after: Name | None = None

    @property
    def search(self) -> Search:
        text = (self.q or "").strip() or None
        start, end = self.moments
        return Search(
            start,
            end,
            order=self.order,
            limit=self.limit,
            after=self.after,
            slower_ms=self.slower_ms,
            text=text,
            slice=self.slice,
        )


class TraceQuery(ExactQuery):
    format: Literal["page", "otlp"] = "page"


class AuditQuery(ExactQuery):
    limit: Annotated[int, Field(ge=1, le=AUDIT_MAX)] = 50
    before: Annotated[int, Field(ge=1, le=POSITION_MAX)] | None = None


routes = Routes()


@routes.get("/ops/api/state", Scope.OPS)
async def state(request: web.Request) -> Json:
    """What the worker is doing now, for all tenants."""
    services = request.app[SERVICES]
    return {
        "engine": dict(services.engine_stats()),
        "embedders": services.embedders.states,
        "turns": services.admission.active,
        "request_bytes": request.app[BUDGET].held_bytes,
        "traces_dropped": services.telemetry.dropped,
    }


@routes.get("/ops/api/summary", (Scope.CHAT, Scope.OPS))
async def summary(request: web.Request, query: WindowQuery) -> Json:
    services, principal = await _flushed(request)
    found = await services.telemetry.traces.views.summary(principal, query.asked)
    surfaces = [row | {"target": _target(services, row["surface"])} for row in found["surfaces"]]
    told = {"key_names": await _key_names(services, principal, found), "is_operator": principal.is_operator}
    return found | {"surfaces": surfaces} | told


@routes.get("/ops/api/series", (Scope.CHAT, Scope.OPS))
async def series(request: web.Request, query: WindowQuery) -> Json:
    """The summary over time, with late answers as single points."""
    services, principal = await _flushed(request)
    traces = services.telemetry.traces
    found = await traces.views.series(principal, query.asked)
    late = []
    if query.status in (None, COMPLETED, LATE):
        search = Search(found["start"], found["end"], limit=LATE_MAX, slice=replace(query.slice, status=LATE))
        late = [
            {"id": turn["id"], "at": turn["started_at"], "ttft_ms": turn["ttft_ms"], "tpot_ms": turn["tpot_ms"]}
            for turn in await traces.list(principal, search)
        ]
    return found | {"late": late, "objective": services.config.objective}


@routes.get("/ops/api/comparison", (Scope.CHAT, Scope.OPS))
async def comparison(request: web.Request, query: ComparisonQuery) -> Json:
    """The median and 95th percentile of each span on both sides, and whether the difference is significant."""
    services, principal = await _flushed(request)
    views = services.telemetry.traces.views
    return await views.comparison(principal, query.asked, query.against)


@routes.get("/ops/api/traces", (Scope.CHAT, Scope.OPS))
async def list_traces(request: web.Request, query: TracesQuery) -> Json:
    """Questions are included only for the caller's own tenant, and only if the credential may read them."""
    services, principal = await _flushed(request)
    search = query.search
    found = await services.telemetry.traces.list(principal, replace(search, limit=query.limit + 1))
    turns = found[: query.limit]
    asked = [turn["response_id"] for turn in turns if turn["response_id"] and _may_read(principal, turn)]
    questions = await questions_of(services.database, principal.tenant_id, asked)
    surfaces = {turn["surface"] for turn in turns}
    return {
        "object": "list",
        "data": [turn | {"question": questions.get(turn["response_id"])} for turn in turns],
        "has_more": len(found) > query.limit,
        "usual": {name: await services.telemetry.traces.views.usual(principal, name) for name in sorted(surfaces)},
    }


@routes.get("/ops/api/traces/{id}", (Scope.CHAT, Scope.OPS))
async def get_trace(request: web.Request, query: TraceQuery) -> Json:
    """One trace with the usual values of its surface and, for its own tenant, with the question and the tool calls.

    With `format=otlp`, in the format of OpenTelemetry, without any text.
    """
    await request.app[RUNS].recorded(request[PRINCIPAL].tenant_id, request.match_info["id"])
    services, principal = await _flushed(request)
    traces = services.telemetry.traces
    trace = await traces.get(principal, request.match_info["id"])
    if trace is None:
        raise ApiError(404, "There is no trace with this id.", code="trace_not_found")
    if query.format == "otlp":
        return otlp_json(spans_of(trace), VERSION)
    said: dict[str, Any] = {"question": None, "calls": []}
    if (response_id := trace["response_id"]) and _may_read(principal, trace):
        questions = await questions_of(services.database, principal.tenant_id, [response_id])
        said["question"] = questions.get(response_id)
        said["calls"] = await calls_of(services.database, principal.tenant_id, response_id)
    usual = await traces.views.usual(principal, trace["surface"])
    return {**trace, **said, "usual": usual, "target": _target(services, trace["surface"])}


async def _flushed(request: web.Request) -> tuple[Services, Principal]:
    """Who asks right after an answer finds it."""
    services = request.app[SERVICES]
    await services.telemetry.flush()
    return services, request[PRINCIPAL]


async def _key_names(services: Services, principal: Principal, found: Mapping[str, Any]) -> dict[str, str]:
    """Of the keys in a summary, for who may list those of the tenant anyway."""
    if Scope.ADMIN not in principal.scopes or not found["facets"]["key"]:
        return {}
    keys = await services.authenticator.keys.list(principal.tenant_id)
    return {key.id: key.name for key in keys if key.id in found["facets"]["key"]}


def _may_read(principal: Principal, turn: Mapping[str, Any]) -> bool:
    """Latencies are for operators, what was said is for who may ask in the same tenant."""
    return Scope.CHAT in principal.scopes and turn.get("tenant", str(principal.tenant_id)) == str(principal.tenant_id)


def _target(services: Services, surface: str) -> dict[str, float] | None:
    target = services.targets.by_surface.get(surface)
    return None if target is None else asdict(target)


@routes.get("/ops/api/audit", Scope.ADMIN)
async def list_audit(request: web.Request, query: AuditQuery) -> Json:
    """Newest first. `before` is the position of the last entry seen."""
    audit = request.app[SERVICES].authenticator.audit
    notes = await audit.list(request[PRINCIPAL].tenant_id, limit=query.limit + 1, before=query.before)
    return {
        "object": "list",
        "data": [_note_object(note) for note in notes[: query.limit]],
        "has_more": len(notes) > query.limit,
    }


def _note_object(note: Note) -> dict[str, Any]:
    return {
        "object": "audit.note",
        "position": note.position,
        "at": note.at.timestamp(),
        **asdict(note.actor),
        "act": note.act,
        "of": note.object,
        "detail": note.detail,
    }


@routes.get("/ops/api/cost", (Scope.CHAT, Scope.OPS))
async def cost(request: web.Request, query: WindowQuery) -> Json:
    """Totals by surface, model and agent, with the cost per thousand answers and their time to first token."""
    services, principal = await _flushed(request)
    data: list[dict[str, Any]] = await cost_summary(services.database, principal, query.asked)
    return {"object": "list", "data": data}


MEASURES_MAX = 16  # more than are compared
CanaryName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Agent = Annotated[str, StringConstraints(max_length=limits.KEY_CHARS_MAX)]
Share = Annotated[float, Field(gt=0, lt=1, strict=False)]


class CanaryStart(Strict):
    """Without `agent`, the canary covers requests that name no agent."""

    name: CanaryName
    agent: Agent = ""
    treatment: Agent
    share: Share = 0.1
    margins: Annotated[dict[Agent, Share], Field(max_length=MEASURES_MAX)] = Field(default_factory=dict)

    @property
    def proposal(self) -> Proposal:
        return Proposal(self.name, self.agent, self.treatment, self.share, self.margins)


class CanaryDecision(Strict):
    state: Literal["promoted", "aborted"]


@routes.get("/ops/api/canaries", (Scope.CHAT, Scope.OPS))
async def list_canaries(request: web.Request) -> Json:
    """All canaries and, for callers who may start one, the agents that can be tried."""
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    data = await services.canaries.accounts() if principal.is_operator else []
    return {"data": data, "agents": list(services.agent_registry.agents) if _may_change(principal) else []}


@routes.post("/ops/api/canaries", Scope.ADMIN, takes=CanaryStart)
async def start_canary(request: web.Request) -> Json:
    """Raises ApiError 400, 403, 409."""
    _check_may_change(request[PRINCIPAL])
    services, proposal = request.app[SERVICES], (await parsed(CanaryStart, request[BODY])).proposal
    if problem := proposal.problem(services.agent_registry.agents):
        raise ApiError(400, f"{problem[1][0].upper()}{problem[1][1:]}.", param=problem[0], code="invalid_value")
    try:
        return await services.canaries.begin(proposal, actor_of(request))
    except AlreadyExists as error:
        message = f"Canary {proposal.name} cannot be started: {error}."
        raise ApiError(409, message, param="name", code="canary_exists") from None


@routes.post("/ops/api/canaries/{name}", Scope.ADMIN, takes=CanaryDecision)
async def decide_canary(request: web.Request) -> Json:
    """Promote or end. Raises ApiError 400, 403, 404, 409."""
    _check_may_change(request[PRINCIPAL])
    name, after = path_id(request, "canary", "name"), State((await parsed(CanaryDecision, request[BODY])).state)
    done = await request.app[SERVICES].canaries.decide(name, after, actor_of(request))
    if done is None:
        raise ApiError(404, "There is no canary of this name.", code="not_found")
    if not done:
        raise ApiError(409, f"Canary {name} is over or was decided already.", code="canary_decided")
    return {"name": name, "state": after}


def _may_change(principal: Principal) -> bool:
    return principal.is_operator and Scope.ADMIN in principal.scopes


def _check_may_change(principal: Principal) -> None:
    if not _may_change(principal):
        message = (
            "This concerns all tenants: it needs the scopes ops and admin, which these credentials do not both have."
        )
        raise ApiError(403, message, code="missing_scope")
