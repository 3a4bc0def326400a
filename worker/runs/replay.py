"""What is told of a response again: each event once, in order, with the number that it was told with. Pure.

Events are stored in batches a moment after they were told. What a worker had told when it was killed is not kept to the
last event, so where something may be missing the next event says so in a field of ours, which clients may ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.message import FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from agents.payload import from_payload
from worker.wire import events as wire
from worker.wire.events import WireEvent
from worker.wire.public_view import public_response

GAP = "firsttoken:gap"  # {"after": the number before the gap, "reason": one of these two}
WORKER_STOPPED, NOT_STORED = "worker_stopped", "not_stored"
# Above the number of events that a worker can have told and not stored: no answer fits that many tokens.
UNSTORED_EVENTS_MAX = 1_000_000


def events_after(events: Iterable[WireEvent], after: int, *, sealed: bool) -> tuple[WireEvent, ...]:
    """The events after a number, of batches that may overlap. Up to the first hole while that may still be filled; once
    nothing more comes (`sealed`), whatever follows a hole is marked.
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
    """The events with which another worker ends a response whose own is gone: `body` is the response as it was begun,
    `ended` as it is now. If nothing was stored, the beginning is told as it was told then.
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
    """The items of an answer from its events, all that is left when its worker was killed: the finished items, and of
    an unfinished message the text so far.
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
    """What is worth keeping of an answer that broke off: no empty text, no call that was never answered."""
    answered = {item.call_id for item in output if isinstance(item, FunctionCallOutput)}
    return tuple(
        item
        for item in output
        if not (isinstance(item, FunctionCall) and item.call_id not in answered)
        and not (isinstance(item, Message | Reasoning) and not item.text)
    )
