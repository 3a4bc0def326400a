"""The one-time link that signs a browser in: `/?token=…` becomes a session cookie and a clean URL."""

from __future__ import annotations

from aiohttp import web

from worker.auth.audit import Actor
from worker.edge.guard import remote_of
from worker.errors import ApiError
from worker.middleware import Handler
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
