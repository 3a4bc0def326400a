"""/v1/sessions: the browsers that are signed in. Each sees and ends its own session; the scope admin sees and ends all
of its tenant.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.auth.session import Session
from worker.checks import path_id
from worker.described import Described
from worker.errors import ApiError
from worker.reply import reply
from worker.request_keys import PRINCIPAL, actor_of
from worker.services import SERVICES
from worker.wire.page import PAGE, PageQuery, list_object, page_of

CURRENT = "current"  # the session of the browser that asks


def routes() -> list[web.RouteDef]:
    return needs(Scope, web.get("/v1/sessions", list_sessions), web.delete("/v1/sessions/{id}", end))


@Described(query=PAGE)
async def list_sessions(request: web.Request) -> web.Response:
    principal = request[PRINCIPAL]
    sessions = await request.app[SERVICES].authenticator.sessions.list(principal.tenant_id)
    seen = [each for each in sessions if Scope.ADMIN in principal.scopes or each.id == principal.subject]
    objects = [_object(each, current=each.id == principal.subject) for each in seen]
    page, has_more = page_of(objects, PageQuery.parse(request.query))
    return reply(list_object(page, has_more))


async def end(request: web.Request) -> web.Response:
    """Sign a browser out: what it is being answered ends as well. Raises ApiError 403, 404."""
    principal, authenticator = request[PRINCIPAL], request.app[SERVICES].authenticator
    id = path_id(request, "session")
    own = principal.via == "session" and id in (CURRENT, principal.subject)
    if not own and Scope.ADMIN not in principal.scopes:
        message = "Ending another session needs the scope admin, which these credentials do not have."
        raise ApiError(403, message, type="permission_error", code="missing_scope")
    id = principal.subject if own else id
    if not await authenticator.sessions.revoke(principal.tenant_id, id, by=actor_of(request)):
        raise ApiError(404, "There is no session with this id.", type="not_found_error", code="not_found")
    authenticator.ended(id)
    response = reply({"id": id, "object": "session.deleted", "deleted": True})
    if own:
        authenticator.sessions.forget(response)
    return response


def _object(session: Session, *, current: bool) -> dict[str, Any]:
    used = session.last_used_at
    return {
        "id": session.id,
        "object": "session",
        "current": current,
        "scopes": sorted(session.scopes),
        "address": session.address,
        "agent": session.agent,
        "created_at": int(session.created_at.timestamp()),
        "last_used_at": None if used is None else int(used.timestamp()),
        "expires_at": int(session.expires_at.timestamp()),
    }
