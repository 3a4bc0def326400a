"""What another worker needs to resume a response, stored with its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agents.checkpoint import Marks


@dataclass(slots=True)
class Continuation:
    """The `job` once, then the marks of the turn, while `is_told`: nothing is stored of a response that is held
    back."""

    job: dict[str, Any]
    marks: Marks
    is_told: Callable[[], bool]
    _job_kept: bool = False
    _number: int = -1  # of the last event that the newest marks stand beside
    _newest: list[dict[str, Any]] | None = None

    def marks_up_to(self, number: int) -> list[dict[str, Any]]:
        """The marks to store with the events up to this one; the same ones when storing is retried."""
        if self._newest is None or number != self._number:
            job = [] if self._job_kept else [{"job": self.job}]
            self._number, self._newest = number, [*job, *self.marks.take()] if self.is_told() else []
        return self._newest

    def keep(self) -> None:
        """The marks that were returned last are stored."""
        if self._newest:
            self._job_kept = True
            self.marks.keep()
        self._newest = None
