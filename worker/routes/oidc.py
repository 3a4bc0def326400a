"""Signing in at the provider of an organisation: there and back again."""

from __future__ import annotations

import logging

from aiohttp import web

from worker.auth.access import EVERYBODY, declare
from worker.auth.audit import Actor
from worker.auth.keys import Grant
from worker.auth.provider import ATTEMPT_S, Attempt, Person, Provider, ProviderUnavailable, SignInRefused
from worker.auth.throttle import WRONG
from worker.edge.guard import remote_of
from worker.errors import ApiError
from worker.http.request_keys import TRACE
from worker.http.route_docs import HTML, RouteDocs
from worker.services import SERVICES, Services

log = logging.getLogger("firsttoken.auth")

PATH = "/sign-in/organisation"
CALLBACK = f"{PATH}/callback"
REFUSED = "/#refused"  # the id of the words about it
LIFETIME_S = 24 * 3600  # who leaves the organisation is out the day after; the way back in is a redirect
# The cookie of a session is not sent on a way that began at another site: the browser goes on from a page of ours.
ARRIVED = '<!doctype html><title>Signed in</title><meta charset="utf-8"><p><a href="/">Go on</a></p>'


def routes() -> list[web.RouteDef]:
    return declare(EVERYBODY, web.get(PATH, leave), web.get(CALLBACK, arrive))


@RouteDocs(tells=(HTML,))
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


@RouteDocs(tells=(HTML,), query={"code": {"type": "string"}, "state": {"type": "string"}, "error": {"type": "string"}})
async def arrive(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    provider, authenticator = _provider(services), services.authenticator
    attempt = Attempt.opened(request.cookies.get(_cookie(services), ""), authenticator.secret)
    code, state = request.query.get("code"), request.query.get("state")
    try:
        if attempt is None or state != attempt.state:
            raise SignInRefused("it was not started in this browser, or too long ago")
        if code is None:
            raise SignInRefused(f"the provider answered {request.query.get('error', 'nothing')[:80]!r}")
        person = await _person(request, provider, attempt, code)
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
