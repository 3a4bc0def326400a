"""The workers of a crew begun again one after the other, as far as that is decided without a process."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import pytest

from tests.worker.lifecycle.crew.test_child import Answers
from worker.config import load
from worker.lifecycle.crew.child import Child
from worker.lifecycle.crew.crew import Crew
from worker.lifecycle.ready_file import Ready


@dataclass
class Place:
    """Its successor begins as soon as it `can_begin`."""

    name: str
    can_begin: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    asks: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def relieve(self, within_s: float) -> None:
        self.asked += 1
        self.asks.put_nowait(None)
        await self.can_begin.wait()


@pytest.fixture
async def places() -> list[Place]:
    return [Place("worker-1"), Place("worker-2")]


@pytest.fixture
async def begun(tmp_path: Path) -> Crew:
    config = load({"home": str(tmp_path), "workers": "2", "engines": "http://127.0.0.1:9"}, {})
    return Crew(config, {}, 1, tmp_path, Answers())


@pytest.fixture
async def crew(begun: Crew, places: list[Place]) -> Crew:
    begun.workers = cast("list[Child]", places)
    return begun


async def renewed(crew: Crew) -> None:
    assert crew._renewing is not None
    async with asyncio.timeout(60):
        await crew._renewing


async def test_the_successor_of_the_first_reads_on_in_the_samples_and_introduces_nobody(begun: Crew) -> None:
    def told() -> list[tuple[bool, bool]]:
        places = [worker._hello() for worker in begun.workers]
        return [(place["introduces"], place["reads_samples"]) for place in places]

    assert told() == [(True, True), (False, False)]
    begun._hear({"ready": asdict(Ready("http://x", "ft_secret", "http://x/?token=secret", "http://x/ops", 1))})
    assert told() == [(False, True), (False, False)]


async def test_the_second_waits_until_the_first_has_a_successor(crew: Crew, places: list[Place]) -> None:
    first, second = places
    second.can_begin.set()
    crew.renew()
    await first.asks.get()
    assert second.asked == 0
    first.can_begin.set()
    await renewed(crew)
    assert (first.asked, second.asked) == (1, 1)


async def test_one_that_is_asked_for_again_begins_anew_although_a_worker_cannot_begin(
    crew: Crew, places: list[Place]
) -> None:
    first, second = places
    second.can_begin.set()
    crew.renew()
    await first.asks.get()
    crew.renew()  # somebody has mended a file
    await first.asks.get()
    first.can_begin.set()
    await renewed(crew)
    assert (first.asked, second.asked) == (2, 1)
