"""How fast to learn when, by the wall clock: so many minutes are there, however fast the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

WARM_UP_STEPS = 20
DECAY_SHARE = 0.6  # of the time, at the end, over which the rate goes down
RATE_MIN = 0.02


def rate(step: int, done: float) -> float:
    """The share of the full rate: up over the first steps, flat, then down in a line. `done` is the share of time."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * min(1.0, max(RATE_MIN, (1 - done) / DECAY_SHARE))


class Clock:
    """Minutes may be changed while training: a number in the file `changed`, where there is one, counts."""

    def __init__(
        self, minutes: float, changed: Path, spent_s: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._minutes, self._changed, self._spent_s, self._now = minutes, changed, spent_s, now
        self._began = now()

    @property
    def spent_s(self) -> float:
        """All of it, with what was spent before a resumption."""
        return self._spent_s + self._now() - self._began

    @property
    def minutes(self) -> float:
        try:
            return float(self._changed.read_text("utf-8"))
        except (FileNotFoundError, ValueError):  # none, or just being written
            return self._minutes

    @property
    def done(self) -> float:
        """The share of the time that is over."""
        minutes = self.minutes
        return self.spent_s / (60 * minutes) if minutes > 0 else 1.0
