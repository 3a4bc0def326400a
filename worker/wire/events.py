"""Events of a streamed response, as the public contract has them, and server-sent events as bytes.

An event is a dict with `type`; its encoder numbers it. Events of our own are "firsttoken:<name>" and may be ignored.
Pure: the stream decides when to write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from agents.events import Queued, TurnFinished
from retrieval.passage import Passage

WireEvent: TypeAlias = dict[str, Any]

QUEUED = "firsttoken:queued"
CUT = "firsttoken:cut"


def response(kind: str, snapshot: dict[str, Any]) -> WireEvent:
    """`kind` is created, queued, in_progress, completed, incomplete or failed."""
    return {"type": f"response.{kind}", "response": snapshot}


def cut(finished: TurnFinished) -> dict[str, str]:
    """The field that says what cut an answer off: see `TurnFinished`."""
    return {CUT: finished.cut} if finished.cut else {}


def steer(kind: str, response_id: str, steer_id: str | None, more: Mapping[str, Any] | None = None) -> WireEvent:
    """`kind` is accepted or failed; a steer that was refused has no id."""
    named = {"id": steer_id} if steer_id else {}
    return {"type": f"response.steer.{kind}", "steer": {**named, "previous_response_id": response_id, **(more or {})}}


def output_item(kind: str, output_index: int, item: dict[str, Any]) -> WireEvent:
    """`kind` is added or done."""
    return {"type": f"response.output_item.{kind}", "output_index": output_index, "item": item}


def of_item(kind: str, output_index: int, item_id: str, **more: Any) -> WireEvent:
    """`kind` is the type of the event without "response.", such as file_search_call.searching."""
    return {"type": f"response.{kind}", "item_id": item_id, "output_index": output_index, **more}


def of_text(kind: str, output_index: int, item_id: str, **more: Any) -> WireEvent:
    """As of an item, for the text that is its only part, such as output_text.delta."""
    return of_item(kind, output_index, item_id, content_index=0, **more)


def sources(response_id: str, output_index: int, passages: Sequence[Passage]) -> WireEvent:
    """The passages that the answer may cite; passages[i] is [i + 1] in its text."""
    return {
        "type": "firsttoken:sources",
        "response_id": response_id,
        "output_index": output_index,
        "passages": [
            {
                "number": number,
                "file_id": passage.file_id,
                "filename": passage.filename,
                "title": passage.title,
                "text": passage.text,
                "start_char": passage.start_char,
                "end_char": passage.end_char,
                "score": passage.score,
            }
            for number, passage in enumerate(passages, 1)
        ],
    }


def waiting(event: Queued) -> dict[str, Any]:
    """The position of a request in the model's queue, or how much of its prompt is read."""
    told = {"place": event.position, "expected_ms": event.expected_ms}
    if event.read_tokens is None:
        return told
    return {**told, "read_tokens": event.read_tokens, "prompt_tokens": event.prompt_tokens}


SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies must not buffer events
}
PING_COMMENT = b": ping\n\n"  # a comment: clients drop it, proxies see traffic
DONE = b"data: [DONE]\n\n"


def encode(event: Mapping[str, Any]) -> bytes:
    """A named event: the name equals its `type`. One line of data, as JSON holds no raw line breaks."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


HOLE = "\ue000"  # the placeholder for the text in a template's event; nothing else there uses the private use area


class Template:
    """An event in which one value differs from one token to the next, mostly a text, and possibly the number: the rest
    is encoded once."""

    __slots__ = ("_after", "_before")

    def __init__(self, frame: bytes) -> None:
        """`frame` is an encoded event with HOLE in place of the value."""
        self._before, self._after = frame.split(orjson.dumps(HOLE))

    def filled(self, value: str | Mapping[str, Any]) -> bytes:
        return b"%b%b%b" % (self._before, orjson.dumps(value), self._after)

    def numbered(self, text: str, number: int) -> bytes:
        """With the last key `sequence_number`, for a frame that was encoded without it."""
        return b'%b%b%b,"sequence_number":%d}\n\n' % (self._before, orjson.dumps(text), self._after[:-3], number)


def data_of(frame: bytes) -> bytes:
    """The JSON of an event that `encode` made."""
    return frame[frame.index(b"\ndata: ") + 7 : -2]


def encode_data(chunk: Mapping[str, Any]) -> bytes:
    """An unnamed event, as in chat completions."""
    return b"data: %b\n\n" % orjson.dumps(chunk)
