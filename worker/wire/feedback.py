"""The rating of an answer by a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import StringConstraints

from worker.wire import limits
from worker.wire.strict import Strict

RATING, COMMENT = "firsttoken:rating", "firsttoken:comment"


class Feedback(Strict):
    """A rating of null removes the feedback."""

    rating: Literal["up", "down"] | None
    comment: Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)] | None = None

    @property
    def notes(self) -> dict[str, str | None]:
        return {RATING: self.rating, COMMENT: (self.comment or None) if self.rating else None}


def told(notes: Mapping[str, str] | None) -> dict[str, str | None] | None:
    """As items show it."""
    return None if notes is None else {"rating": notes.get(RATING), "comment": notes.get(COMMENT)}
