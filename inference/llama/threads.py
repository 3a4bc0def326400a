"""How many threads pay off for a step: measured while serving, because it depends on everything.

A small model decodes a row faster on one core than two threads can synchronise at the barriers between operations; a
prompt of hundreds of rows needs every core; and a core that another program uses reverses the result. So the options
are timed in use, per size of step, and the slower one is retried only as often as it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

FIRST_LOOKS = 3  # timings of each option before any is preferred
SMOOTHING = 0.3  # weight of the newest timing: a few steps decide, one outlier does not
# Share of time that trying the slower options may cost.
EXPLORATION_SHARE = 0.01
PATIENCE_MIN = 20  # steps between two tries, however close the options are


@dataclass(slots=True)
class _Choice:
    threads: int
    seconds_per_row: float = 0.0
    looks: int = 0


class ThreadChooser:
    """Pure; it is told the time of every step. Steps are grouped by the power of two of their rows."""

    def __init__(self, threads: Sequence[int]) -> None:
        self._options = sorted(set(threads), reverse=True)
        self._sizes: dict[int, list[_Choice]] = {}
        self._patience: dict[int, int] = {}

    def choose(self, rows: int) -> int:
        """Threads for the next step of that many rows."""
        size = rows.bit_length()
        if size not in self._sizes:
            self._sizes[size] = self._first_guess(size)
        choices = self._sizes[size]
        unknown = [choice for choice in choices if choice.looks < FIRST_LOOKS]
        if unknown:
            return unknown[0].threads
        best, *others = sorted(choices, key=lambda choice: choice.seconds_per_row)
        left = self._patience.get(size, PATIENCE_MIN) - 1
        self._patience[size] = left
        if left > 0 or not others:
            return best.threads
        tried = min(others, key=lambda choice: choice.looks * choice.seconds_per_row)
        loss = tried.seconds_per_row / best.seconds_per_row - 1
        self._patience[size] = max(PATIENCE_MIN, round(loss / EXPLORATION_SHARE))
        return tried.threads

    def _first_guess(self, size: int) -> list[_Choice]:
        """If all threads pay off for fewer rows, they do for more: trying fewer would only delay a prompt."""
        for smaller in sorted((known for known in self._sizes if known < size), reverse=True):
            choices = self._sizes[smaller]
            settled = all(choice.looks >= FIRST_LOOKS for choice in choices)
            if settled and min(choices, key=lambda choice: choice.seconds_per_row) is choices[0]:
                return [replace(choice) for choice in choices]
        return [_Choice(option) for option in self._options]

    def observe(self, rows: int, threads: int, seconds: float) -> None:
        """Record the time of a step with the threads that `choose` returned."""
        choices = self._sizes[rows.bit_length()]
        best = min(choices, key=lambda choice: choice.seconds_per_row)
        for choice in choices:
            if choice.threads == threads:
                # An option's older timings are stale when it is retried: the machine may have been busy then.
                weight = SMOOTHING if choice is best and choice.looks else 1.0
                choice.seconds_per_row += weight * (seconds / rows - choice.seconds_per_row)
                choice.looks += 1
