"""Events of a response, and its beginning and end, as the database takes them: JSON rows. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from agents.payload import to_payload
from agents.store.responses import ResponseRecord
from inference.frozen import dataclass


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """The end of a response, replacing one that was stored before. `kept`: its output is added to its conversation."""

    record: ResponseRecord
    kept: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one response. `last`: no events follow, and no worker owns the response any more."""

    response_id: str
    events: Sequence[bytes]  # JSON, as it was sent
    number: int  # of the last one
    last: bool = False
    end: ResponseEnd | None = None
    marks: Sequence[Mapping[str, Any]] = ()  # where another worker may go on behind them

    @property
    def payload(self) -> bytes:
        marks = b',"marks":%b' % orjson.dumps(self.marks) if self.marks else b""
        return b'{"events":[%b]%b}' % (b",".join(self.events), marks)


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
    return b"[%b]" % b",".join(
        b'{"payload":%b,%b' % (batch.payload, _batch_facts(batch, followed)[1:]) for batch in batches
    )


def _batch_facts(batch: Batch, followed: Collection[str]) -> bytes:
    told = batch.last or batch.response_id in followed
    return orjson.dumps({"id": batch.response_id, "number": batch.number, "last": batch.last, "told": told})


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
