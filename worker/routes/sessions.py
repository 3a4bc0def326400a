"""/v1/sessions: the browsers that are signed in. People see and end those of their own; the scope admin sees and ends
all of its tenant.

Who is whose an organisation tells when somebody signs in with it. Who followed a link has that one session, or with the
scope admin all that began so: there is nobody else to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from worker.auth.access import needs
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.auth.session import Session
from worker.errors import ApiError
from worker.http.checks import path_id
from worker.http.json_response import json_response
from worker.http.request_keys import PRINCIPAL, actor_of
from worker.http.route_docs import RouteDocs
from worker.services import SERVICES
from worker.wire.page import PAGE, PageQuery, list_object, page_of

CURRENT = "current"  # the session of the browser that asks


def routes() -> list[web.RouteDef]:
    return needs(
        Scope,
        web.get("/v1/sessions", list_sessions),
        web.delete("/v1/sessions", end_own),
        web.delete("/v1/sessions/{id}", end),
    )


@RouteDocs(query=PAGE)
async def list_sessions(request: web.Request) -> web.Response:
    principal = request[PRINCIPAL]
    sessions = await request.app[SERVICES].authenticator.sessions.list(principal.tenant_id)
    own = _own(sessions, principal)
    seen = sessions if Scope.ADMIN in principal.scopes else own
    objects = [_object(each, current=each.id == principal.subject, own=each in own) for each in seen]
    page, has_more = page_of(objects, PageQuery.parse(request.query))
    return json_response(list_object(page, has_more))


async def end_own(request: web.Request) -> web.Response:
    """Sign out everywhere: end all sessions of the signed-in person, including this browser's. Raises ApiError 403."""
    principal, sessions = request[PRINCIPAL], request.app[SERVICES].authenticator.sessions
    own = _own(await sessions.list(principal.tenant_id), principal)
    if not own:
        message = "Only a browser that is signed in has sessions of its own. An API key ends sessions by their ids."
        raise ApiError(403, message, type="permission_error", code="no_session")
    ended = await _end(request, *(each.id for each in own))
    response = json_response({"object": "list", "data": [{"id": id, "object": "session.deleted"} for id in ended]})
    sessions.forget(response)
    return response


async def end(request: web.Request) -> web.Response:
    """Sign a browser out and cancel its answers in progress. Raises ApiError 403, 404."""
    principal, sessions = request[PRINCIPAL], request.app[SERVICES].authenticator.sessions
    id = path_id(request, "session")
    this = principal.via == "session" and id in (CURRENT, principal.subject)
    if not this and Scope.ADMIN not in principal.scopes:
        own = _own(await sessions.list(principal.tenant_id), principal)
        if id not in (each.id for each in own):
            message = "Ending another session needs the scope admin, which these credentials do not have."
            raise ApiError(403, message, type="permission_error", code="missing_scope")
    id = principal.subject if this else id
    if not await _end(request, id):
        raise ApiError(404, "There is no session with this id.", type="not_found_error", code="not_found")
    response = json_response({"id": id, "object": "session.deleted", "deleted": True})
    if this:
        sessions.forget(response)
    return response


async def _end(request: web.Request, *ids: str) -> Sequence[str]:
    principal, authenticator = request[PRINCIPAL], request.app[SERVICES].authenticator
    ended = await authenticator.sessions.revoke(principal.tenant_id, *ids, by=actor_of(request))
    for id in ended:
        authenticator.ended(id)
    return ended


def _own(sessions: Sequence[Session], principal: Principal) -> Sequence[Session]:
    """Those of the person who asks."""
    this = next((each for each in sessions if each.id == principal.subject), None)
    if this is None:
        return []
    if this.person is None and Scope.ADMIN not in principal.scopes:
        return [this]
    return [each for each in sessions if each.person == this.person]


def _object(session: Session, *, current: bool, own: bool) -> dict[str, Any]:
    used = session.last_used_at
    return {
        "id": session.id,
        "object": "session",
        "current": current,
        "own": own,
        "person": session.person,
        "scopes": sorted(session.scopes),
        "address": session.address,
        "agent": session.agent,
        "created_at": int(session.created_at.timestamp()),
        "last_used_at": None if used is None else int(used.timestamp()),
        "expires_at": int(session.expires_at.timestamp()),
    }
