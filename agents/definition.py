"""Agents and surfaces as configuration: what a named agent adds to every turn that requests it, and what follows from
where an answer is used. The file that defines them, the tool servers and the prices:

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
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agents.errors import AgentError
from agents.mcp_config import SERVERS_MAX, AbsentTool, ServerName, ServerTable
from agents.toml_file import Name, Table, read_toml
from agents.turn import FREE, Caps, FileSearch, Limits, Owner, Prices, Turn
from inference.frozen import changed
from inference.generation import Priority

# Limits of a file: well above any sensible agent.
INSTRUCTIONS_CHARS_MAX = 32_768
TOOLS_MAX, STORES_MAX, RESULTS_MAX = 64, 8, 50

ClassName: TypeAlias = Literal["interactive", "standard", "batch"]
CLASSES: Mapping[ClassName, Priority] = {
    "interactive": Priority.INTERACTIVE,
    "standard": Priority.STANDARD,
    "batch": Priority.BATCH,
}
SurfaceName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


class Bounds(Table):
    """Limits of turns as configuration, of an agent or of an API key, by the names of `Caps`. None: not set."""

    # Bounds of what may be configured: well above any sensible agent, well below what slows down other requests.
    steps: Annotated[int, Field(ge=1, le=64)] | None = None
    calls: Annotated[int, Field(ge=0, le=256)] | None = None
    tokens: Annotated[int, Field(ge=1, le=131_072)] | None = None
    thought_tokens: Annotated[int, Field(ge=0, le=131_072)] | None = None
    seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    tool_seconds: Annotated[float, Field(gt=0, le=600)] | None = None
    retrieval_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    cost: Annotated[float, Field(gt=0, le=1e9)] | None = None  # in the units of the prices

    @property
    def caps(self) -> Caps:
        return Caps(**{each.name: getattr(self, each.name) for each in fields(Caps)})


class SearchTable(Table):
    """Retrieval before the answer, like the file_search tool of a request."""

    stores: Annotated[list[Name], Field(min_length=1, max_length=STORES_MAX)]
    results: Annotated[int, Field(ge=1, le=RESULTS_MAX)] = FileSearch(()).max_num_results
    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0


class Definition(Table):
    """One agent. `tools` are tools of the server; an empty definition changes no turn."""

    description: Annotated[str, StringConstraints(max_length=500)] = ""
    instructions: Annotated[str, StringConstraints(max_length=INSTRUCTIONS_CHARS_MAX)] = ""
    model: Name | None = None  # a model or a route of the worker; None: its surface's or the default
    surface: SurfaceName | None = None  # label of its turns in the metrics; None: chat or embedded, by the credential
    tools: Annotated[list[Name], Field(max_length=TOOLS_MAX)] = Field(default_factory=list)
    search: SearchTable | None = None
    budget: Bounds = Bounds()

    def applied(self, turn: Turn) -> Turn:
        """The turn with this agent's instructions before those of the request, its tools before the others, and its
        limits: its budget, or the defaults if that is not set, lowered by the request's own limits.
        """
        said = [text for text in (self.instructions, turn.instructions) if text]
        return changed(
            turn,
            model=turn.model or self.model,
            instructions="\n\n".join(said) or None,
            server_tools=tuple(dict.fromkeys((*self.tools, *turn.server_tools))),
            file_search=turn.file_search or self._search,
            limits=self._limits.capped(turn.caps, Owner.REQUEST),
        )

    @cached_property
    def _limits(self) -> Limits:
        return Limits().replaced(self.budget.caps, Owner.AGENT)

    @property
    def _search(self) -> FileSearch | None:
        table = self.search
        return FileSearch(tuple(table.stores), table.results, table.score_threshold) if table else None


SURFACES_MAX = 32  # each has labels of its own in the metrics
BATCH = "batch"  # of background requests
TARGETS = {"first_token_ms", "first_answer_ms", "pace_ms"}  # of latency

Milliseconds = Annotated[float, Field(gt=0, le=3_600_000)]


class Surface(Table):
    """Its limits lower those of a turn, wherever they are set: naming a surface never raises a client's limits.

    [surfaces.voice]
    first_token_ms = 300
    pace_ms = 50
    answer_s = 20
    tokens = 200
    instructions = "Begin with the answer itself, in one short sentence."
    """

    first_token_ms: Milliseconds | None = None  # None, as of the pace: no target, so nothing is late
    first_answer_ms: Milliseconds | None = None  # the first token behind reasoning and calls
    pace_ms: Milliseconds | None = None  # between two tokens
    answer_s: Annotated[float, Field(gt=0, le=86_400)] | None = None  # the whole turn
    tool_s: Annotated[float, Field(gt=0, le=600)] | None = None  # each call of a tool
    retrieval_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None  # the search before the answer
    tokens: Annotated[int, Field(ge=1, le=131_072)] | None = None  # the longest answer
    thought_tokens: Annotated[int, Field(ge=0, le=131_072)] | None = None  # the longest reasoning before it
    best_class: Annotated[ClassName | None, Field(alias="class")] = None
    late: Literal["refuse", "wait"] | None = None  # the policy for late requests that set none; None: see --late
    instructions: Annotated[str, StringConstraints(max_length=INSTRUCTIONS_CHARS_MAX)] = ""
    model: Name | None = None  # a model or a route, for requests and agents that name none

    @cached_property
    def _caps(self) -> Caps:
        return Caps(
            seconds=self.answer_s,
            tokens=self.tokens,
            thought_tokens=self.thought_tokens,
            tool_seconds=self.tool_s,
            retrieval_ms=self.retrieval_ms,
        )

    @cached_property
    def _changes_turns(self) -> bool:
        return bool(self.instructions or self.model or self._caps.given)

    def applied(self, turn: Turn) -> Turn:
        if not self._changes_turns:
            return turn
        said = [text for text in (turn.instructions, self.instructions) if text]
        return changed(
            turn,
            model=turn.model or self.model,
            limits=turn.limits.capped(self._caps, Owner.SURFACE),
            instructions="\n\n".join(said) or None,
        )

    def capped(self, priority: Priority) -> Priority:
        """The priority class that a turn of this class gets."""
        return max(priority, CLASSES[self.best_class]) if self.best_class else priority

    def __str__(self) -> str:
        """Its requirements besides the targets, for people; what is not set is left out."""
        set_here = self.model_dump(by_alias=True, exclude_defaults=True, exclude=TARGETS)
        return ", ".join(f"{name} {value}" for name, value in set_here.items())


USUAL: Mapping[str, Surface] = {
    "chat": Surface(),
    "embedded": Surface(),
    "voice": Surface(),
    "completion": Surface.model_validate({"first_token_ms": 100, "pace_ms": 50, "tokens": 256}),
    BATCH: Surface.model_validate({"class": "batch", "late": "wait"}),
}


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
