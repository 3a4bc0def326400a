"""The one-time link that signs a browser in: `/?token=…` becomes a session cookie and a clean address."""

from __future__ import annotations

from aiohttp import web

from worker.middleware import Handler
from worker.services import SERVICES


def link(url: str, token: str) -> str:
    """What a person follows to sign in at the worker of this URL."""
    return f"{url}/?token={token}"


@web.middleware
async def sign_in(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A link that does not count any more leads to `/` as well: to the chat for who is signed in, else to the page that
    says how to get another.
    """
    token = request.query.get("token")
    if token is None or request.path != "/" or request.method != "GET":
        return await handler(request)
    authenticator = request.app[SERVICES].authenticator
    grant = await authenticator.redeem_link(token)
    response = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store"})
    if grant is not None:
        authenticator.sessions.start(response, grant, secure=request.secure)
    return response
