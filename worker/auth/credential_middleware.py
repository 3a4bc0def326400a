"""What credentials do beside identifying a request: a one-time link (`/?token=…`) becomes a session cookie and a
clean URL, and a request ends when its credential is revoked while it is being answered."""

from __future__ import annotations

import asyncio

from aiohttp import web

from worker.auth.audit import Actor
from worker.edge.guard import remote_of
from worker.errors import ApiError
from worker.http.middleware import PREPARED, Handler
from worker.http.request import PRINCIPAL
from worker.services import SERVICES

REFUSED = "/#link"  # the id of that section


@web.middleware
async def sign_in(request: web.Request, handler: Handler) -> web.StreamResponse:
    """An invalid link leads to `/` as well: to the chat if the user is signed in, else to the section of the page that
    says how to get another link.
    """
    token = request.query.get("token") if request.path == "/" and request.method == "GET" else None
    if token is None:
        return await handler(request)
    authenticator = request.app[SERVICES].authenticator
    response = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store"})
    try:
        grant = await authenticator.redeem_link(token, remote_of(request))
    except ApiError as error:
        if error.status != 401:
            raise
        response.headers["Location"] = REFUSED
    else:
        browser, agent = Actor("link", grant.id, request.remote), request.headers.get("User-Agent", "")
        await authenticator.sessions.start(response, grant, browser, agent, secure=request.secure)
    return response


@web.middleware
async def end_with_credential(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A response that has begun is aborted, as if its client had disconnected; one that has not becomes a 401."""
    principal, task, ended = request.get(PRINCIPAL), asyncio.current_task(), False
    if principal is None or task is None:
        return await handler(request)

    def end() -> None:
        nonlocal ended
        if task is not asyncio.current_task():  # a session that ends itself gets its response
            ended = True
            task.cancel()

    with request.app[SERVICES].authenticator.revocable(principal, end):
        try:
            return await handler(request)
        except asyncio.CancelledError:
            if not ended or request.get(PREPARED):
                raise
            task.uncancel()
            message = "The credentials were revoked while this was being answered."
            raise ApiError(401, message, code="invalid_api_key") from None
