"""A turn of another worker, from its checkpoint on: what was sent is decoded again, and must be what was sent."""

from __future__ import annotations

from collections.abc import Sequence

from agents.checkpoint import CannotResume, Checkpoint
from agents.events import Event, ItemFinished, SourcesFound
from agents.message import FileSearchCall, Item
from agents.progress import Progress


def replay(progress: Progress, checkpoint: Checkpoint, texts: Sequence[str]) -> list[Event]:
    """Bring the turn and its newest step to where the checkpoint is; `texts` are those of the step's tokens. Returns
    the events that were sent of both. Raises CannotResume."""
    try:
        return _replayed(progress, checkpoint, texts)
    except BaseException:
        progress.step.cancel()
        raise


def _replayed(progress: Progress, checkpoint: Checkpoint, texts: Sequence[str]) -> list[Event]:
    step, output = progress.step, checkpoint.output
    before = [_item_event(index, item) for index, item in enumerate(progress.output)]
    behind = output[checkpoint.before + len(checkpoint.told) :] if checkpoint.ended else []
    step.calls.answered, step.calls.lost = len(behind), True
    told = step.replay(texts)
    if checkpoint.ended:
        told += step.end(fallback=progress.fallback)
    step.calls.lost = False
    if (len(step.reply.told), step.reply.open_chars) != (len(checkpoint.told), checkpoint.chars):
        raise CannotResume("its tokens do not decode to the text that was sent")
    if checkpoint.ended:
        progress.add(step)
        progress.output += behind
    return [*before, *told, *(_item_event(len(output) - len(behind) + n, item) for n, item in enumerate(behind))]


def _item_event(index: int, item: Item) -> Event:
    return SourcesFound(index, item, ()) if isinstance(item, FileSearchCall) else ItemFinished(index, item)
