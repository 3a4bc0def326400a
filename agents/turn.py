"""One turn as requested, after the edge has validated it; its budgets, and the prices of what it uses. Pure.

When a budget is spent, the model is told so and answers once more from what it has. The names of budgets are those of
TurnFinished.budget: steps, calls, wall_clock, tokens, cost, repeated_call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from math import inf, isfinite
from typing import Annotated, Any, Literal, Protocol, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from agents.errors import InvalidTurn
from agents.events import Usage
from agents.function_tool import FunctionTool, qualified
from agents.message import Item, Message, ToolListing
from agents.tool import ServerTool
from inference.frozen import changed, dataclass
from inference.generation import NO_DEADLINE, Due, Generation, Priority, Sampling
from inference.prompt import Segment, TemplateOptions
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
    param: str = field(default="vector_store_ids", compare=False)  # the part of the request that named them


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


@dataclass(frozen=True)
class Caps:
    """Upper bounds of a turn's limits that a request, an agent or a credential sets. None: not set."""

    steps: int | None = None
    calls: int | None = None
    tokens: int | None = None
    thought_tokens: int | None = None
    seconds: float | None = None
    tool_seconds: float | None = None
    retrieval_ms: float | None = None
    cost: float | None = None

    @cached_property  # those of agents, surfaces and the worker hold for every turn
    def given(self) -> Mapping[str, Any]:
        """The bounds that are set, by the names of the limits: time and tokens bound the answer as well as the loop."""
        bounds = {**vars(self), "answer_s": self.seconds, "answer_tokens": self.tokens}
        return {name: bound for name, bound in bounds.items() if bound is not None}


OWNERS = {"answer_s": "seconds_by", "answer_tokens": "tokens_by"}  # the fields of `Limits` that name them


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
    tokens: int = 4096  # generated, over all steps
    thought_tokens: int = TOKENS_MAX  # of reasoning, over all steps; then the answer begins
    seconds: float = 120.0  # of the whole turn
    tool_seconds: float = 20.0  # of each call
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

    def _with(self, bounds: Mapping[str, Any], by: Owner) -> Limits:
        if not bounds:
            return self
        owners: dict[str, Any] = {owner: by for bound, owner in OWNERS.items() if bound in bounds}
        return changed(self, **bounds, **owners)


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
            generation.end_reasoning()

    def ask(self) -> None:
        self.wanted = True
        if self._generation is not None:
            self._generation.end_reasoning()


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
    beginning: str = ""  # of the answer, which goes on from it and does not repeat it
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
    prediction: str = ""  # what the answer probably repeats: drafted from, but no part of any prompt
    stop: tuple[str, ...] = ()  # end the answer where its visible text contains one of these, and are not part of it
    switches: TemplateOptions = field(default_factory=TemplateOptions)
    hints: bool = True  # tell the model of the format of its answer and of a required tool
    caps: Caps = field(default_factory=Caps)  # the limits of the request
    limits: Limits = field(default_factory=Limits)  # the limits in effect
    priority: Priority = Priority.STANDARD
    due: Due = NO_DEADLINE
    reports_position: bool = False  # report its position in the queue, while it waits for the model
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
    def continued(self) -> Turn:
        """The turn whose answer goes on from the last message, which is the assistant's. Raises InvalidTurn."""
        last = self.input[-1] if self.input else None
        if not (isinstance(last, Message) and last.role == "assistant" and last.text):
            raise InvalidTurn("The last message has no text of the assistant to be continued.", param="messages")
        if self.answer_format is not None or self.tool_choice not in ("auto", "none"):
            reason = "leave out the format and the tool choice, or the last message"
            raise InvalidTurn(f"An answer of a required form continues no message: {reason}.", param="messages")
        return changed(self, input=self.input[:-1], beginning=last.text)

    @property
    def salt(self) -> str:
        """The tenant, as the caches of models know it."""
        return str(self.tenant_id)

    @property
    def is_steered(self) -> bool:
        """Whether it is to end between two steps, because another turn goes on."""
        return self.steering is not None and self.steering.wanted


WALL_CLOCK = "wall_clock"
# The same call with the same arguments may be repeated once, for fresh data; at the third the model loops.
IDENTICAL_CALLS_MAX = 2
# Reserved from the token budget for the last answer, at most a quarter of it.
ANSWER_TOKENS = 256
# For the answer after the wall clock has run out: a few sentences on what was found.
CONCLUSION_S = 10.0
PRICED_TOOLS_MAX = 256  # more than the server's own tools and those of a few tool servers

Price: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]


