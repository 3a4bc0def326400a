"""A model hub of our own that misbehaves as real ones do: cuts, refuses, ignores ranges, sends something else."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

CONTENT = b"GGUF" + random.Random(5).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PATH = "/owner/repository/resolve/main/model.gguf"


class Hub:
    """Answers PATH with a redirect to a store, as hubs do. Tests set the fields and read `ranges`."""

    def __init__(self) -> None:
        self.url = ""
        self.content = CONTENT
        self.declares_checksum = True
        self.honours_ranges = True
        self.cut_after: list[int] = []  # bytes that the next answers give before the line breaks
        self.statuses: list[int] = []  # of the next answers
        self.ranges: list[str | None] = []  # what requests asked for

    @property
    def model_url(self) -> str:
        return self.url + PATH

    async def redirect(self, request: web.Request) -> web.StreamResponse:
        self.ranges.append(request.headers.get("Range"))
        if self.statuses:
            return web.Response(status=self.statuses.pop(0), headers={"Retry-After": "0"})
        headers = {"Location": "/store", "X-Linked-Size": str(len(self.content))}
        if self.declares_checksum:
            headers["X-Linked-ETag"] = f'"{hashlib.sha256(self.content).hexdigest()}"'
        return web.Response(status=302, headers=headers)

    async def store(self, request: web.Request) -> web.StreamResponse:
        start = int(asked[6:-1]) if (asked := request.headers.get("Range")) and self.honours_ranges else 0
        total = len(self.content)
        if start >= total:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{total}"})
        response = web.StreamResponse(status=206 if start else 200)
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        response.content_length = total - start
        await response.prepare(request)
        end = start + self.cut_after.pop(0) if self.cut_after else total
        await response.write(self.content[start:end])
        if end < total:
            assert request.transport is not None
            request.transport.close()
        return response


@asynccontextmanager
async def running_hub() -> AsyncIterator[Hub]:
    hub = Hub()
    app = web.Application()
    app.router.add_get(PATH, hub.redirect)
    app.router.add_get("/store", hub.store)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    hub.url = f"http://{host}:{port}"
    yield hub
    await runner.cleanup()
