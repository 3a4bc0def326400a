"""MCP servers that requests name: what they offer, cached, and the connection of one turn."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from agents.function_tool import NAME_CHARS_MAX, CallShape, FunctionTool, qualified
from agents.mcp_config import ServerTable
from agents.message import ToolListing, storable
from agents.origin import origin_of
from inference.lru_cache import LruCache
from inference.trace import Trace, now_ns

LIST_S = 10.0  # the client waits for its first token
KEPT_S = 300.0  # a changed list is noticed within minutes, a conversation asks once
KEPT_BYTES_MAX = 16 * 2**20
LEAVE_S = 2.0  # to end a session politely
REASON_CHARS_MAX = 300  # a server may say anything

# What models and the formats of their calls take: the names that the protocol recommends.
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{NAME_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Some of a server's tools: those that meet every condition."""

    names: frozenset[str] | None = None
    read_only: bool | None = None
    but: frozenset[str] = frozenset()

    def matches(self, name: str, *, read_only: bool) -> bool:
        named = (self.names is None or name in self.names) and name not in self.but
        return named and (self.read_only is None or self.read_only == read_only)


ALL, NONE = ToolFilter(), ToolFilter(frozenset())


@dataclass(frozen=True, slots=True)
class RequestedServer:
    """What a request says about a server. A tool needs approval unless it is `trusted` and not `asked`."""

    label: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    about: str = ""
    offered: ToolFilter = ALL
    trusted: ToolFilter = NONE
    asked: ToolFilter = NONE
    deferred: ToolFilter = NONE
    known: tuple[Offer, ...] | None = None  # what the caller says that it offers: it is not asked
    lists_all: bool = False  # the listing also has what is not `offered`, as the next request may offer it
    is_private: bool = False  # it may be on this machine or in its networks

    @property
    def origin(self) -> str:
        return origin_of(self.url)


class Offer(NamedTuple):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    read_only: bool
    idempotent: bool

    @property
    def shown(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": dict(self.schema),
            "annotations": {"read_only": self.read_only},
        }


class Kept(NamedTuple):
    tools: tuple[Offer, ...]
    until_ns: int
    size: int  # in bytes


class ListCache:
    """Lists of tools, of one tenant and one set of headers each."""

    def __init__(self) -> None:
        self._kept = LruCache[bytes, Kept](KEPT_BYTES_MAX, lambda _, kept: kept.size)

    @staticmethod
    def key(tenant_id: UUID, server: RequestedServer) -> bytes:
        """A digest, because headers and URLs are secrets."""
        told = json.dumps([str(tenant_id), server.url, sorted(server.headers.items()), server.is_private])
        return hashlib.blake2b(told.encode(), digest_size=32).digest()

    def get(self, key: bytes, now_ns: int) -> tuple[Offer, ...] | None:
        kept = self._kept.get(key)
        return None if kept is None or now_ns >= kept.until_ns else kept.tools

    def put(self, key: bytes, tools: tuple[Offer, ...], now_ns: int) -> None:
        size = sum(len(json.dumps(tool)) for tool in tools)
        self._kept.put(key, Kept(tools, now_ns + int(KEPT_S * 1e9), size))


class RequestedServers:
    """`library` is the module `agents.mcp_server`, which takes long to import. `is_fit`: whether a schema is small
    enough for a prompt."""

    def __init__(self, library: Any, is_fit: Callable[[Mapping[str, Any]], bool]) -> None:
        self._library, self._is_fit = library, is_fit
        self._lists = ListCache()

    async def opened(self, tenant_id: UUID, servers: Sequence[RequestedServer], trace: Trace) -> tuple[OpenServer, ...]:
        """The servers with their tools. One whose tools cannot be listed has none, and says why."""
        return tuple(await asyncio.gather(*(self._opened(tenant_id, server, trace) for server in servers)))

    async def _opened(self, tenant_id: UUID, server: RequestedServer, trace: Trace) -> OpenServer:
        key, start_ns, reason = ListCache.key(tenant_id, server), now_ns(), ""
        known = self._lists.get(key, start_ns) if server.known is None else server.known
        tools = known or ()
        if known is None:
            connection = self.connection(server)
            try:
                async with asyncio.timeout(LIST_S):
                    tools = await self._listed(connection)
                self._lists.put(key, tools, now_ns())
            except Exception as error:  # top-level boundary: another machine, and the client library
                reason = self.reason(connection, error)
        span = trace.add("mcp_list_tools", start_ns, now_ns(), lane="tools", cached=known is not None)
        span.attributes |= {"server": server.label, "tools": len(tools), "failed": bool(reason)}
        return OpenServer(self, server, tools, reason, trace)

    def connection(self, server: RequestedServer) -> Any:
        table = ServerTable(url=server.url, headers=dict(server.headers))
        return self._library.McpServer.guarded(server.label, table, is_private=server.is_private)

    def tool(self, function: FunctionTool, server: OpenServer, offer: Offer) -> Any:
        return self._library.McpTool(function.name, function.schema, server, offer.name, offer.idempotent)

    def reason(self, connection: Any, error: Exception) -> str:
        return storable(connection.trouble or self._library.outline(error))[:REASON_CHARS_MAX]

    async def _listed(self, connection: Any) -> tuple[Offer, ...]:
        async with connection.connected() as tools:
            offers = [_offer(tool) for tool in tools]
        fit = [offer for offer in offers if self._is_fit(offer.schema) and _is_storable(offer.schema)]
        return tuple({offer.name: offer for offer in reversed(fit)}.values())[::-1]  # the first of each name


