"""models.toml that is read again: whatever is wrong with it is told, and the next one is read."""

from __future__ import annotations

import asyncio

import pytest

from worker.engines.active_engines import Check, Reloader, Warm
from worker.errors import StartError
from worker.setting import ConfigError


class File:
    """What reading it comes to, one time after the other; `read` is how often it was."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.read = self.held = 0
        self.go_on, self.is_read = asyncio.Event(), asyncio.Event()

    async def reload(self, check: Check, warm: Warm) -> list[str]:
        self.read += 1
        self.is_read.set()
        await self.go_on.wait()
        if (error := self.ends.pop(0)) is not None:
            raise error
        return ["small"]

    def hold(self) -> None:
        self.held += 1

    def reloader(self) -> Reloader:
        return Reloader(self.reload, lambda _: None, lambda _: asyncio.sleep(0), self.hold)


async def finished(reloader: Reloader) -> None:
    assert reloader._running is not None
    await asyncio.wait([reloader._running])
    assert reloader._running.exception() is None


@pytest.mark.parametrize("error", [StartError("no"), ConfigError("no"), OSError("no"), ZeroDivisionError("no")])
async def test_whatever_goes_wrong_is_told_and_the_next_file_is_read(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    file = File(error, None)
    file.go_on.set()
    reloader = file.reloader()
    reloader.ask()
    await finished(reloader)
    (told,) = caplog.records
    assert "all models stay as they are: no" in told.getMessage()
    assert bool(told.exc_info) is isinstance(error, ZeroDivisionError)
    reloader.ask()
    await finished(reloader)
    assert (file.read, file.held) == (2, 1)
    assert "small changed" in caplog.text


async def test_a_storm_of_signals_reads_it_once_more_and_not_beside_itself() -> None:
    file = File(None, None)
    reloader = file.reloader()
    reloader.ask()
    await file.is_read.wait()
    for _ in range(1000):
        reloader.ask()
    assert file.read == 1
    file.go_on.set()
    await finished(reloader)
    assert (file.read, file.held) == (2, 2)
