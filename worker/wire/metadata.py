"""Sixteen pairs of strings that callers may attach to things."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field, StringConstraints

from worker.wire import limits

Metadata: TypeAlias = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=limits.METADATA_KEY_MAX)],
        Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)],
    ],
    Field(max_length=limits.METADATA_PAIRS_MAX),
]

DETERMINISTIC = "deterministic"  # "true": the same prompt and seed give the same bytes


def asks_for_same_bytes(metadata: dict[str, str] | None) -> bool:
    return (metadata or {}).get(DETERMINISTIC) == "true"
