"""How many threads a step is worth: measured while serving, because it depends on everything.

A small model decodes a row faster on one core than two threads can meet at the barriers between its operations; a
prompt of hundreds of rows wants every core; and a core that another program uses turns the answer around. So the
choices are timed as they are used, per size of step, and the slower one is tried again only as often as costs next to
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

FIRST_LOOKS = 3  # timings of each choice before any is preferred
SMOOTHING = 0.3  # weight of the newest timing: a few steps decide, one odd step does not
# Share of time that trying the slower choices may cost.
EXPLORATION_SHARE = 0.01
PATIENCE_MIN = 20  # steps between two tries, however close the choices are


@dataclass(slots=True)
class _Choice:
    threads: int
    seconds_per_row: float = 0.0
    looks: int = 0


class ThreadChooser:
    """Pure; it is given the time of every step. Steps are distinguished by the power of two of their rows."""

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
        """Where all threads pay for fewer rows, they do for more: trying fewer threads would only hold a prompt up."""
        for smaller in sorted((known for known in self._sizes if known < size), reverse=True):
            choices = self._sizes[smaller]
            settled = all(choice.looks >= FIRST_LOOKS for choice in choices)
            if settled and min(choices, key=lambda choice: choice.seconds_per_row) is choices[0]:
                return [replace(choice) for choice in choices]
        return [_Choice(option) for option in self._options]

    def observe(self, rows: int, threads: int, seconds: float) -> None:
        """What `choose` said was done and took that long."""
        choices = self._sizes[rows.bit_length()]
        best = min(choices, key=lambda choice: choice.seconds_per_row)
        for choice in choices:
            if choice.threads == threads:
                # What was known of a choice that is tried again is old: the machine may have been busy then.
                weight = SMOOTHING if choice is best and choice.looks else 1.0
                choice.seconds_per_row += weight * (seconds / rows - choice.seconds_per_row)
                choice.looks += 1
