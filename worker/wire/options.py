"""Sixteen pairs of strings that callers may attach to things."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints

from agents.turn import Limits
from worker.wire import limits

DETERMINISTIC = "deterministic"  # "true": the same prompt and seed give the same bytes
SURFACE = "firsttoken:surface"  # where the answer is read, from a header
STEPS, SECONDS, COST = "max_steps", "max_seconds", "max_cost"  # budgets of the turn that have no field of their own


def _budgets_are_numbers(metadata: dict[str, str]) -> dict[str, str]:
    for key in (STEPS, SECONDS, COST):
        value = metadata.get(key)
        if value is not None and not _is_positive(value, whole=key == STEPS):
            raise ValueError(f"'{key}' is a budget of the turn: write a positive number")
    return metadata


def _is_positive(text: str, *, whole: bool) -> bool:
    digits = text if whole else text.replace(".", "", 1)
    return digits.isascii() and digits.isdigit() and len(digits) <= limits.BUDGET_DIGITS_MAX and float(text) > 0


Metadata: TypeAlias = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=limits.METADATA_KEY_MAX)],
        Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)],
    ],
    Field(max_length=limits.METADATA_PAIRS_MAX),
    AfterValidator(_budgets_are_numbers),
]


def asks_for_same_bytes(metadata: dict[str, str] | None) -> bool:
    return (metadata or {}).get(DETERMINISTIC) == "true"


def within(metadata: dict[str, str] | None, usual: Limits) -> Limits:
    """The limits that a request asks for in its metadata."""
    told = metadata or {}
    return replace(
        usual,
        steps=int(told.get(STEPS, usual.steps)),
        wall_clock_s=float(told.get(SECONDS, usual.wall_clock_s)),
        cost=float(told.get(COST, usual.cost)),
    )
