"""One turn as requested, after the edge has validated it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from math import inf
from operator import attrgetter
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

from agents.function_tool import FunctionTool, qualified
from agents.message import Item, ToolListing
from agents.tool import ServerTool
from inference.frozen import changed, dataclass
from inference.generation import NO_DEADLINE, Due, Generation, Priority, Sampling
from inference.prompt import Segment
from inference.template_options import TemplateOptions
from retrieval.filter import Filter

TOKENS_MAX = 1_000_000  # of an answer without a limit: above every context, which then is the limit
ToolChoice: TypeAlias = Literal["auto", "none", "required"] | str  # or the name of one function


@dataclass(frozen=True, slots=True)
class ToolSearch:
    """A search over the deferred functions: the server runs it where the model calls `name`."""

    name: str
    by: Literal["words", "pattern"] = "words"


class TurnServer(Protocol):
    """An MCP server of one turn. Its tools are among the functions of the turn, `tools` run them."""

    @property
    def label(self) -> str: ...

    @property
    def listing(self) -> ToolListing: ...

    @property
    def functions(self) -> Sequence[FunctionTool]: ...

    @property
    def tools(self) -> Sequence[ServerTool]: ...

    def close(self) -> None:
        """End its connection, without waiting for that. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class FileSearch:
    """Retrieval over these vector stores (ids or names) before the answer."""

    vector_store_ids: tuple[str, ...]
    max_num_results: int = 5
    score_threshold: float = 0.0
    filters: Filter | None = None  # by attributes of the files


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The answer is JSON that fits a schema; `param` names the part of the request that asked for it. If not `strict`,
    only as far as a grammar can enforce it.
    """

    schema: Mapping[str, Any]
    param: str
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Compacting:
    """The conversation is compacted before the answer when its prompt is longer than `above_tokens`. `alone`: in any
    case, and in place of an answer."""

    above_tokens: int | None = None  # None: three quarters of the context
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper bounds of a turn's limits that a request, an agent or a credential sets. None: not set."""

    steps: int | None = None
    calls: int | None = None
    wall_clock_s: float | None = None
    tokens: int | None = None
    thought_tokens: int | None = None
    tool_timeout_s: float | None = None
    retrieval_ms: float | None = None
    cost: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The bounds that are set, by the names of the limits: time and tokens bound the answer as well as the loop."""
        bounds = zip(NAMES_OF_CAPS, VALUES_OF_CAPS(self), strict=True)
        return {name: bound for name, bound in bounds if bound is not None}


# Fields of `Caps`, and the limits that they bound. A request asks for them four times.
BOUNDED = ("steps", "calls", "wall_clock_s", "tokens", "thought_tokens", "tool_timeout_s", "retrieval_ms", "cost")
NAMES_OF_CAPS = (*BOUNDED, "answer_s", "answer_tokens")
VALUES_OF_CAPS = attrgetter(*BOUNDED, "wall_clock_s", "tokens")


class Owner(StrEnum):
    """Who set a limit."""

    REQUEST = "request"
    AGENT = "agent"
    KEY = "key"
    SURFACE = "surface"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of the agent loop: when one is spent, the model is told so and answers with what it has. They never cut
    an answer; `answer_s` and `answer_tokens` do, and are set by whoever `seconds_by` and `tokens_by` name.
    """

    steps: int = 8  # model calls
    calls: int = 16  # tool calls in total
    wall_clock_s: float = 120.0
    tokens: int = 4096  # generated, over all steps
    thought_tokens: int = TOKENS_MAX  # of reasoning, over all steps; then the answer begins
    tool_timeout_s: float = 20.0
    retrieval_ms: float = inf  # of the search before the answer, in addition to the budgets of its stages
    tool_result_chars: int = 8000  # longer results are cut, with a note to the model
    cost: float = inf  # of all steps and calls, in the units of the prices
    answer_s: float = inf  # of the whole turn, from its begin
    answer_tokens: int = TOKENS_MAX  # of all steps
    seconds_by: Owner = Owner.SERVER
    tokens_by: Owner = Owner.SERVER

    def replaced(self, caps: Caps, by: Owner) -> Limits:
        """These limits, replaced by those of `caps` that are set."""
        return self._with(caps.given, by)

    def capped(self, caps: Caps, by: Owner) -> Limits:
        """The minimum of these limits and `caps`."""
        return self._with({name: cap for name, cap in caps.given.items() if cap < getattr(self, name)}, by)

    def _with(self, bounds: dict[str, Any], by: Owner) -> Limits:
        if "answer_s" in bounds:
            bounds["seconds_by"] = by
        if "answer_tokens" in bounds:
            bounds["tokens_by"] = by
        return changed(self, **bounds) if bounds else self


