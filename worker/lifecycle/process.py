"""What every process of ours has: the progress of its start, signals that stop it, a tuned garbage collector, an event
loop that is shared."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Never

from tqdm import tqdm

LOOK_S = 0.25  # polling interval for conditions that cannot notify


def say(text: str) -> None:
    """To whoever started a server. It serves on where that cannot be read: the terminal may be closed, and the disk
    full that its output goes to."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it would be printed again at the end


def give_notice(drain_s: float) -> None:
    """In a terminal where a process that was told to stop is still running."""
    say(f"Stopping. Running answers get up to {drain_s:g} s to finish. Press Ctrl-C again to end them now.")


def hangups() -> list[signal.Signals]:
    """What a closed terminal sends, unless `nohup` has it ignored."""
    return [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []


class StopSignals:
    """The first signal lets running responses finish, the second one ends them immediately."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.serving = False
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    @classmethod
    def by_signals(cls) -> StopSignals:
        """For the calling task."""
        task = asyncio.current_task()
        assert task is not None
        stop = cls(task)
        for number in (signal.SIGINT, signal.SIGTERM, *hangups()):
            asyncio.get_running_loop().add_signal_handler(number, stop.ask)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # renews a crew; a single process has no successor
        return stop

    async def wanted(self, over: Callable[[], str | None]) -> None:
        """Return when a signal requests the stop, or when this process cannot continue."""
        while not (self.asked.is_set() or over()):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.asked.wait()

    def ask(self) -> None:
        if not self.serving:
            self._task.cancel()  # no response can be lost yet
        elif self.asked.is_set():
            self.hurried.set()
        else:
            self.asked.set()


# Reference counting frees nearly everything that a request leaves behind, so scans of young objects find little: at
# the default of 700 they take a tenth of a busy event loop. At this number a scan takes less than about 2 ms.
YOUNG_MAX = 10_000
YOUNG_LOOKS, MIDDLE_LOOKS = 10, 10  # scans of each generation before the next older one is scanned; Python's defaults


def freeze() -> None:
    """Call this when everything is loaded. Loaded objects live as long as the process, so they are excluded from scans:
    half a million objects would block every stream for a tenth of a second, again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_LOOKS, MIDDLE_LOOKS)


def function_at(path: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """Its module is loaded without looking for garbage among modules, now or later: that took a tenth of a start."""
    module, _, name = path.rpartition(".")
    gc.disable()
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]  # paths are those of such functions
    finally:
        gc.freeze()
        gc.enable()


SLICE_S = 0.01  # of the event loop at a time: about as long as parsing a long request takes
REST_SHARE = 3.0  # times a slice, while clients wait for tokens: the work then has a quarter of a core


class TimeSlice:
    """`chatting` says whether any client waits for tokens."""

    def __init__(self, chatting: Callable[[], bool]) -> None:
        self._chatting = chatting
        self._began = time.monotonic()

    async def yield_if_due(self) -> None:
        """Call this between any two steps of the work."""
        busy_s = time.monotonic() - self._began
        if busy_s >= SLICE_S:
            await asyncio.sleep(REST_SHARE * busy_s if self._chatting() else 0)
            self._began = time.monotonic()


BAR_AFTER_S = 1.0  # a bar that vanishes before it can be read only distracts


class LoadProgress:
    """`share` goes from 0 to 1. Written by the loading thread, read by the event loop."""

    def __init__(self) -> None:
        self.share = 0.0
        self._bar: tqdm[Never] | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar in the terminal, if there is one."""
        with tqdm(total=100, unit="%", desc="loading the model", delay=BAR_AFTER_S, leave=False, disable=None) as bar:
            self._bar = bar
            yield

    def report(self, share: float) -> None:
        self.share = share
        if self._bar is not None:
            self._bar.update(round(100 * share) - self._bar.n)
