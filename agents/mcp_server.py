"""One MCP server: kept connected, its tools adapted to ServerTool. Its failures become tool errors.

The connection has its own task. A server that is unreachable is retried with exponential backoff; until then its tools
answer that it cannot be reached. Needs the extra `mcp`; the protocol is
https://modelcontextprotocol.io.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as RemoteTool
from pydantic import ValidationError

from agents.function_tool import NAME_CHARS_MAX, function_schema
from agents.mcp_config import TOOLS_MAX, ServerTable
from agents.origin import PORTS, origin_of
from agents.tool import ToolContext, ToolError
from retrieval.loaders.web import is_public

ANSWER_BYTES_MAX = 1_000_000  # of a response: a list of 128 tools with long schemas; it is parsed on the event loop
log = logging.getLogger("firsttoken.mcp")


class Refused(Exception):
    """The request is not sent, or its response not read. The message contains no secrets."""


@cache
def _authorities() -> ssl.SSLContext:
    """Whom all connections trust: while the list is read, for tens of milliseconds, no stream goes on."""
    return httpx2.create_ssl_context(trust_env=False)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Names are resolved first, and the connection goes to the very address that was checked, so a name that resolves
    differently the second time (DNS rebinding) achieves nothing."""

    def __init__(self, origin: str, *, is_private: bool) -> None:
        """`is_private`: the origin may be on this machine or in its networks."""
        self._origin, self._is_private = origin, is_private
        self.trouble = ""  # with the newest request, for people: the client library does not tell
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False, verify=_authorities())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises Refused, and what the transport raises."""
        self.trouble = ""
        try:
            response = await self._answer(request)
        except Refused as refused:
            self.trouble = str(refused)
            raise
        if request.method == "POST" and not response.is_success:
            self.trouble = f"it answers with the status {response.status_code}"
        return response

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        if origin_of(str(request.url)) != self._origin:
            raise Refused("it leads to another server")
        host = request.url.host
        address = await self._address(host, request.url.port or PORTS[request.url.scheme])
        headers = request.headers.copy()
        headers["accept-encoding"] = "identity"
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await self._inner.handle_async_request(sent)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise Refused("its answer is compressed, which was not requested")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream)
        return response

    async def _address(self, host: str, port: int) -> str:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
        if not self._is_private and not all(is_public(ipaddress.ip_address(address)) for address in addresses):
            raise Refused("it leads to this machine or its private network")
        return addresses[0]

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._inner:
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise Refused(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


# They log the URLs of requests, which may be secrets, and a traceback for each message that is wrong: a server could
# fill the disk. What went wrong is said here.
for name in ("mcp", "client", "httpx2"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

CONNECT_S = 20.0  # a command may have to download its package first
HTTP_S = 600.0  # between two bytes: calls have limits of their own
CONNECTION_CLOSED = -32000  # the code with which the SDK reports a lost connection
DESCRIPTION_CHARS_MAX = 4096  # of a tool: it is part of every prompt

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]+")


class ServerAway(Exception):
    """The server cannot be reached; the message says why."""


class McpServer:
    """`changed(tools)` is called with the tools of every new connection."""

    def __init__(
        self,
        name: str,
        table: ServerTable,
        changed: Callable[[Sequence[McpTool]], None] = lambda tools: None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport` is in place of the usual one for HTTP, also of what the environment says about proxies."""
        self.name = name
        self._transport = transport
        self.tried = asyncio.Event()  # set once the first attempt succeeded or failed
        self._table = table
        self._changed = changed
        self._client: Client | None = None
        self._lost = asyncio.Event()

    @classmethod
    def guarded(cls, name: str, table: ServerTable, *, is_private: bool) -> McpServer:
        """A server that a request names: see `GuardedTransport`."""
        origin = origin_of(table.url or "")
        return cls(name, table, transport=GuardedTransport(origin, is_private=is_private))

    @property
    def trouble(self) -> str:
        """What is known of its newest request, if that went wrong."""
        return self._transport.trouble if isinstance(self._transport, GuardedTransport) else ""

    async def run(self, healthy: Callable[[], None]) -> None:
        """Connect, publish the tools and stay connected; `healthy` is called once it is. Always raises: ServerAway when
        that did not work, or when the connection is lost. Then it may be run again.
        """
        self._lost.clear()
        try:
            async with self.connected() as offered:
                self._changed(offered)
                log.info("MCP server %s: %d tools", self.name, len(offered))
                self.tried.set()
                healthy()
                await self._lost.wait()
            reason = "the connection is lost"
        except Exception as error:  # top-level boundary: another process, and its client library
            reason = _reason(error)
        finally:
            self.tried.set()
        raise ServerAway(f"MCP server {self.name}: {reason}")

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> str:
        """The result as text. Raises ToolError for every failure."""
        if self._client is None:
            raise ToolError(f"the server '{self.name}' cannot be reached")
        try:
            result = await self._client.call_tool(tool, dict(arguments), read_timeout_seconds=timeout_s)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._lost.set()
                raise ToolError(f"the connection to the server '{self.name}' was lost") from None
            raise ToolError(f"the server '{self.name}' refused: {error.message}") from None
        except Exception as error:  # top-level boundary: another process, and its client library
            self._lost.set()
            reason = outline(error)
            log.warning("MCP server %s: a call failed: %s, %s", self.name, type(error).__name__, reason)
            raise ToolError(f"the server '{self.name}' failed: {reason}") from None
        if result.is_error:
            raise ToolError(_text(result))
        return _text(result)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[list[McpTool]]:
        """In the block, these tools can be called. Raises whatever the library raises, and TimeoutError."""
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_S):
                client = await stack.enter_async_context(Client(await self._opened(stack)))
                tools = await _list_tools(client)
            self._client = client
            try:
                yield [_made(self, tool) for tool in tools if self._table.offers(tool.name)]
            finally:
                self._client = None

    async def _opened(self, stack: AsyncExitStack) -> Any:
        table = self._table
        if table.command is not None:
            command, *words = table.command
            environment = table.environment or None
            return StdioServerParameters(command=command, args=words, env=environment, cwd=table.folder)
        client = httpx2.AsyncClient(
            headers=table.headers, timeout=HTTP_S, transport=self._transport, trust_env=self._transport is None
        )
        http = await stack.enter_async_context(client)
        return streamable_http_client(table.url or "", http_client=http)


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of a server, named `<server>_<tool>`."""

    name: str
    schema: dict[str, Any]
    server: McpServer
    tool: str
    idempotent: bool = False
    read_only: bool = False
    cache_s: float = 0.0

    async def run(self, arguments: str, context: ToolContext) -> str:
        """Raises ToolError. The server checks the arguments: it knows its schema best."""
        try:
            parsed = json.loads(arguments)
        except ValueError as error:
            raise ToolError(f"invalid arguments: {error}") from None
        if not isinstance(parsed, dict):
            raise ToolError("invalid arguments: they must be a JSON object")
        return await self.server.call(self.tool, parsed, context.remaining_s)


def tool_name(server: str, tool: str) -> str:
    return f"{server}_{_NOT_IN_NAMES.sub('_', tool.lower())}"[:NAME_CHARS_MAX]


async def _list_tools(client: Client) -> list[RemoteTool]:
    """All pages, up to TOOLS_MAX: more do not fit into a prompt."""
    tools: list[RemoteTool] = []
    cursor: str | None = None
    while len(tools) < TOOLS_MAX:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools[:TOOLS_MAX]


def _made(server: McpServer, tool: RemoteTool) -> McpTool:
    name, description = tool_name(server.name, tool.name), (tool.description or "")[:DESCRIPTION_CHARS_MAX]
    read_only = bool(tool.annotations and tool.annotations.read_only_hint)
    idempotent = read_only or bool(tool.annotations and tool.annotations.idempotent_hint)
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    return McpTool(name, function_schema(name, description, schema), server, tool.name, idempotent, read_only=read_only)


def _text(result: CallToolResult) -> str:
    """The result as text for the model."""
    parts = [part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def outline(error: BaseException) -> str:
    """Why a server cannot be used, in words that contain no part of its URL: that may be a secret."""
    match _cause(error):
        case Refused() | MCPError() as error:
            return str(error)
        case TimeoutError() | httpx2.TimeoutException():
            return "it does not answer in time"
        case ValidationError():
            return "its answer does not follow the protocol"
    return "it cannot be reached"


def _cause(error: BaseException) -> BaseException:
    """The first cause: task groups wrap errors in exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    error = _cause(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
