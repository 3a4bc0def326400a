"""What another worker needs to resume a response: stored with its events, and read when its worker was lost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agents.checkpoint import CannotResume, Checkpoint
from agents.progress import Marks
from worker.wire.events import WireEvent

ATTEMPTS_MAX = 3  # a response that has crashed this many workers would crash the next one


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


@dataclass(frozen=True, slots=True)
class InterruptedResponse:
    """The stored events of a response, and its checkpoint. `job` is the request as `job_of` describes it, `makers` the
    number of workers that have run it so far."""

    events: tuple[WireEvent, ...]
    checkpoint: Checkpoint
    job: Mapping[str, Any]
    makers: int

    @classmethod
    def read(cls, payloads: list[dict[str, Any]], makers: int) -> InterruptedResponse:
        """From all stored batches of its events. Raises CannotResume."""
        by_number = {event["sequence_number"]: event for payload in payloads for event in payload["events"]}
        marks = [mark for payload in payloads for mark in payload.get("marks", ())]
        job = next((mark["job"] for mark in marks if "job" in mark), None)
        if job is None:
            raise CannotResume("it is not one that is resumed")
        if makers >= ATTEMPTS_MAX:
            raise CannotResume(f"{makers} workers were lost while generating it")
        if sorted(by_number) != list(range(len(by_number))):
            raise CannotResume("not all of its events are stored")
        events = tuple(event for _, event in sorted(by_number.items()))
        return cls(events, Checkpoint.read(mark for mark in marks if "job" not in mark), job, makers)
