"""What members of a crew are asked on their private sockets, which are for this account alone: whether they are ready,
and their own numbers.
"""

from __future__ import annotations

from aiohttp import web

from worker.json_response import json_response
from worker.routes.health import ready
from worker.routes.metrics import TEXT, numbers
from worker.services import DRAINING, SERVICES


def beside(app: web.Application) -> web.Application:
    """The private application of the worker whose public one this is."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=await numbers(app), headers=TEXT)

    async def live(_: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    private = web.Application()
    private[SERVICES], private[DRAINING] = app[SERVICES], app[DRAINING]
    private.add_routes([web.get("/healthz", live), web.get("/readyz", ready), web.get("/metrics", scrape)])
    return private
