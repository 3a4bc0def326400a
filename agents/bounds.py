"""Bounds of a turn as configuration: of an agent, or of an API key."""

from __future__ import annotations

from math import inf
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from agents.turn import Limits

Number = TypeVar("Number", int, float)


class Bounds(BaseModel):
    """A request may ask for less, never for more. What is left out is as usual."""

    # Bounds of what may be configured: well above any sensible agent, well below what hurts the others.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    steps: Annotated[int, Field(ge=1, le=64)] = Limits().steps
    calls: Annotated[int, Field(ge=0, le=256)] = Limits().calls
    tokens: Annotated[int, Field(ge=1, le=131_072)] = Limits().tokens
    seconds: Annotated[float, Field(gt=0, le=3600)] = Limits().wall_clock_s
    tool_seconds: Annotated[float, Field(gt=0, le=600)] = Limits().tool_timeout_s
    cost: Annotated[float, Field(gt=0, le=1e9)] | None = None  # in the units of the prices; None: no bound

    def bound(self, asked: Limits) -> Limits:
        """What a request left at its default becomes ours; what it asked for is cut to it."""
        usual = Limits()
        return Limits(
            steps=_bounded(asked.steps, usual.steps, self.steps),
            calls=_bounded(asked.calls, usual.calls, self.calls),
            wall_clock_s=_bounded(asked.wall_clock_s, usual.wall_clock_s, self.seconds),
            tokens=_bounded(asked.tokens, usual.tokens, self.tokens),
            tool_timeout_s=_bounded(asked.tool_timeout_s, usual.tool_timeout_s, self.tool_seconds),
            tool_result_chars=asked.tool_result_chars,
            cost=min(asked.cost, inf if self.cost is None else self.cost),
        )


def _bounded(asked: Number, usual: Number, own: Number) -> Number:
    return own if asked == usual else min(asked, own)
