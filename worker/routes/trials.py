"""GET /ops/api/canaries: what is on trial. Operators see it, and everybody else that there is nothing."""

from __future__ import annotations

from aiohttp import web

from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.reply import reply
from worker.request_keys import PRINCIPAL
from worker.services import SERVICES


def routes() -> list[web.RouteDef]:
    return needs((Scope.CHAT, Scope.OPS), web.get("/ops/api/canaries", list_canaries))


async def list_canaries(request: web.Request) -> web.Response:
    is_told = request[PRINCIPAL].is_operator
    return reply({"data": await request.app[SERVICES].canaries.accounts() if is_told else []})
