"""Reads the progress of a compilation from the build tool's output, and displays it."""

from __future__ import annotations

import re
import sys
import time
from typing import TextIO

NINJA = re.compile(r"^\s*\[(\d+)/(\d+)\]")
MAKE = re.compile(r"^\s*\[\s*(\d+)%\]")
# Without a terminal (a CI log), one line per this many seconds is enough.
LOG_EVERY_S = 20.0


def steps_in(line: str) -> tuple[int, int] | None:
    """(done, total) in a line of ninja's `[57/140] ...` or make's `[ 40%] ...`; None in any other."""
    if ninja := NINJA.match(line):
        return int(ninja[1]), int(ninja[2])
    if make := MAKE.match(line):
        return int(make[1]), 100
    return None


def time_left(done: int, total: int, elapsed_s: float) -> str:
    """The estimated time left, in words; empty while it is too early for an estimate."""
    if done == 0 or elapsed_s < 5:
        return ""
    minutes = elapsed_s / done * (total - done) / 60
    return "less than a minute left" if minutes < 1 else f"about {minutes:.0f} min left"


class Progress:
    """A progress line: updated in place on a terminal, repeated occasionally in a log."""

    def __init__(self, title: str, stream: TextIO = sys.stdout) -> None:
        self._title = title
        self._stream = stream
        self._started_at = time.monotonic()
        self._shown_at = float("-inf")
        self._width = 0
        self._show(title)

    def step(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._stream.isatty() or now - self._shown_at >= LOG_EVERY_S or done == total:
            left = time_left(done, total, now - self._started_at)
            self._show(f"{self._title}: {done}/{total}" + (f", {left}" if left else ""))

    def close(self) -> None:
        elapsed_s = time.monotonic() - self._started_at
        self._show(f"{self._title}: {elapsed_s:.0f} s")
        if self._stream.isatty():
            self._stream.write("\n")

    def _show(self, text: str) -> None:
        self._shown_at = time.monotonic()
        if self._stream.isatty():
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
