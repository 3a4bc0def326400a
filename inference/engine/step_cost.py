"""The cost of a step, learned from earlier steps: decides how long a prefill chunk or a draft is worth its time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

SMOOTHING = 0.2  # weight of the newest step; of the first ones, the mean counts
# An observation counts as at most this many times the usual step: more means that the machine did something else in
# between. Steps that have become so much slower for good are learned after a few.
PAUSE = 2.0
# The time between two steps depends on what the event loop is doing, so it is averaged over many; a longer gap than
# this means that the steps did not follow each other directly.
BETWEEN_SMOOTHING, BETWEEN_MAX_S = 0.02, 0.1


@dataclass(slots=True)
class _Known:
    """The usual step of one size."""

    rows: float
    seconds: float
    steps: int = 1


_rows = attrgetter("rows")


class StepCost:
    """Pure. Steps are grouped by the power of two of their rows; between groups the cost is interpolated linearly."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._ordered: list[_Known] = []  # the smallest size first
        self.between_s = 0.0  # from the end of a step to the start of the next, where one follows at once

    def observe_between(self, seconds: float) -> None:
        """Record the gap between two steps, in which tokens were sampled and published and the next step was planned,
        while the event loop had the interpreter for some of the time."""
        self.between_s += BETWEEN_SMOOTHING * (min(seconds, BETWEEN_MAX_S) - self.between_s)

    def observe(self, rows: int, seconds: float) -> None:
        known = self._known.get(rows.bit_length())
        if known is None:
            known = self._known[rows.bit_length()] = _Known(rows, seconds)
            self._ordered = [self._known[size] for size in sorted(self._known)]
            return
        known.steps += 1
        weight = max(SMOOTHING, 1 / known.steps)
        known.rows += weight * (rows - known.rows)
        known.seconds += weight * (min(seconds, PAUSE * known.seconds) - known.seconds)

    def predict(self, rows: int) -> float | None:
        """Seconds for a step of that many rows; None if no step of that size or smaller was seen.

        Beyond the largest size seen, a row is assumed to cost what it costs there, which overestimates it.
        """
        known = self._ordered
        above = bisect_right(known, rows, key=_rows)
        if 0 < above < len(known):
            low, high = known[above - 1], known[above]
            share = (rows - low.rows) / (high.rows - low.rows)
            return low.seconds + share * (high.seconds - low.seconds)
        if not known or rows.bit_length() < int(known[0].rows).bit_length():
            return None
        nearest = known[max(0, above - 1)]
        return nearest.seconds * rows / nearest.rows
