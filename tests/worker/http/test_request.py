"""What a handler returns, as its client gets it."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from worker.http.request import EVERYBODY, Json, Routes, access_of


async def test_what_a_handler_returns_is_sent_as_json_with_the_status_of_its_route() -> None:
    routes = Routes()

    @routes.post("/things", EVERYBODY, status=202)
    async def make(request: web.Request) -> Json:
        """Make one."""
        return {"object": "thing"}

    @routes.get("/file", EVERYBODY)
    async def read(request: web.Request) -> web.Response:
        return web.Response(text="as it is", status=201)

    app = web.Application()
    app.add_routes(routes)
    async with TestClient(TestServer(app)) as client:
        made, file = await client.post("/things"), await client.get("/file")
        assert (made.status, made.content_type, await made.json()) == (202, "application/json", {"object": "thing"})
        assert (file.status, await file.text()) == (201, "as it is")
    [of_things] = [route.handler for route in app.router.routes() if route.method == "POST"]
    assert (access_of(of_things), of_things.__name__, of_things.__doc__) == (EVERYBODY, "make", "Make one.")
