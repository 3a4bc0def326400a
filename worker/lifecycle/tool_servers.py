"""The MCP servers of a worker: connected in parallel with the rest of the start; their tools are added to the
toolbox.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agents.definition import AgentRegistry
from agents.requested_server import RequestedServers
from agents.tool import ServerTool
from agents.toolbox import Toolbox
from worker.errors import StartError
from worker.lifecycle.supervisor import Supervisor, at_most
from worker.wire.function_tools import fits

log = logging.getLogger("firsttoken.mcp")

# A start waits this long for tool servers; the tools of slower ones are added when they connect.
START_S = 3.0
RETRY_MAX_S = 60.0  # between two attempts to reach a server that is down


@dataclass(slots=True)
class ToolServers:
    """`changed` may be called at any time; once a toolbox is attached, it receives the tools at once."""

    _tools: dict[str, Sequence[ServerTool]] = field(default_factory=dict)
    _toolbox: Toolbox | None = None
    _own: frozenset[str] = frozenset()  # names that no server may use
    requested: RequestedServers | None = None  # those that requests may name, if they may name any

    def changed(self, server: str, tools: Sequence[ServerTool]) -> None:
        self._tools[server] = tools
        self._put(tools)

    def attach(self, toolbox: Toolbox, agent_registry: AgentRegistry) -> None:
        self._toolbox, self._own = toolbox, frozenset(toolbox.names)
        for tools in (agent_registry.remote_tools, *self._tools.values()):
            self._put(tools)

    def _put(self, tools: Sequence[ServerTool]) -> None:
        if self._toolbox is None:
            return
        for tool in tools:
            if tool.name in self._own:
                log.warning("the MCP tool %s is skipped: the worker already has a tool with that name", tool.name)
            else:
                self._toolbox.put(tool)


@asynccontextmanager
async def open_tool_servers(
    agent_registry: AgentRegistry, supervisor: Supervisor, *, on_request: bool = False
) -> AsyncIterator[ToolServers]:
    """`on_request`: requests may name further ones. Raises StartError when there are servers but no library to speak to
    them."""
    known = ToolServers()
    if on_request:
        known.requested = RequestedServers(await _library(), fits)
    async with AsyncExitStack() as stack:
        if agent_registry.servers:
            library = await _library()
            servers = [
                library.McpServer(name, table, partial(known.changed, name))
                for name, table in agent_registry.servers.items()
            ]
            for server in servers:
                task = supervisor.start(
                    "tool_servers", server.run, retry_max_s=RETRY_MAX_S, expected=(library.ServerAway,)
                )
                stack.push_async_callback(task.stop)
            async with at_most(START_S):  # they keep trying
                for server in servers:
                    await server.tried.wait()
        yield known


async def _library() -> Any:
    """Imported lazily: it takes a second, which only its users should pay."""
    try:
        return await asyncio.to_thread(importlib.import_module, "agents.mcp_server")
    except ModuleNotFoundError as error:
        raise StartError(f"MCP servers need `pip install 'firsttoken[mcp]'` ({error})") from None
