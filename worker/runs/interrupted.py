"""What is kept of an answer whose worker was lost in the middle of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.checkpoint import CannotResume, Checkpoint
from worker.wire.events import WireEvent

ATTEMPTS_MAX = 3  # what took so many workers along would take another


@dataclass(frozen=True, slots=True)
class InterruptedResponse:
    """What is kept of an answer whose worker was lost: its events, and the marks beside them. `makers` is how many
    workers have made it, `job` what was asked: see `job_of`."""

    events: tuple[WireEvent, ...]
    checkpoint: Checkpoint
    job: Mapping[str, Any]
    makers: int

    @classmethod
    def read(cls, payloads: list[dict[str, Any]], makers: int) -> InterruptedResponse:
        """Of all batches of its events. Raises CannotResume."""
        by_number = {event["sequence_number"]: event for payload in payloads for event in payload["events"]}
        marks = [mark for payload in payloads for mark in payload.get("marks", ())]
        job = next((mark["job"] for mark in marks if "job" in mark), None)
        if job is None:
            raise CannotResume("nobody promised that it would go on")
        if makers >= ATTEMPTS_MAX:
            raise CannotResume(f"{makers} workers were lost while they made it")
        if sorted(by_number) != list(range(len(by_number))):
            raise CannotResume("not all of its events are kept")
        events = tuple(event for _, event in sorted(by_number.items()))
        return cls(events, Checkpoint.read(mark for mark in marks if "job" not in mark), job, makers)
