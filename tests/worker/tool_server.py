"""An MCP server in a thread of this process, made with the SDK and reached over HTTP, and what it was asked."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from socket import socket
from typing import Any
from uuid import uuid4

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from starlette.types import ASGIApp, Receive, Scope, Send

from agents import mcp_server
from agents.requested_server import RequestedServers
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.serving import START_TIMEOUT_S
from tests.worker.answering import services_with
from tests.worker.harness import SECRET, Client, serving
from worker.auth.keys import Keys
from worker.auth.principal import KeyLimits
from worker.runs.run_services import McpServers
from worker.wire.function_tools import fits

READ = ToolAnnotations(read_only_hint=True)


@dataclass
class ToolServer:
    """`calls` are the arguments of every call that ran, `seen` the headers and method of every HTTP request."""

    origin: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    let_go: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def asked(self, method: str) -> int:
        """The number of requests with this MCP method."""
        return sum(headers.get("mcp-method") == method for headers in self.seen)


def _application(told: ToolServer) -> ASGIApp:
    server = MCPServer("tools")

    @server.tool(annotations=READ)
    def double(x: int) -> int:
        """Double a number."""
        told.calls.append({"x": x})
        return 2 * x

    @server.tool(name="files.delete")
    def delete(path: str) -> str:
        """Delete a file."""
        told.calls.append({"path": path})
        return f"{path} is gone"

    @server.tool()
    def refuse() -> str:
        """Always fail."""
        raise ToolError("no room is free")

    @server.tool()
    def flood() -> str:
        """Answer with more than anybody reads."""
        return "x" * 2_000_000

    @server.tool()
    def hold() -> str:
        """Answer when the test says so."""
        told.let_go.wait(START_TIMEOUT_S)
        return "held"

    inner = server.streamable_http_app()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            told.seen.append(headers)
            answer = None
            if scope["path"] == "/away":
                answer = {"status": 307, "headers": [(b"location", b"http://127.0.0.1:9/mcp")]}
            elif headers.get("authorization") == "Bearer wrong":
                answer = {"status": 401, "headers": []}
            if answer is not None:
                await send({"type": "http.response.start", **answer})
                await send({"type": "http.response.body", "body": b""})
                return
        await inner(scope, receive, send)

    return app


@contextmanager
def tool_server() -> Iterator[ToolServer]:
    with socket() as listening:
        listening.bind(("127.0.0.1", 0))
        told = ToolServer(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server = uvicorn.Server(uvicorn.Config(_application(told), log_level="error", ws="none"))
        ready = threading.Event()
        startup = server.startup

        async def started(sockets: list[socket] | None = None) -> None:
            await startup(sockets)
            ready.set()

        server.startup = started  # type: ignore[method-assign]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            assert ready.wait(START_TIMEOUT_S)
            yield told
        finally:
            told.let_go.set()
            server.should_exit = True
            thread.join(START_TIMEOUT_S)


@asynccontextmanager
async def using(
    database: Database,
    model: ScriptedModel,
    *,
    private: str = "",
    public: str = "",
    bounds: KeyLimits | None = None,
    tenant: str = "",
) -> AsyncIterator[Client]:
    """A client of a worker that lets requests use these origins."""
    keys, known = Keys(database, SECRET), RequestedServers(mcp_server, fits)
    servers = McpServers(known, frozenset(filter(None, [public])), frozenset(filter(None, [private])))
    async with serving(replace(services_with(database, model), mcp_servers=servers)) as client:
        key = (await keys.create(await keys.tenant(tenant or f"test-{uuid4()}"), "test", bounds=bounds))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client
