"""Tools of MCP servers, real ones in processes of their own: reached, refused, lost and found again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket
from typing import Any

import httpx2
import pytest

from agents.mcp_config import AbsentTool, ServerTable
from agents.mcp_server import McpServer, McpTool, outline, tool_name
from agents.tool import ToolContext, ToolError
from agents.toolbox import Toolbox, ToolResult
from tests.agents.turns import TENANT
from worker.lifecycle.supervisor import Supervisor

SCRIPT = str(Path(__file__).with_name("mcp_tools.py"))
COMMAND = [sys.executable, SCRIPT]
WAIT_S = 60.0  # for a process to start on a busy machine


class Shelf:
    """A toolbox that the server fills, and how often it did."""

    def __init__(self) -> None:
        self.box = Toolbox()
        self.times: asyncio.Queue[int] = asyncio.Queue()

    def changed(self, tools: Sequence[McpTool]) -> None:
        for tool in tools:
            self.box.put(tool)
        self.times.put_nowait(len(tools))

    async def filled(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.times.get()

    async def run(self, name: str, arguments: str = "{}", timeout_s: float = WAIT_S) -> ToolResult:
        return await self.box.run(name, arguments, ToolContext(TENANT), timeout_s=timeout_s, result_chars=500)


@asynccontextmanager
async def connected(table: ServerTable) -> AsyncIterator[Shelf]:
    shelf = Shelf()
    server = McpServer("far", table, shelf.changed)
    task = Supervisor().start("tool_servers", server.run)
    try:
        await shelf.filled()
        yield shelf
    finally:
        await task.stop()


@pytest.fixture
def http_url() -> Iterator[str]:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
async def shelf() -> AsyncIterator[Shelf]:
    """The tools of one process, which begins again when it dies: each takes seconds of the processor to start."""
    async with connected(ServerTable(command=COMMAND)) as shelf:
        yield shelf


async def test_tools_of_a_command_are_called_like_our_own(shelf: Shelf) -> None:
    assert set(shelf.box.names) == {"far_double", "far_refuse", "far_die", "far_wait_long"}
    schema = shelf.box.schemas(["far_double"])[0]["function"]
    assert (schema["name"], schema["description"]) == ("far_double", "Double a number.")
    assert schema["parameters"]["properties"]["x"]["type"] == "integer"
    assert (await shelf.run("far_double", '{"x": 21}')).output == "42"


async def test_what_goes_wrong_there_is_a_tool_error_here(shelf: Shelf) -> None:
    refused = await shelf.run("far_refuse")
    assert refused.failed and "no room is free" in refused.output
    assert (await shelf.run("far_double", '{"x": "many"}')).failed
    assert (await shelf.run("far_double", "[1]")).output == "Error: invalid arguments: they must be a JSON object"
    late = await shelf.run("far_wait_long", timeout_s=0.2)
    assert late.failed
    assert (await shelf.run("far_double", '{"x": 1}')).output == "2"


async def test_a_server_that_dies_is_an_error_and_comes_back(shelf: Shelf) -> None:
    died = await shelf.run("far_die")
    assert died.failed and "'far'" in died.output
    await shelf.filled()
    assert (await shelf.run("far_double", '{"x": 4}')).output == "8"


async def test_a_server_over_http_that_comes_late_is_found(http_url: str) -> None:
    async with connected(ServerTable(url=http_url, headers={"x-key": "1"}, tools=["double"])) as shelf:
        assert shelf.box.names == ("far_double",)
        assert (await shelf.run("far_double", '{"x": 5}')).output == "10"


async def test_a_server_that_is_not_there_has_been_tried_soon() -> None:
    server = McpServer("gone", ServerTable(command=["/no/such/command"]), lambda tools: None)
    task = Supervisor().start("tool_servers", server.run)
    async with asyncio.timeout(WAIT_S):
        await server.tried.wait()
    await task.stop()


async def test_an_absent_tool_says_so() -> None:
    box = Toolbox([AbsentTool("far_read", "far")])
    result = await box.run("far_read", "{}", ToolContext(TENANT), timeout_s=1, result_chars=200)
    assert result.output == "Error: the server 'far' cannot be reached or has no such tool"


def test_names_fit_the_public_contract() -> None:
    assert tool_name("far", "Read/File-2") == "far_read_file_2"
    assert len(tool_name("far", "a" * 200)) == 128


class Saying(httpx2.AsyncBaseTransport):
    """In place of a server: what it says to each method."""

    def __init__(self, **results: Any) -> None:
        self._results = results

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(await request.aread() or "{}")
        result = self._results.get(asked.get("method", "").replace("/", "_"))
        if "id" not in asked or result is None:
            return httpx2.Response(202)
        noise = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        told = "".join(f"data: {json.dumps(message)}\n\n" for message in (noise, answer))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=told.encode())


GREETING = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
ECHO: dict[str, Any] = {"name": "echo", "inputSchema": {"type": "object"}}


async def test_what_does_not_follow_the_protocol_is_called_so_and_fills_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = ServerTable(url="https://tools.example/mcp")
    nameless = Saying(initialize=GREETING, tools_list={"tools": [{**ECHO, "name": None}]})
    with pytest.raises(Exception) as wrong:
        async with McpServer("far", table, transport=nameless).connected():
            pass
    assert outline(wrong.value) == "its answer does not follow the protocol"
    empty = McpServer("far", table, transport=Saying(initialize=GREETING, tools_list={"tools": [ECHO]}, tools_call={}))
    async with empty.connected():
        with pytest.raises(ToolError, match="does not follow the protocol"):
            await empty.call("echo", {}, WAIT_S)
    assert [record.name for record in caplog.records] == ["firsttoken.mcp"]
