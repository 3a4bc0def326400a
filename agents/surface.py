"""Surfaces: where answers are used, and the requirements that follow, as configuration.

[surfaces.voice]
first_token_ms = 300
pace_ms = 50
answer_s = 20
tokens = 200
instructions = "Begin with the answer itself, in one short sentence."
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agents.definition import CLASSES, INSTRUCTIONS_CHARS_MAX, ClassName
from agents.toml_file import Name, Table
from agents.turn import Caps, Owner, Turn
from inference.changed import changed
from inference.generation import Priority

SURFACES_MAX = 32  # each has labels of its own in the metrics
BATCH = "batch"  # of background requests
TARGETS = {"first_token_ms", "first_answer_ms", "pace_ms"}  # of latency

Milliseconds = Annotated[float, Field(gt=0, le=3_600_000)]


class Surface(Table):
    """Its limits lower those of a turn, wherever they are set: naming a surface never raises a client's limits."""

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
