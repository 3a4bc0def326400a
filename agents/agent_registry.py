"""The agents of a worker and the tool servers that they use, read from agents.toml.

[agents.support]
instructions = "You answer questions about the handbook."
tools = ["calculator"]
search = { stores = ["handbook"] }
budget = { steps = 4, seconds = 30 }

[mcp.files]
command = ["npx", "@modelcontextprotocol/server-filesystem", "/srv/files"]

[surfaces.voice]
first_token_ms = 300

[prices]
output = 2.0
tools = { files_search = 0.5 }
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agents.budget import FREE, Prices
from agents.definition import SURFACES_MAX, Definition, Surface, SurfaceName
from agents.errors import AgentError
from agents.mcp_config import SERVERS_MAX, AbsentTool, ServerName, ServerTable
from agents.toml_file import read_toml

PREFIX = "agent/"  # of an agent's name in the `model` of a request
AGENTS_MAX = 256
NO_AGENT = Definition()

AgentName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


class InvalidAgents(AgentError):
    """agents.toml cannot be used; the message says where and why."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    agents: Annotated[dict[AgentName, Definition], Field(max_length=AGENTS_MAX)] = Field(default_factory=dict)
    mcp: Annotated[dict[ServerName, ServerTable], Field(max_length=SERVERS_MAX)] = Field(default_factory=dict)
    surfaces: Annotated[dict[SurfaceName, Surface], Field(max_length=SURFACES_MAX)] = Field(default_factory=dict)
    prices: Prices = FREE


@dataclass(frozen=True, slots=True)
class AgentRegistry:
    agents: Mapping[str, Definition] = field(default_factory=dict)
    servers: Mapping[str, ServerTable] = field(default_factory=dict)
    prices: Prices = FREE
    surfaces: Mapping[str, Surface] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> AgentRegistry:
        """Raises InvalidAgents naming the place in the file, OSError when it cannot be read."""
        file = read_toml(path, _File, InvalidAgents)
        return cls(file.agents, file.mcp, file.prices, file.surfaces)

    def beside(self, models: Iterable[str]) -> AgentRegistry:
        """With an agent for each of these models or routes, which adds nothing to a turn."""
        return replace(self, agents={**{name: Definition(model=name) for name in models}, **self.agents})

    @property
    def models(self) -> list[str]:
        """The values of `model` that select an agent."""
        return [PREFIX + name for name in self.agents]

    def of(self, model: str) -> Definition:
        """The agent that the model of a request selects; an empty definition if it selects none."""
        return self.agents.get(model.removeprefix(PREFIX), NO_AGENT) if model.startswith(PREFIX) else NO_AGENT

    def name_of(self, model: str) -> str:
        """The name of the agent that the model of a request selects; empty if it selects none."""
        name = model.removeprefix(PREFIX)
        return name if model.startswith(PREFIX) and name in self.agents else ""

    def server_of(self, tool: str) -> str | None:
        """The name of the tool server whose prefix the tool's name has, or None."""
        server, _, name = tool.partition("_")
        return server if name and server in self.servers else None

    @property
    def remote_tools(self) -> list[AbsentTool]:
        """Placeholders for the tools of servers that agents name, until their servers are connected."""
        names = dict.fromkeys(tool for agent in self.agents.values() for tool in agent.tools)
        return [AbsentTool(name, server) for name in names if (server := self.server_of(name)) is not None]

    def problems(self, tools: Collection[str], models: Collection[str] | None = None) -> list[str]:
        """A message for each tool that this worker lacks, and for each agent and surface that names neither a model nor
        a route of its `models` (None: unknown)."""
        available = ", ".join(sorted(tools)) or "none"
        missing = [
            f"agent {name}: there is no tool '{tool}'. Available: {available}."
            for name, agent in self.agents.items()
            for tool in agent.tools
            if tool not in tools and self.server_of(tool) is None
        ]
        if models is None:
            return missing
        named = [(f"agent {name}", agent.model) for name, agent in self.agents.items()]
        named += [(f"surface {name}", surface.model) for name, surface in self.surfaces.items()]
        return missing + [
            f"{who}: it needs the model '{model}', but this worker runs {_listed(models)}."
            for who, model in named
            if model is not None and model not in models
        ]


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
