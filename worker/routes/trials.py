"""/ops/api/canaries: what is on trial.

The scope ops sees it, and everybody else that there is nothing. With the scope admin beside it one starts, promotes and
ends what concerns the conversations of all tenants.
"""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field, StringConstraints

from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.errors import ApiError
from worker.http.request import BODY, PRINCIPAL, actor_of, json_response, path_id
from worker.http.route import Routes
from worker.services import SERVICES
from worker.telemetry.canaries import AlreadyExists
from worker.telemetry.trial import NAME_PATTERN, Proposal, State
from worker.wire import limits
from worker.wire.parse import parsed
from worker.wire.strict import Strict

MEASURES_MAX = 16  # more than are compared
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Agent = Annotated[str, StringConstraints(max_length=limits.KEY_CHARS_MAX)]
Share = Annotated[float, Field(gt=0, lt=1, strict=False)]


class CanaryStart(Strict):
    """Without `agent`, the canary covers requests that name no agent."""

    name: Name
    agent: Agent = ""
    treatment: Agent
    share: Share = 0.1
    margins: Annotated[dict[Agent, Share], Field(max_length=MEASURES_MAX)] = Field(default_factory=dict)

    @property
    def proposal(self) -> Proposal:
        return Proposal(self.name, self.agent, self.treatment, self.share, self.margins)


class CanaryDecision(Strict):
    state: Literal["promoted", "aborted"]


routes = Routes()


@routes.get("/ops/api/canaries", (Scope.CHAT, Scope.OPS))
async def list_canaries(request: web.Request) -> web.Response:
    """All canaries and, for callers who may start one, the agents that can be tried."""
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    data = await services.canaries.accounts() if principal.is_operator else []
    return json_response(
        {"data": data, "agents": list(services.agent_registry.agents) if _may_change(principal) else []}
    )


@routes.post("/ops/api/canaries", Scope.ADMIN, takes=CanaryStart)
async def start(request: web.Request) -> web.Response:
    """Raises ApiError 400, 403, 409."""
    _check(request[PRINCIPAL])
    services, proposal = request.app[SERVICES], (await parsed(CanaryStart, request[BODY])).proposal
    if problem := proposal.problem(services.agent_registry.agents):
        raise ApiError(400, f"{problem[1][0].upper()}{problem[1][1:]}.", param=problem[0], code="invalid_value")
    try:
        return json_response(await services.canaries.begin(proposal, actor_of(request)))
    except AlreadyExists as error:
        message = f"Canary {proposal.name} cannot be started: {error}."
        raise ApiError(409, message, param="name", code="canary_exists") from None


@routes.post("/ops/api/canaries/{name}", Scope.ADMIN, takes=CanaryDecision)
async def decide(request: web.Request) -> web.Response:
    """Promote or end. Raises ApiError 400, 403, 404, 409."""
    _check(request[PRINCIPAL])
    name, after = path_id(request, "canary", "name"), State((await parsed(CanaryDecision, request[BODY])).state)
    done = await request.app[SERVICES].canaries.decide(name, after, actor_of(request))
    if done is None:
        raise ApiError(404, "There is no canary of this name.", code="not_found")
    if not done:
        raise ApiError(409, f"Canary {name} is over or was decided already.", code="canary_decided")
    return json_response({"name": name, "state": after})


def _may_change(principal: Principal) -> bool:
    return principal.is_operator and Scope.ADMIN in principal.scopes


def _check(principal: Principal) -> None:
    if not _may_change(principal):
        message = (
            "This concerns all tenants: it needs the scopes ops and admin, which these credentials do not both have."
        )
        raise ApiError(403, message, code="missing_scope")
