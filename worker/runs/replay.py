"""Replays the events of a response: each once, in order, with its original sequence number. Pure.

Events are stored in batches, a moment after they were sent. The last events before a worker was killed may not be
stored; where some may be missing, the next event says so in a field of ours, which clients may ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.message import FunctionCall, Item, Message, Reasoning, answered_calls
from agents.payload import from_payload
from worker.wire import events as wire
from worker.wire.events import WireEvent
from worker.wire.response import public_response

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
