"""A response as the database takes it, in JSON rows: its beginning, its events, its end. And what another worker makes
of one whose own worker was lost: what is stored with the events, so that it can be resumed; the replay of its events,
each once, in order, with its original sequence number; and how it is ended. Pure.

Events are stored in batches, a moment after they were sent. The last events before a worker was killed may not be
stored; where some may be missing, the next event says so in a field of ours, which clients may ignore.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson

from agents.message import FunctionCall, Item, Message, Reasoning, answered_calls
from agents.payload import from_payload, to_payload
from agents.progress import CannotResume, Checkpoint, Marks
from agents.store.responses import ResponseRecord
from inference.frozen import dataclass
from worker.wire import events as wire
from worker.wire.events import WireEvent, data_of
from worker.wire.response import public_response


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """The end of a response, replacing one that was stored before. `kept`: its output is added to its conversation."""

    record: ResponseRecord
    kept: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one response. `last`: no events follow, and no worker owns the response any more."""

    response_id: str
    frames: Sequence[bytes]  # of its events, as they were sent
    number: int  # of the last one
    last: bool = False
    end: ResponseEnd | None = None
    marks: Sequence[Mapping[str, Any]] = ()  # where another worker may go on behind them

    @property
    def payload(self) -> bytes:
        marks = b',"marks":%b' % orjson.dumps(self.marks) if self.marks else b""
        return b'{"events":[%b]%b}' % (b",".join(map(data_of, self.frames)), marks)


def beginning_row(record: ResponseRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "conversation_id": record.conversation_id,
        "previous_response_id": record.previous_response_id,
        "status": record.status,
        "created_at": record.created_at.isoformat(),
        "input": [to_payload(item) for item in record.input],
        "body": record.body,
    }


def batch_rows(batches: Sequence[Batch], followed: Collection[str]) -> bytes:
    """A JSON array; the events are as they were sent."""
    rows = []
    for batch in batches:
        facts = {"id": batch.response_id, "number": batch.number, "last": batch.last}
        facts["told"] = batch.last or batch.response_id in followed
        rows.append(b'{"payload":%b,%b' % (batch.payload, orjson.dumps(facts)[1:]))
    return b"[%b]" % b",".join(rows)


def ending_row(record: ResponseRecord, events: Batch) -> bytes:
    """The end of a response, with its last events as they are sent and the exact tokens of its turns."""
    facts = {
        "id": record.id,
        "number": events.number,
        "status": record.status,
        "completed_at": record.completed_at,
        "body": ended_body(record),
        "turns": [
            {"digest": digest.hex(), "tokens": array("I", tokens).tobytes().hex()}
            for digest, tokens in record.remembered
        ],
    }
    return b'{"payload":%b,%b' % (events.payload, orjson.dumps(facts)[1:])


def ended_body(record: ResponseRecord) -> dict[str, Any]:
    """The response object as it is stored: its output has what the public one leaves out."""
    return {**record.body, "output": [to_payload(item) for item in record.output]}


# A response that has crashed this many workers would crash the next one. Those that have sent so many events of it were
# lost for another reason: a deployment replaces one worker after the other.
ATTEMPTS_MAX, PROGRESS_EVENTS = 3, 100


@dataclass(slots=True)
class Continuation:
    """The `job` once, then the marks of the turn, while `is_sent`: nothing is stored of a response that is held
    back."""

    job: dict[str, Any]
    marks: Marks
    is_sent: Callable[[], bool]
    _job_kept: bool = False
    _number: int = -1  # of the last event that the newest marks stand beside
    _newest: list[dict[str, Any]] | None = None

    def marks_up_to(self, number: int) -> list[dict[str, Any]]:
        """The marks to store with the events up to this one; the same ones when storing is retried."""
        if self._newest is None or number != self._number:
            job = [] if self._job_kept else [{"job": self.job}]
            self._number, self._newest = number, [*job, *self.marks.take()] if self.is_sent() else []
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
        vain = makers - sum(stored >= PROGRESS_EVENTS for stored in _events_by_maker(payloads))
        if vain >= ATTEMPTS_MAX:
            raise CannotResume(f"{vain} workers were lost while generating it")
        if sorted(by_number) != list(range(len(by_number))):
            raise CannotResume("not all of its events are stored")
        events = tuple(event for _, event in sorted(by_number.items()))
        return cls(events, Checkpoint.read(mark for mark in marks if "job" not in mark), job, makers)


def _events_by_maker(payloads: Iterable[Mapping[str, Any]]) -> list[int]:
    """The number of events that each maker stored from its job on, which stands beside the first of them."""
    counts: list[int] = []
    for payload in payloads:
        if any("job" in mark for mark in payload.get("marks", ())):
            counts.append(0)
        if counts:
            counts[-1] += len(payload["events"])
    return counts


GAP = "firsttoken:gap"  # {"after": the number before the gap, "reason": one of these two}
WORKER_STOPPED, NOT_STORED = "worker_stopped", "not_stored"
# More than the events that a worker can have sent without storing them: no response has that many tokens.
UNSTORED_EVENTS_MAX = 1_000_000


def events_after(events: Iterable[WireEvent], after: int, *, sealed: bool) -> tuple[WireEvent, ...]:
    """The events after a sequence number, from batches that may overlap. Up to the first gap while that may still be
    filled; once no more events can come (`sealed`), the event behind a gap is marked.
    """
    found: list[WireEvent] = []
    for event in sorted(events, key=lambda event: int(event["sequence_number"])):
        number = event["sequence_number"]
        if number <= after:
            continue
        if number > after + 1 and GAP not in event:
            if not sealed:
                break
            event = {**event, GAP: {"after": after, "reason": NOT_STORED}}
        found.append(event)
        after = number
    return tuple(found)


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
