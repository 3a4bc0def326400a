"""Searches for the highest good rate: in steps of a factor up or down, then by bisection. Pure and bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Good = Mapping[float, bool]  # by rate, whether it was good


@dataclass(frozen=True, slots=True)
class Search:
    """A search that starts at `first`, stays within `low` and `high`, and ends when the lowest bad rate is at most
    `precision` times the highest good one. It takes at most log(high / low) / log(factor) steps and
    log2(log(factor) / log(precision)) bisections."""

    first: float
    low: float
    high: float
    factor: float = 2.0
    precision: float = 1.2

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.first <= self.high:
            raise ValueError("the first rate must lie between the lowest and the highest, which must be above 0")
        if not 1 < self.precision <= self.factor:
            raise ValueError("the precision must be above 1 and not above the factor")

    def next(self, good: Good) -> float | None:
        """The rate to try next; None when the search is complete."""
        if not good:
            return self.first
        best, bad = highest(good), _lowest_bad(good)
        if bad is None:
            above = max(good) * self.factor
            return above if above <= self.high else None
        if best is None:
            below = bad / self.factor
            return below if below >= self.low else None
        if bad / best <= self.precision:
            return None
        return math.sqrt(best * bad)


def highest(good: Good) -> float | None:
    """The highest good rate with no bad rate below it: one that was good by chance does not count."""
    bad = _lowest_bad(good)
    return max((rate for rate, is_good in good.items() if is_good and (bad is None or rate < bad)), default=None)


def _lowest_bad(good: Good) -> float | None:
    return min((rate for rate, is_good in good.items() if not is_good), default=None)
