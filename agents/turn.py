"""What one turn asks for, after the edge has validated it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, TypeAlias
from uuid import UUID

from agents.message import Item
from inference.core import Priority, Sampling
from retrieval.filter import Filter

ToolChoice: TypeAlias = Literal["auto", "none", "required"] | str  # or the name of one function


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool that the caller runs: the turn ends with its calls and the caller answers with outputs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False  # its arguments are held to the parameters


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
    """The conversation is made short before the answer when its prompt is longer than so many tokens."""

    above_tokens: int | None = None  # None: three quarters of the context


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one turn. When one is spent the model is told and answers from what it has."""

    steps: int = 8  # model calls
    calls: int = 16  # tool calls in all
    wall_clock_s: float = 120.0
    tokens: int = 4096  # generated, over all steps
    tool_timeout_s: float = 20.0
    tool_result_chars: int = 8000  # longer results are cut, with a note to the model
    cost: float = inf  # of all steps and calls, in the units of the prices


@dataclass(frozen=True, slots=True)
class Turn:
    """`history` is what stands before: the conversation's items, or those of previous responses, oldest first."""

    tenant_id: UUID
    input: tuple[Item, ...]
    history: tuple[Item, ...] = ()
    instructions: str | None = None
    functions: tuple[FunctionTool, ...] = ()
    server_tools: tuple[str, ...] = ()  # names in the toolbox
    file_search: FileSearch | None = None
    tool_choice: ToolChoice = "auto"
    allowed_tools: frozenset[str] | None = None  # the only ones that may be called, of those that are shown; None: all
    parallel_tool_calls: bool = True
    answer_format: AnswerFormat | None = None
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    priority: Priority = Priority.STANDARD
    compacting: Compacting | None = None
    truncates: bool = False  # the oldest turns may go when the context does not hold them all
