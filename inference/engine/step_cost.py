"""What a step costs, learned from the steps before: decides how much prompt, or how long a draft, is worth its time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

SMOOTHING = 0.2  # weight of the newest step
# A step counts as this many times the usual one at most: the machine did something else in between. Where steps have
# become so much slower for good, that is known after a few.
PAUSE = 2.0
# The time between two steps hangs on what the event loop does just then, so it is a mean of many; one that takes longer
# than this was no plain succession of steps.
BETWEEN_SMOOTHING, BETWEEN_MAX_S = 0.02, 0.1


@dataclass(slots=True)
class _Known:
    """The usual step of one size."""

    rows: float
    seconds: float


_rows = attrgetter("rows")


class StepCost:
    """Pure. Steps are distinguished by the power of two of their rows; in between, the cost is taken to be straight."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._ordered: list[_Known] = []  # the smallest size first
        self.between_s = 0.0  # from the end of a step until the next one begins, where there is one

    def observe_between(self, seconds: float) -> None:
        """A step has followed another one after so long: tokens were drawn, told, and the next step planned, while the
        event loop had the interpreter for some of the time."""
        self.between_s += BETWEEN_SMOOTHING * (min(seconds, BETWEEN_MAX_S) - self.between_s)

    def observe(self, rows: int, seconds: float) -> None:
        known = self._known.get(rows.bit_length())
        if known is None:
            known = self._known[rows.bit_length()] = _Known(rows, seconds)
            self._ordered = [self._known[size] for size in sorted(self._known)]
        known.rows += SMOOTHING * (rows - known.rows)
        known.seconds += SMOOTHING * (min(seconds, PAUSE * known.seconds) - known.seconds)

    def predict(self, rows: int) -> float | None:
        """Seconds for a step of that many rows; None while nothing of that size or smaller was seen.

        Beyond the largest size seen, a row is taken to cost what it does there, which is more than it will.
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