class OpenServer:
    """A server in one turn. It is connected at its first call, until the turn ends."""

    def __init__(
        self, servers: RequestedServers, asked: RequestedServer, offers: Sequence[Offer], reason: str, trace: Trace
    ) -> None:
        self.label = asked.label
        used = [
            offer
            for offer in offers
            if asked.offered.matches(offer.name, read_only=offer.read_only)
            and _NAME.fullmatch(qualified(asked.label, offer.name))
        ]
        listed = offers if asked.lists_all else used
        self.listing = ToolListing(self.label, tuple(offer.shown for offer in listed), reason)
        self.functions = tuple(_function(asked, offer) for offer in used)
        self.tools = tuple(
            servers.tool(function, self, offer) for function, offer in zip(self.functions, used, strict=True)
        )
        if asked.about and self.functions:
            first, *others = self.functions
            described = replace(first, description=f"{asked.about}\n{first.description}")
            self.functions = (described, *others)
        self._servers, self._asked, self._trace = servers, asked, trace
        self._server: Any = None
        self._staying: asyncio.Task[None] | None = None
        self._ready, self._over = asyncio.Event(), asyncio.Event()

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> str:
        """The result as text. Raises ToolError for every failure."""
        if self._staying is None:
            self._server = self._servers.connection(self._asked)
            self._staying = asyncio.create_task(self._stay(), name=f"mcp:{self.label}")
        await self._ready.wait()
        result: str = await self._server.call(tool, arguments, timeout_s)
        return result

    async def _stay(self) -> None:
        """Connected, in a task of its own: the library wants to leave in the task in which it came."""
        start_ns = now_ns()
        try:
            async with self._server.connected():
                self._ready.set()
                await self._over.wait()
        except Exception as error:  # top-level boundary: another machine, and the client library
            span = self._trace.add("mcp_connect", start_ns, now_ns(), lane="tools", failed=True)
            span.attributes |= {"server": self.label, "reason": self._servers.reason(self._server, error)}
        finally:
            self._ready.set()

    def close(self) -> None:
        self._over.set()
        if self._staying is not None and not self._staying.done():
            asyncio.get_running_loop().call_later(LEAVE_S, self._staying.cancel)


def _offer(tool: Any) -> Offer:
    function = tool.schema["function"]
    description = storable(function["description"])
    return Offer(tool.tool, description, function["parameters"], tool.read_only, tool.idempotent)


def _is_storable(schema: Mapping[str, Any]) -> bool:
    """Whether nothing in it is a NUL or half of a character, which Postgres and JSON in UTF-8 cannot store."""
    text = json.dumps(schema, ensure_ascii=False)
    return r"\u0000" not in text and storable(text) == text


def _function(asked: RequestedServer, offer: Offer) -> FunctionTool:
    trusted, asks, deferred = (
        each.matches(offer.name, read_only=offer.read_only) for each in (asked.trusted, asked.asked, asked.deferred)
    )
    runs, name = trusted and not asks, qualified(asked.label, offer.name)
    shape = CallShape("mcp" if runs else "mcp_approval", asked.label, by_server=runs)
    return FunctionTool(name, offer.description, offer.schema, shape=shape, deferred=deferred)
