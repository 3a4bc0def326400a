"""Which tools of a server a request offers, and how long their list is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from agents import requested_server
from agents.requested_server import ALL, ListCache, Offer, OpenServer, RequestedServer, RequestedServers, ToolFilter
from inference.trace import Trace
from tests.agents.turns import TENANT

SERVER = RequestedServer("far", "https://tools.example/mcp?key=secret", {"x-key": "secret"})
READ = Offer("read", "Read.", {"type": "object", "properties": {}}, read_only=True, idempotent=True)
DROP = READ._replace(name="drop", read_only=False, idempotent=False)


def opened(server: RequestedServer, *offers: Offer) -> OpenServer:
    return OpenServer(RequestedServers(Library([]), lambda _: True), server, offers or (READ, DROP), "", Trace())


@pytest.mark.parametrize(
    ("trusted", "asked", "runs"),
    [
        (requested_server.NONE, requested_server.NONE, []),
        (ALL, requested_server.NONE, ["far__read", "far__drop"]),
        (ToolFilter(read_only=True), requested_server.NONE, ["far__read"]),
        (ALL, ToolFilter(frozenset({"drop"})), ["far__read"]),
        (ToolFilter(frozenset({"drop"}), read_only=True), requested_server.NONE, []),
    ],
)
def test_a_tool_runs_without_approval_only_where_the_request_trusts_it(
    trusted: ToolFilter, asked: ToolFilter, runs: list[str]
) -> None:
    functions = opened(replace(SERVER, trusted=trusted, asked=asked)).functions
    assert [function.name for function in functions if function.shape.by_server] == runs
    assert {function.shape.form for function in functions} <= {"mcp", "mcp_approval"}


class Library:
    """In place of the module that speaks to servers: one of them, which says what it wants."""

    def __init__(self, tools: list[tuple[str, dict[str, Any]]], error: str = "") -> None:
        self.McpServer, self.McpTool = self, lambda *parts: parts
        self.trouble, self._error = "", error
        self._tools = [
            SimpleNamespace(
                tool="read",
                read_only=True,
                idempotent=True,
                schema={"function": {"description": description, "parameters": schema}},
            )
            for description, schema in tools
        ]

    def guarded(self, name: str, table: Any, *, is_private: bool) -> Library:
        return self

    def outline(self, error: Exception) -> str:
        return str(error)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        if self._error:
            raise OSError(self._error)
        yield self._tools


async def test_what_a_server_says_can_be_stored_and_is_short() -> None:
    good: dict[str, Any] = {"type": "object", "properties": {}}
    odd = [{**good, "title": title} for title in ("a\0b", "\ud800")]
    library = Library([("a\0b\ud800", good), *(("", schema) for schema in odd)])
    (server,) = await RequestedServers(library, lambda schema: True).opened(TENANT, [SERVER], Trace())
    assert [function.description for function in server.functions] == ["a\N{REPLACEMENT CHARACTER}b?"]
    (server,) = await RequestedServers(Library([], "\0" * 10_000), lambda schema: True).opened(
        TENANT, [SERVER], Trace()
    )
    assert "\0" not in server.listing.error and len(server.listing.error) == requested_server.REASON_CHARS_MAX


async def test_of_tools_with_one_name_the_first_counts() -> None:
    """A server may list them again on each of its pages."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    library = Library([("first", schema), ("second", schema)])
    (server,) = await RequestedServers(library, lambda schema: True).opened(TENANT, [SERVER], Trace())
    assert [function.description for function in server.functions] == ["first"]
    assert [tool["description"] for tool in server.listing.tools] == ["first"]


def test_names_that_no_model_can_write_are_left_out() -> None:
    odd = [READ._replace(name=name) for name in ("a b", "x" * 128, "ü", "a\nb", "files.read", "a/b")]
    assert [function.name for function in opened(SERVER, *odd).functions] == ["far__files.read"]


def test_the_server_is_described_before_its_first_tool() -> None:
    first, second = opened(replace(SERVER, about="Tickets.")).functions
    assert (first.description, second.description) == ("Tickets.\nRead.", "Read.")


def test_a_list_is_kept_for_a_tenant_a_url_and_its_headers() -> None:
    keys = {
        ListCache.key(TENANT, SERVER),
        ListCache.key(UUID(int=8), SERVER),
        ListCache.key(TENANT, replace(SERVER, url="https://tools.example/mcp?key=other")),
        ListCache.key(TENANT, replace(SERVER, headers={"x-key": "other"})),
        ListCache.key(TENANT, replace(SERVER, headers={})),
        ListCache.key(TENANT, replace(SERVER, is_private=True)),
    }
    assert len(keys) == 6 and not any(b"secret" in key for key in keys)
    assert ListCache.key(TENANT, replace(SERVER, label="near")) in keys
    assert "secret" not in repr(SERVER)


def test_lists_are_bounded_in_time_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested_server, "KEPT_BYTES_MAX", 2 * len(json.dumps(READ)))
    cache, now_ns = ListCache(), 10**9
    cache.put(b"a", (READ,), now_ns)
    assert cache.get(b"a", now_ns + int(requested_server.KEPT_S * 1e9) - 1) == (READ,)
    assert cache.get(b"a", now_ns + int(requested_server.KEPT_S * 1e9)) is None
    cache.put(b"b", (READ,), now_ns)
    assert cache.get(b"a", now_ns)
    cache.put(b"c", (READ,), now_ns)
    assert (cache.get(b"a", now_ns), cache.get(b"b", now_ns), cache.get(b"c", now_ns)) == ((READ,), None, (READ,))
