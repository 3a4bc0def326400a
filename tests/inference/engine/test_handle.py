"""What wakes the event loop, and how often, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from inference.engine.sampler import Sampler
from inference.generation import Delta, Sampling
from inference.prompt import CacheScope
from inference.request import SLICE, Handle, Outbox, Request, TokenUpdate
from inference.tokenizer import TextStream


class CountedLoop:
    """`wakeups`: by the engine's thread; `iterations`: asked for on the loop itself."""

    def __init__(self) -> None:
        self.wakeups = self.iterations = 0
        self._due: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.wakeups += 1
        self._due.append(call)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.iterations += 1
        self._due.append(call)

    def run(self) -> None:
        while self._due:
            self._due.pop(0)()


def followed(count: int) -> tuple[list[Handle], list[list[Delta]]]:
    """Handles, and what each of them hands on."""
    handles, heard = [], []
    for _ in range(count):
        request = Request([1], 100, Sampler(Sampling()), TextStream([b"a"]), CacheScope(""))
        handle, deltas = Handle(request, lambda: None), list[Delta]()
        handle._receive = deltas.append
        handles.append(handle)
        heard.append(deltas)
    return handles, heard


def outbox() -> tuple[CountedLoop, Outbox]:
    loop = CountedLoop()
    return loop, Outbox(cast(asyncio.AbstractEventLoop, cast(Any, loop)))


def test_the_tokens_of_all_pending_steps_come_by_one_wakeup_and_one_call_for_each_request() -> None:
    (loop, outgoing), (handles, heard) = outbox(), followed(3)
    for text in ("one ", "two "):
        outgoing.publish([TokenUpdate(handle, 0, text) for handle in handles])
    loop.run()
    assert loop.wakeups == 1 and not loop.iterations
    assert [[(delta.text, delta.tokens) for delta in deltas] for deltas in heard] == [[("one two ", 2)]] * 3
    outgoing.publish([TokenUpdate(handles[0], 0, "three")])
    loop.run()
    assert loop.wakeups == 2
    assert [len(deltas) for deltas in heard] == [2, 1, 1]


def test_many_requests_are_served_in_slices_between_which_the_loop_does_other_work() -> None:
    (loop, outgoing), (handles, heard) = outbox(), followed(2 * SLICE + 1)
    outgoing.publish([TokenUpdate(handle, 0, "x") for handle in handles])
    loop.run()
    assert (loop.wakeups, loop.iterations) == (1, 2)
    assert [len(deltas) for deltas in heard] == [1] * len(handles)


def test_the_engine_waits_until_all_slices_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.request.DELIVERY_S", 60.0)
    (loop, outgoing), (handles, heard), counts = outbox(), followed(SLICE + 1), list[int]()
    outgoing.publish([TokenUpdate(handle, 0, "x") for handle in handles])
    with ThreadPoolExecutor(1) as engine:
        waiting = engine.submit(outgoing.await_delivery, len(handles))
        waiting.add_done_callback(lambda _: counts.extend(map(len, heard)))
        loop.run()
    assert counts == [1] * len(handles)


def test_a_loop_that_is_held_up_holds_up_the_engine_for_the_time_of_the_tokens_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.request.DELIVERY_S", 1e-6)
    (_, outgoing), (handles, heard) = outbox(), followed(2)
    outgoing.publish([TokenUpdate(handle, 0, "x") for handle in handles])
    outgoing.await_delivery(2)
    assert heard == [[], []]
