"""A response whose worker was lost: what is stored of it, from which another worker resumes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.checkpoint import CannotResume, Checkpoint
from worker.wire.events import WireEvent

ATTEMPTS_MAX = 3  # a response that has crashed this many workers would crash the next one


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