class Prices(BaseModel):
    """Prices in units that the operator chooses, such as cents or credits; 0 unless set. Tokens are priced by the
    thousand.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input: Price = 0.0  # uncached tokens of a prompt
    cached: Price = 0.0  # cached tokens of a prompt
    output: Price = 0.0  # generated tokens
    tools: Annotated[dict[str, Price], Field(max_length=PRICED_TOOLS_MAX)] = Field(default_factory=dict)  # one call
    engine_second: Price = 0.0  # of a step's time, by its share of the batch rows
    tool_seconds: Annotated[dict[str, Price], Field(max_length=PRICED_TOOLS_MAX)] = Field(default_factory=dict)

    def of_step(self, usage: Usage, engine_second: float | None = None) -> float:
        """`engine_second` is the price of the model's own engine, if it has one."""
        computed = usage.input_tokens - usage.cached_tokens
        thousands = computed * self.input + usage.cached_tokens * self.cached + usage.output_tokens * self.output
        second = self.engine_second if engine_second is None else engine_second
        return thousands / 1000 + (usage.spent.engine_ns + usage.spent.sight_ns) / 1e9 * second

    def of_call(self, tool: str) -> float:
        return self.tools.get(tool, 0.0)


FREE = Prices()


@dataclass(slots=True)
class Budget:
    limits: Limits
    started_ns: int
    prices: Prices = FREE
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    tool_s: float = 0.0
    circling: bool = False
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def state(self, now_ns: int) -> dict[str, Any]:
        """What is spent, as JSON."""
        return {
            "elapsed_ms": (now_ns - self.started_ns) / 1e6,
            "steps": self.steps,
            "calls": self.calls,
            "tokens": self.tokens,
            "cost": self.cost,
            "tool_s": self.tool_s,
            "circling": self.circling,
            "seen": [[name, arguments, count] for (name, arguments), count in self._seen.items()],
        }

    def restore(self, state: Mapping[str, Any], now_ns: int) -> None:
        """Restore what a turn had spent where it started. Raises KeyError, TypeError and ValueError."""
        self.started_ns = now_ns - int(state["elapsed_ms"] * 1e6)
        self.steps, self.calls, self.tokens = state["steps"], state["calls"], state["tokens"]
        self.cost, self.tool_s, self.circling = state["cost"], state["tool_s"], state["circling"]
        self._seen = Counter({(name, arguments): count for name, arguments, count in state["seen"]})

    def admit(self, name: str, arguments: str) -> bool:
        """Whether one more tool call may run; counts it if so."""
        same = (name, canonical(arguments))
        self._seen[same] += 1
        if self._seen[same] > IDENTICAL_CALLS_MAX:
            self.circling = True
        if self.circling or self.calls >= self.limits.calls or self.cost >= self.limits.cost:
            return False
        self.calls += 1
        self.cost += self.prices.of_call(name)
        return True

    def add_call(self, name: str, seconds: float) -> None:
        """Account for the time of a call that has ended."""
        self.tool_s += seconds
        self.cost += self.prices.tool_seconds.get(name, 0.0) * seconds

    def add_step(self, usage: Usage, engine_second: float | None) -> None:
        """Account for a step that has ended."""
        self.steps += 1
        self.tokens += usage.output_tokens
        self.cost += self.prices.of_step(usage, engine_second)

    def add_unused(self, usage: Usage, engine_second: float | None) -> None:
        """Account for what a model computed of a step that another one completed."""
        self.cost += self.prices.of_step(usage, engine_second)

    def spent(self, now_ns: int) -> str | None:
        """The name of the spent budget, after which the next step must be the answer; None while none is spent."""
        if self.circling:
            return "repeated_call"
        if self.calls >= self.limits.calls:
            return "calls"
        if self.steps + 1 >= self.limits.steps:
            return "steps"
        if self.remaining_s(now_ns) <= 0:
            return WALL_CLOCK
        if self.limits.tokens - self.tokens <= min(ANSWER_TOKENS, self.limits.tokens // 4):
            return "tokens"
        if self.cost >= self.limits.cost:
            return "cost"
        return None

    def deadline_ns(self, *, concluding: bool) -> int | None:
        """When a step is stopped, on the monotonic clock; None: never. The last answer gets at least CONCLUSION_S
        beyond the wall clock."""
        seconds = self.limits.answer_s
        if concluding:
            seconds = max(seconds, self.limits.seconds + CONCLUSION_S)
        return self.started_ns + int(seconds * 1e9) if isfinite(seconds) else None

    def remaining_s(self, now_ns: int) -> float:
        return self.limits.seconds - (now_ns - self.started_ns) / 1e9

    @property
    def remaining_tokens(self) -> int:
        """Those that the answer may still have."""
        return self.limits.answer_tokens - self.tokens


def canonical(arguments: str) -> str:
    """Equal for equal JSON, regardless of spacing and order of keys. Text that is not JSON is returned as it is."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
