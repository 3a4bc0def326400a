"""/openapi.json: every route of this worker, for programs that make clients, tests and pages of it."""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import web

from worker.auth.access import EVERYBODY, declare
from worker.config import VERSION
from worker.openapi import document, operations


def routes() -> list[web.RouteDef]:
    return declare(EVERYBODY, web.get("/openapi.json", Description().read))


class Description:
    """Made when somebody reads it first, beside the event loop: the schemas take a moment."""

    def __init__(self) -> None:
        self._body: bytes | None = None
        self._making = asyncio.Lock()

    async def read(self, request: web.Request) -> web.Response:
        """This description of the API, in OpenAPI 3.1."""
        async with self._making:
            if self._body is None:
                routed = operations(request.app.router.routes())
                self._body = await asyncio.to_thread(lambda: orjson.dumps(document(routed, VERSION)))
        return web.Response(body=self._body, content_type="application/json")
