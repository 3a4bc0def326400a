"""GET /v1/responses with an upgrade: a WebSocket on which responses are asked for and told."""

from __future__ import annotations

from aiohttp import web

from worker.auth.session import require_same_origin
from worker.errors import ApiError
from worker.routes.health import DRAINING
from worker.services import PRINCIPAL, SERVICES
from worker.sockets.connection import Connection
from worker.sockets.register import Sockets

SOCKETS: web.AppKey[Sockets] = web.AppKey("sockets", Sockets)


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/responses", connect, allow_head=False)]


async def connect(request: web.Request) -> web.StreamResponse:
    """A browser sends its cookie along with a handshake from any page, so there the origin decides."""
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    if not web.WebSocketResponse().can_prepare(request):
        raise ApiError(426, "Send POST with a body, or GET as the handshake of a WebSocket.", code="upgrade_required")
    if principal.via == "session":
        require_same_origin("POST", request.headers)
    if request.app[DRAINING].is_set():
        raise ApiError(503, "The worker is being stopped.", type="server_error", retry_after_s=1.0)
    with request.app[SOCKETS].open(principal.tenant_id):
        return await Connection(services, request, request.app[DRAINING]).serve()
