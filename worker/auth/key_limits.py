"""The limits of an API key: for each turn, its priority class, its rates, and its cost per day."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agents.definition import Bounds, ClassName


class KeyLimits(Bounds):
    """Rates hold for each worker by itself, the cost of a day for all of them. None: no limit."""

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None  # input and output tokens
    cost_per_day: Annotated[float, Field(gt=0, le=1e12)] | None = None  # in the units of the prices; days of UTC
    best_class: Annotated[ClassName | None, Field(alias="class")] = None
