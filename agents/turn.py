"""One turn as requested, after the edge has validated it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, TypeAlias
from uuid import UUID

from agents.message import Item
from inference.core import NO_DEADLINE, Due, Priority, Sampling, Segment
from inference.template_options import TemplateOptions
from retrieval.filter import Filter

ToolChoice: TypeAlias = Literal["auto", "none", "required"] | str  # or the name of one function


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool that the caller runs: the turn ends with its calls, and the caller sends the outputs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False  # a grammar enforces that the arguments fit the parameters


@dataclass(frozen=True, slots=True)
class FileSearch:
    """Retrieval over these vector stores (ids or names) before the answer."""

    vector_store_ids: tuple[str, ...]
    max_num_results: int = 5
    score_threshold: float = 0.0
    filters: Filter | None = None  # by attributes of the files


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The answer is JSON that fits a schema; `param` names the part of the request that asked for it."""

    schema: Mapping[str, Any]
    param: str


@dataclass(frozen=True, slots=True)
class Compacting:
    """The conversation is compacted before the answer when its prompt is longer than `above_tokens`."""

    above_tokens: int | None = None  # None: three quarters of the context


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper bounds of a turn's limits that a request, an agent or a credential sets. None: not set."""

    steps: int | None = None
    calls: int | None = None
    wall_clock_s: float | None = None
    tokens: int | None = None
    tool_timeout_s: float | None = None
    retrieval_ms: float | None = None
    cost: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The bounds that are set, by the names of the limits."""
        return {name: bound for name in self.__slots__ if (bound := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one turn. When one is spent, the model is told so and answers with what it has."""

    steps: int = 8  # model calls
    calls: int = 16  # tool calls in total
    wall_clock_s: float = 120.0
    tokens: int = 4096  # generated, over all steps
    tool_timeout_s: float = 20.0
    retrieval_ms: float = inf  # of the search before the answer, in addition to the budgets of its stages
    tool_result_chars: int = 8000  # longer results are cut, with a note to the model
    cost: float = inf  # of all steps and calls, in the units of the prices

    def replaced(self, caps: Caps) -> Limits:
        """These limits, replaced by those of `caps` that are set."""
        given = caps.given
        return replace(self, **given) if given else self

    def capped(self, caps: Caps) -> Limits:
        """The minimum of these limits and `caps`."""
        lower = {name: cap for name, cap in caps.given.items() if cap < getattr(self, name)}
        return replace(self, **lower) if lower else self


@dataclass(frozen=True, slots=True)
class Arm:
    """How a conversation takes part in a canary; `unit` is the digest that identifies it."""

    canary: str
    treated: bool
    unit: str


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
    file_search: FileSearch | None = None
    tool_choice: ToolChoice = "auto"
    allowed_tools: frozenset[str] | None = None  # those of the tools in the prompt that may be called; None: all
    parallel_tool_calls: bool = True
    answer_format: AnswerFormat | None = None
    sampling: Sampling = field(default_factory=Sampling)
    switches: TemplateOptions = field(default_factory=TemplateOptions)
    caps: Caps = field(default_factory=Caps)  # the limits of the request
    limits: Limits = field(default_factory=Limits)  # the limits in effect
    priority: Priority = Priority.STANDARD
    due: Due = NO_DEADLINE
    tells_place: bool = False  # report its position in the queue, while it waits for the model
    compacting: Compacting | None = None
    truncates: bool = False  # the oldest turns may be dropped when the context is too small
    arm: Arm | None = None
    model: str | None = None  # a model or a route of the worker; None: its agent, its surface or the worker chooses

    @property
    def salt(self) -> str:
        """The tenant, as the caches of models know it."""
        return str(self.tenant_id)
