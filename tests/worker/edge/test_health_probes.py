"""Which balancers a worker that stops waits for, by a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from worker.edge.health_probes import ADDRESSES_MAX, FAILED_LOOKS, HealthProbes

HERE, THERE = "10.0.0.1", "10.0.0.2"


class Looked:
    """Checkers at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.checkers = HealthProbes(lambda: self.now)

    def at(self, times: Sequence[float], address: str = HERE) -> None:
        for self.now in times:
            self.checkers.asked(address)

    def stop(self, at: float) -> bool:
        """Whether somebody has to be waited for."""
        self.now = at
        self.checkers.stop()
        return not self.checkers.are_aware


@pytest.fixture
def looked() -> Looked:
    return Looked()


def test_nobody_is_waited_for_where_nobody_looks(looked: Looked) -> None:
    assert not looked.stop(at=5)


@pytest.mark.parametrize("every_s", [0.5, 1, 2, 5])
def test_who_looks_at_regular_times_is_waited_for(looked: Looked, every_s: float) -> None:
    looked.at([every_s * number for number in range(10)])
    assert looked.stop(at=every_s * 9.9)


def test_two_balancers_behind_one_address_are_waited_for(looked: Looked) -> None:
    looked.at([0, 0.05, 1, 1.05, 2, 2.05])
    assert looked.stop(at=2.95)


def test_who_looked_twice_may_have_just_begun(looked: Looked) -> None:
    looked.at([0, 1])
    assert looked.stop(at=2)


def test_who_looked_once_is_not_waited_for(looked: Looked) -> None:
    looked.at([0])
    assert not looked.stop(at=0.5)


def test_a_script_that_waited_for_the_start_is_not_waited_for(looked: Looked) -> None:
    looked.at([0.05 * number for number in range(100)])
    assert not looked.stop(at=6)


def test_who_looks_seldom_is_not_waited_for(looked: Looked) -> None:
    looked.at([0, 30, 60, 90])
    assert not looked.stop(at=105)


async def test_all_have_to_see_it_often_enough(looked: Looked) -> None:
    for address in (HERE, THERE):
        looked.at([0, 1, 2, 3], address)
    assert looked.stop(at=3.5)
    aware = asyncio.create_task(looked.checkers.aware())
    looked.at([4, 5, 6], HERE)
    looked.at([4, 5], THERE)
    await asyncio.sleep(0)
    assert not aware.done()
    looked.at([6], THERE)
    await asyncio.wait_for(aware, 60)
    assert looked.checkers.are_aware and FAILED_LOOKS == 3


def test_what_is_known_is_bounded(looked: Looked) -> None:
    looked.at([0, 1, 2])
    for number in range(ADDRESSES_MAX):
        looked.at([3], f"10.1.0.{number}")
    assert not looked.stop(at=3.5)
    assert len(looked.checkers._looks) == ADDRESSES_MAX
