"""Blocks that can be waited for and ended."""

from __future__ import annotations

import asyncio

import pytest

from agents.errors import Interrupted
from agents.inflight import InFlight


async def wait_in(work: InFlight, ended: asyncio.Event) -> str:
    try:
        with work.track():
            await ended.wait()
    except Interrupted:
        await asyncio.sleep(0)  # the task itself goes on
        return "interrupted"
    return "done"


async def test_work_is_idle_when_every_block_is_left() -> None:
    work, ended = InFlight(), asyncio.Event()
    await work.idle()
    task = asyncio.create_task(wait_in(work, ended))
    idle = asyncio.create_task(work.idle())
    await asyncio.sleep(0)
    assert not idle.done()
    ended.set()
    await idle
    assert await task == "done"


async def test_an_interrupted_block_raises_and_its_task_goes_on() -> None:
    work = InFlight()
    task = asyncio.create_task(wait_in(work, asyncio.Event()))
    await asyncio.sleep(0)
    work.interrupt()
    work.interrupt()
    assert await task == "interrupted"
    await work.idle()


async def test_nothing_begins_after_the_interruption() -> None:
    work = InFlight()
    work.interrupt()
    with pytest.raises(Interrupted), work.track():
        pass


async def test_a_task_that_is_cancelled_by_others_stays_cancelled() -> None:
    work = InFlight()
    task = asyncio.create_task(wait_in(work, asyncio.Event()))
    await asyncio.sleep(0)
    work.interrupt()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
