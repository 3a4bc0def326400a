"""/v1/sessions: the browsers that are signed in. People see and end those of their own; the scope admin sees and ends
all of its tenant.

Who is whose an organisation tells when somebody signs in with it. Who followed a link has that one session, or with the
scope admin all that began so: there is nobody else to ask.

And signing in at the provider of an organisation: there and back again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from worker.auth.audit import Actor
from worker.auth.keys import Grant
from worker.auth.principal import Principal
from worker.auth.provider import ATTEMPT_S, Attempt, Person, Provider, ProviderUnavailable, SignInRefused
from worker.auth.scope import Scope
from worker.auth.session import Session
from worker.auth.throttle import WRONG
from worker.edge.guard import remote_of
from worker.errors import ApiError
from worker.http.query import PageQuery, Query
from worker.http.request import (
    EVERYBODY,
    HTML,
    PRINCIPAL,
    TRACE,
    Json,
    Routes,
    actor_of,
    json_response,
    path_id,
)
from worker.services import SERVICES, Services

CURRENT = "current"  # the session of the browser that asks
log = logging.getLogger("firsttoken.auth")

PATH = "/sign-in/organisation"
CALLBACK = f"{PATH}/callback"
REFUSED = "/#refused"  # the id of the words about it
LIFETIME_S = 24 * 3600  # who leaves the organisation is out the day after; the way back in is a redirect
# The cookie of a session is not sent on a way that began at another site: the browser goes on from a page of ours.
ARRIVED = '<!doctype html><title>Signed in</title><meta charset="utf-8"><p><a href="/">Go on</a></p>'


routes = Routes()


@routes.get("/v1/sessions", Scope)
async def list_sessions(request: web.Request, page: PageQuery) -> Json:
    principal = request[PRINCIPAL]
    sessions = await request.app[SERVICES].authenticator.sessions.list(principal.tenant_id)
    own = _own(sessions, principal)
    seen = sessions if Scope.ADMIN in principal.scopes else own
    return page.of([_object(each, current=each.id == principal.subject, own=each in own) for each in seen])


@routes.delete("/v1/sessions", Scope)
async def end_own(request: web.Request) -> web.Response:
    """Sign out everywhere: end all sessions of the signed-in person, including this browser's. Raises ApiError 403."""
    principal, sessions = request[PRINCIPAL], request.app[SERVICES].authenticator.sessions
    own = _own(await sessions.list(principal.tenant_id), principal)
    if not own:
        message = "Only a browser that is signed in has sessions of its own. An API key ends sessions by their ids."
        raise ApiError(403, message, code="no_session")
    ended = await _end(request, *(each.id for each in own))
    response = json_response({"object": "list", "data": [{"id": id, "object": "session.deleted"} for id in ended]})
    sessions.forget(response)
    return response


@routes.delete("/v1/sessions/{id}", Scope)
async def end(request: web.Request) -> web.Response:
    """Sign a browser out and cancel its answers in progress. Raises ApiError 403, 404."""
    principal, sessions = request[PRINCIPAL], request.app[SERVICES].authenticator.sessions
    id = path_id(request, "session")
    this = principal.via == "session" and id in (CURRENT, principal.subject)
    if not this and Scope.ADMIN not in principal.scopes:
        own = _own(await sessions.list(principal.tenant_id), principal)
        if id not in (each.id for each in own):
            message = "Ending another session needs the scope admin, which these credentials do not have."
            raise ApiError(403, message, code="missing_scope")
    id = principal.subject if this else id
    if not await _end(request, id):
        raise ApiError(404, "There is no session with this id.", code="not_found")
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


@routes.get(PATH, EVERYBODY, tells=(HTML,))
async def leave(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    provider = _provider(services)
    attempt = Attempt.begin()
    try:
        address = await provider.address(attempt, _redirect_uri(request, services))
    except ProviderUnavailable as error:
        return _refused(error)
    response = web.Response(status=303, headers={"Location": address, "Cache-Control": "no-store"})
    authenticator = services.authenticator
    response.set_cookie(
        _cookie(services),
        attempt.sealed(authenticator.secret),
        max_age=ATTEMPT_S,
        path=PATH,
        httponly=True,
        samesite="Lax",  # the way back begins at another site
        secure=request.secure,
    )
    return response


class CallbackQuery(Query):
    """How the provider of an organisation sends somebody back."""

    code: str | None = None
    state: str | None = None
    error: str = "nothing"


@routes.get(CALLBACK, EVERYBODY, tells=(HTML,))
async def arrive(request: web.Request, query: CallbackQuery) -> web.Response:
    services = request.app[SERVICES]
    provider, authenticator = _provider(services), services.authenticator
    attempt = Attempt.opened(request.cookies.get(_cookie(services), ""), authenticator.secret)
    try:
        if attempt is None or query.state != attempt.state:
            raise SignInRefused("it was not started in this browser, or too long ago")
        if query.code is None:
            raise SignInRefused(f"the provider answered {query.error[:80]!r}")
        person = await _person(request, provider, attempt, query.code)
    except (SignInRefused, ProviderUnavailable, ApiError) as error:
        return _refused(error)
    response = web.Response(text=ARRIVED, content_type="text/html", headers={"Refresh": "0; url=/"})
    response.headers["Cache-Control"] = "no-store"
    await _begin_session(request, services, response, person)
    response.del_cookie(_cookie(services), path=PATH)
    return response


async def _person(request: web.Request, provider: Provider, attempt: Attempt, code: str) -> Person:
    """Who the code stands for: each one asks the provider, so an address with many wrong ones has to wait its turn."""
    redirect_uri = _redirect_uri(request, request.app[SERVICES])
    async with provider.throttle.checking(remote_of(request)):
        try:
            return await provider.person(attempt, code, redirect_uri, request[TRACE])
        except SignInRefused as error:
            raise ApiError(WRONG, str(error)) from error


async def _begin_session(request: web.Request, services: Services, response: web.Response, person: Person) -> None:
    authenticator = services.authenticator
    tenant_id = await authenticator.keys.tenant(person.tenant)
    browser = Actor("oidc", person.subject, remote_of(request))
    agent = request.headers.get("User-Agent", "")
    grant = Grant(person.subject, tenant_id, person.scopes)
    await authenticator.sessions.start(
        *(response, grant, browser, agent), secure=request.secure, lifetime_s=LIFETIME_S, person=person.subject
    )


def _provider(services: Services) -> Provider:
    provider = services.authenticator.provider
    if provider is None:
        raise web.HTTPNotFound
    return provider


def _cookie(services: Services) -> str:
    return f"{services.authenticator.sessions.cookie_name}_attempt"


def _redirect_uri(request: web.Request, services: Services) -> str:
    return f"{services.config.oidc_url or request.url.origin()}{CALLBACK}".replace("//sign-in", "/sign-in")


def _refused(error: Exception) -> web.Response:
    """Why is for the log alone: the page tells whom to ask."""
    log.warning("a sign-in with OpenID Connect failed: %s", error)
    return web.Response(status=303, headers={"Location": REFUSED, "Cache-Control": "no-store"})
