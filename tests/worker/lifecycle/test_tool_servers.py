"""MCP servers of a worker: they never hold up a start, and never take the place of its own tools."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from agents.definition import AgentRegistry, Definition
from agents.mcp_config import AbsentTool, ServerTable
from agents.tool import ToolContext, tool
from agents.toolbox import Toolbox
from tests.agents.test_mcp_server import COMMAND
from tests.agents.turns import TENANT
from worker.errors import StartError
from worker.lifecycle import tool_servers
from worker.lifecycle.supervisor import Supervisor
from worker.lifecycle.tool_servers import ToolServers, open_tool_servers


@tool
def current_time() -> str:
    """Say the time."""
    return "noon"


def served(command: list[str], *tools: str) -> AgentRegistry:
    return AgentRegistry({"a": Definition(tools=list(tools))}, {"far": ServerTable(command=command)})


async def run(box: Toolbox, name: str, arguments: str = "{}") -> str:
    return (await box.run(name, arguments, ToolContext(TENANT), timeout_s=60, result_chars=200)).output


async def test_the_tools_of_a_server_stand_beside_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_servers, "START_S", 60.0)  # a busy machine
    agent_registry, box = served(COMMAND, "far_double"), Toolbox([current_time])
    async with open_tool_servers(agent_registry, Supervisor()) as servers:
        servers.attach(box, agent_registry)
        assert await run(box, "far_double", '{"x": 4}') == "8"
        assert await run(box, "current_time") == "noon"


async def test_a_server_that_does_not_answer_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_servers, "START_S", 0.1)
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    agent_registry, box = served(silent, "far_double"), Toolbox()
    importlib.import_module("agents.mcp_server")
    async with open_tool_servers(agent_registry, Supervisor()) as servers:
        servers.attach(box, agent_registry)
        assert await run(box, "far_double") == "Error: the server 'far' cannot be reached or has no such tool"


async def test_no_server_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(name: str) -> Any:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(importlib, "import_module", never)
    async with open_tool_servers(AgentRegistry(), Supervisor()):
        pass


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'mcp'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(StartError, match=r"pip install 'firsttoken\[mcp\]'"):
        async with open_tool_servers(served(["x"]), Supervisor()):
            pass


async def test_a_server_cannot_replace_a_tool_of_the_worker() -> None:
    box, servers = Toolbox([current_time]), ToolServers()
    servers.attach(box, AgentRegistry())
    servers.changed("current", [AbsentTool("current_time", "current"), AbsentTool("current_date", "current")])
    assert await run(box, "current_time") == "noon"
    assert box.names == ("current_time", "current_date")
