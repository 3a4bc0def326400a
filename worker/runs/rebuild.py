"""What an answer had said, from its events: all that is left of one whose worker was killed."""

from __future__ import annotations

from collections.abc import Iterable

from agents.message import Item, Message
from agents.payload import from_payload
from worker.wire.events import WireEvent


def rebuilt(events: Iterable[WireEvent]) -> tuple[Item, ...]:
    """The finished items, and of an unfinished message the text so far."""
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
