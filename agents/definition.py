"""Agents and surfaces as configuration: what a named agent adds to every turn that requests it, and what follows from
where an answer is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from agents.toml_file import Name, Table
from agents.turn import Caps, FileSearch, Limits, Owner, Turn
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
    """Limits of turns as configuration, of an agent or of an API key. None: not set."""

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
        return Caps(
            steps=self.steps,
            calls=self.calls,
            wall_clock_s=self.seconds,
            tokens=self.tokens,
            thought_tokens=self.thought_tokens,
            tool_timeout_s=self.tool_seconds,
            retrieval_ms=self.retrieval_ms,
            cost=self.cost,
        )


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
        limits = Limits().replaced(self.budget.caps, Owner.AGENT).capped(turn.caps, Owner.REQUEST)
        return changed(
            turn,
            model=turn.model or self.model,
            instructions="\n\n".join(said) or None,
            server_tools=tuple(dict.fromkeys((*self.tools, *turn.server_tools))),
            file_search=turn.file_search or self._search,
            limits=limits,
        )

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

    def applied(self, turn: Turn) -> Turn:
        caps = Caps(
            wall_clock_s=self.answer_s,
            tokens=self.tokens,
            thought_tokens=self.thought_tokens,
            tool_timeout_s=self.tool_s,
            retrieval_ms=self.retrieval_ms,
        )
        limits = turn.limits.capped(caps, Owner.SURFACE)
        said = [text for text in (turn.instructions, self.instructions) if text]
        return changed(
            turn,
            model=turn.model or self.model,
            limits=limits,
            priority=self.capped(turn.priority),
            instructions="\n\n".join(said) or None,
        )

    def capped(self, priority: Priority) -> Priority:
        """The priority class that a request of this class gets."""
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