@dataclass(frozen=True, slots=True)
class Arm:
    """How a conversation takes part in a canary; `unit` is the digest that identifies it."""

    canary: str
    treated: bool
    unit: str


@dataclass(slots=True, eq=False)
class AnswerNow:
    """Whoever reads a turn may end its reasoning, that of the running step and of all later ones."""

    wanted: bool = False
    _generation: Generation | None = None

    def follow(self, generation: Generation) -> None:
        """The step that runs from here on."""
        self._generation = generation
        if self.wanted:
            generation.end_thought()

    def ask(self) -> None:
        self.wanted = True
        if self._generation is not None:
            self._generation.end_thought()


class Steerable(Protocol):
    """A step that can be ended early: see `agents.step.Step.steer`."""

    def steer(self, *, stop_tools: bool) -> None: ...


@dataclass(slots=True, eq=False)
class Steering:
    """Whoever reads a turn may say more while it runs: it ends between two steps and keeps what it has, and another
    turn goes on with what was said."""

    wanted: bool = False
    _stops_tools: bool = False
    _step: Steerable | None = None

    def follow(self, step: Steerable) -> None:
        """The step that runs from here on."""
        self._step = step
        if self.wanted:
            step.steer(stop_tools=self._stops_tools)

    def ask(self, *, stop_tools: bool = False) -> None:
        """`stop_tools`: also stop the tools that run, which are awaited otherwise."""
        self.wanted, self._stops_tools = True, self._stops_tools or stop_tools
        if self._step is not None:
            self._step.steer(stop_tools=self._stops_tools)


@dataclass(frozen=True, slots=True)
class Turn:
    """`history` precedes the input: the items of the conversation or of previous responses, oldest first."""

    tenant_id: UUID
    input: tuple[Item, ...]
    history: tuple[Item, ...] = ()
    prompt: tuple[Segment, ...] = ()  # in place of all items: continued as it is, without template and tools
    instructions: str | None = None
    functions: tuple[FunctionTool, ...] = ()
    server_tools: tuple[str, ...] = ()  # names in the toolbox
    tool_searches: tuple[ToolSearch, ...] = ()
    servers: tuple[TurnServer, ...] = ()
    approved: frozenset[str] = frozenset()  # call_ids of requests for approval that this request allows
    file_search: FileSearch | None = None
    tool_choice: ToolChoice = "auto"
    allowed_tools: frozenset[str] | None = None  # those of the tools in the prompt that may be called; None: all
    parallel_tool_calls: bool = True
    answer_format: AnswerFormat | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()  # end the answer where its visible text contains one of these, and are not part of it
    switches: TemplateOptions = field(default_factory=TemplateOptions)
    hints: bool = True  # tell the model of the format of its answer and of a required tool
    caps: Caps = field(default_factory=Caps)  # the limits of the request
    limits: Limits = field(default_factory=Limits)  # the limits in effect
    priority: Priority = Priority.STANDARD
    due: Due = NO_DEADLINE
    tells_place: bool = False  # report its position in the queue, while it waits for the model
    only_reads: bool = False  # prefill the prompt for the turn that continues this one, and answer nothing
    compacting: Compacting | None = None
    truncates: bool = False  # the oldest turns may be dropped when the context is too small
    answer_now: AnswerNow | None = None  # if somebody may ask for it
    steering: Steering | None = None  # if somebody may say more while it runs
    arm: Arm | None = None
    model: str | None = None  # a model or a route of the worker; None: its agent, its surface or the worker chooses

    def using(self, servers: Sequence[TurnServer]) -> Turn:
        """The turn with the tools of these servers. Where its choice of tools names a server, all of them are meant."""
        if not servers:
            return self
        of = {qualified(server.label, ""): [tool.name for tool in server.functions] for server in servers}
        functions = (*self.functions, *(function for server in servers for function in server.functions))
        choice, allowed = self.tool_choice, self.allowed_tools
        if choice in of:
            choice, allowed = "required", frozenset({choice})
        if allowed is not None:
            allowed = frozenset(name for each in allowed for name in of.get(each, [each]))
        return changed(self, functions=functions, servers=tuple(servers), tool_choice=choice, allowed_tools=allowed)

    @property
    def salt(self) -> str:
        """The tenant, as the caches of models know it."""
        return str(self.tenant_id)

    @property
    def is_steered(self) -> bool:
        """Whether it is to end between two steps, because another turn goes on."""
        return self.steering is not None and self.steering.wanted
