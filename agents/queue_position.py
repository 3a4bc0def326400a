"""Telling a reader who asked for it how many requests go before this one, while it waits for the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from agents.events import EventSink, Queued
from agents.step import Step
from inference.trace import now_ns

# Most requests get their place with the next step: they are not told of a queue that is gone when they read of it.
AFTER_S = 0.1
EVERY_S = 0.5  # at most so often: a place changes whenever an answer ends, faster than anybody reads


@contextmanager
def report_position(step: Step, sink: EventSink) -> Iterator[None]:
    """Write where it stands, and again when that has changed, until it begins or the block is left."""
    telling = asyncio.create_task(_report(step, sink), name="place in the queue")
    try:
        yield
    finally:
        telling.cancel()


async def _report(step: Step, sink: EventSink) -> None:
    generation, last = step.generation, None
    await asyncio.sleep(AFTER_S)
    while (place := generation.place) is not None and not generation.ids and generation.finish is None:
        if place != last:
            step.spans.place = step.spans.place or place
            sink.write([Queued(place, _left_ms(step))])
            last = place
        await asyncio.sleep(EVERY_S)


def _left_ms(step: Step) -> float | None:
    """Until the first token, as it was expected when the request came."""
    generation = step.generation
    if generation.forecast is None:
        return None
    passed_s = (now_ns() - generation.stamps.submitted_ns) / 1e9
    return round(max(0.0, generation.forecast.total_s - passed_s) * 1e3, 1)
