"""Reading a turn in a task of its own: nothing is lost, late or left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from agents.events import ArgumentsDelta, Event, TextDelta, TurnStarted
from inference.sequence import TokenLogprob
from worker.feed import WAITING_MAX, Feed, merged


class Turn:
    """A turn that says the given events, then waits until it is closed or told to fail."""

    def __init__(self, *events: Event, error: Exception | None = None) -> None:
        self._events = events
        self._error = error
        self.said = 0
        self.closed = False

    async def run(self) -> AsyncGenerator[Event, None]:
        try:
            for event in self._events:
                self.said += 1
                yield event
            if self._error:
                raise self._error
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_what_happens_together_comes_together_with_texts_merged() -> None:
    turn = Turn(TurnStarted(), TextDelta(0, "a", "Hel"), TextDelta(0, "a", "lo"), TextDelta(1, "b", "!"))
    async with Feed(turn.run()) as feed:
        assert await feed.batch() == [TurnStarted(), TextDelta(0, "a", "Hello"), TextDelta(1, "b", "!")]


async def test_silence_is_an_empty_batch() -> None:
    async with Feed(Turn(TurnStarted()).run()) as feed:
        assert await feed.batch() == [TurnStarted()]
        assert await feed.batch(idle_s=0.001) == []


async def test_leaving_closes_the_turn() -> None:
    turn = Turn(TurnStarted())
    async with Feed(turn.run()) as feed:
        await feed.batch()
    assert turn.closed


async def test_a_turn_that_is_not_read_stands_still() -> None:
    turn = Turn(*[TextDelta(n, str(n), "x") for n in range(3 * WAITING_MAX)])
    async with Feed(turn.run()) as feed:
        batches = [await feed.batch()]
        for _ in range(10):  # as often as the reader may run on, were it not held
            await asyncio.sleep(0)
        assert turn.said <= 2 * WAITING_MAX
        while sum(map(len, batches)) < 3 * WAITING_MAX:
            batches.append(await feed.batch())
    assert [event.item_id for batch in batches for event in batch if isinstance(event, TextDelta)] == [
        str(n) for n in range(3 * WAITING_MAX)
    ]


async def test_what_a_turn_raises_comes_after_what_it_said() -> None:
    async with Feed(Turn(TurnStarted(), error=ValueError("broke")).run()) as feed:
        assert await feed.batch() == [TurnStarted()]
        with pytest.raises(ValueError, match="broke"):
            await feed.batch()


async def test_what_a_turn_raises_at_once_is_raised_at_once() -> None:
    async with Feed(Turn(error=ValueError("refused")).run()) as feed:
        with pytest.raises(ValueError, match="refused"):
            await feed.batch()


async def test_a_turn_that_ends_without_its_last_event_is_a_bug_that_shows() -> None:
    async def empty() -> AsyncGenerator[Event, None]:
        yield TurnStarted()

    async with Feed(empty()) as feed:
        await feed.batch()
        with pytest.raises(RuntimeError, match="without its last event"):
            await feed.batch()


def test_texts_of_different_items_stay_apart() -> None:
    events: list[Event] = [TextDelta(0, "a", "x"), ArgumentsDelta(1, "b", "y"), TextDelta(0, "a", "z")]
    assert merged(events) == events


def test_likelihoods_stay_with_the_text_that_is_merged() -> None:
    a, b = TokenLogprob(b"a", -0.1), TokenLogprob(b"b", -0.2)
    (one,) = merged([TextDelta(0, "msg", "a", (a,)), TextDelta(0, "msg", "b", (b,))])
    assert one == TextDelta(0, "msg", "ab", (a, b))
