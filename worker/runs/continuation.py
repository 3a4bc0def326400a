"""What another worker makes of a response whose own worker was lost. What is stored with its events, so that it can be
resumed; the replay of its events, each once, in order, with its original sequence number; and how it is ended. Pure.

Events are stored in batches, a moment after they were sent. The last events before a worker was killed may not be
stored; where some may be missing, the next event says so in a field of ours, which clients may ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.message import FunctionCall, Item, Message, Reasoning, answered_calls
from agents.payload import from_payload
from agents.progress import CannotResume, Checkpoint, Marks
from worker.wire import events as wire
from worker.wire.events import WireEvent
from worker.wire.response import public_response

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


GAP = "firsttoken:gap"  # {"after": the number before the gap, "reason": one of these two}
WORKER_STOPPED, NOT_STORED = "worker_stopped", "not_stored"
# More than the events that a worker can have sent without storing them: no response has that many tokens.
UNSTORED_EVENTS_MAX = 1_000_000


def events_after(events: Iterable[WireEvent], after: int, *, sealed: bool) -> tuple[WireEvent, ...]:
    """The events after a sequence number, from batches that may overlap. Up to the first gap while that may still be
    filled; once no more events can come (`sealed`), the event behind a gap is marked.
    """
    told: list[WireEvent] = []
    for event in sorted(events, key=lambda event: int(event["sequence_number"])):
        number = event["sequence_number"]
        if number <= after:
            continue
        if number > after + 1 and GAP not in event:
            if not sealed:
                break
            event = {**event, GAP: {"after": after, "reason": NOT_STORED}}
        told.append(event)
        after = number
    return tuple(told)


def closing_events(body: Mapping[str, Any], ended: Mapping[str, Any], stored: Sequence[WireEvent]) -> list[WireEvent]:
    """The events by which another worker ends a response whose own worker is gone: `body` is the response when it
    began, `ended` the response now. If no event was stored, the opening events come first, as they were sent.
    """
    number = stored[-1]["sequence_number"] if stored else -1
    opening = [] if stored else [wire.response(kind, dict(body)) for kind in ("created", "in_progress")]
    events = [{**event, "sequence_number": n} for n, event in enumerate(opening)]
    end = wire.response(ended["status"], public_response(dict(ended)))
    after = events[-1]["sequence_number"] if events else number
    return [
        *events,
        {**end, "sequence_number": after + UNSTORED_EVENTS_MAX, GAP: {"after": after, "reason": WORKER_STOPPED}},
    ]


def rebuilt_items(events: Iterable[WireEvent]) -> tuple[Item, ...]:
    """The items of a response, rebuilt from its stored events after its worker was killed: the finished items, and the
    text so far of an unfinished message.
    """
    items: dict[int, Item] = {}
    texts: dict[int, list[str]] = {}
    ids: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "response.output_item.done", "output_index": index, "item": item}:
                items[index] = from_payload({**item, "results": item.get("results") or ()})
            case {"type": "response.output_text.delta", "output_index": index, "item_id": id, "delta": delta}:
                ids[index] = id
                texts.setdefault(index, []).append(delta)
    for index in texts.keys() - items.keys():
        items[index] = Message("assistant", "".join(texts[index]), status="incomplete", id=ids[index])
    return tuple(item for _, item in sorted(items.items()))


def completed_items(output: Sequence[Item]) -> tuple[Item, ...]:
    """The items of an interrupted response without empty texts and without calls that have no output."""
    answered = answered_calls(output)
    return tuple(
        item
        for item in output
        if not (isinstance(item, FunctionCall) and item.call_id not in answered)
        and not (isinstance(item, Message | Reasoning) and not item.text)
    )
