"""Reports the position in the queue, while a request waits for the model, to clients that ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from agents.events import EventSink, Queued
from agents.step import Step
from inference.trace import now_ns

# Most requests are admitted by the next step: a position that is outdated when it arrives is not reported.
AFTER_S = 0.1
EVERY_S = 0.5  # at most this often: a position changes whenever a response ends


@contextmanager
def report_position(step: Step, sink: EventSink) -> Iterator[None]:
    """Report the position, and each change of it, until the generation begins or the block ends."""
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
    """The time left until the first token, as it was forecast when the request arrived."""
    generation = step.generation
    if generation.forecast is None:
        return None
    passed_s = (now_ns() - generation.stamps.submitted_ns) / 1e9
    return round(max(0.0, generation.forecast.total_s - passed_s) * 1e3, 1)
