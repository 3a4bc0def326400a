"""The measurements at each rate, as a table, and the search for the highest good rate: in steps of a factor up or down,
then by bisection. Pure and bounded."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.engine.open_loop.goodput import Goodput

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


RATIO_GOAL = 2.0  # our highest good rate relative to theirs
COLUMNS = {
    "share": "on time",
    "good_turns_per_s": "good turns/s",
    "ttft_p95_ms": "TTFT p95 ms",
    "tpot_p95_ms": "TPOT p95 ms",
    "refused": "refused",
    "failed": "failed",
}


@dataclass(slots=True)
class Row:
    """The rounds at one rate, ours and theirs in pairs with the same trace."""

    rate: float  # sessions per second
    ours: list[Goodput] = field(default_factory=list)
    theirs: list[Goodput] = field(default_factory=list)

    def is_settled(self, rounds: int, share: float) -> bool:
        """Whether more rounds, up to `rounds` in total, cannot change the verdict for either side."""
        return all(_is_settled(side, rounds, share) for side in (self.ours, self.theirs))

    def line(self, model: str) -> str:
        turns = f"{statistics.median(run.turns for run in self.ours):.0f}"
        sides = (self.theirs, self.ours)
        cells = [" / ".join(_shown(name, median(side, name)) for side in sides) for name in COLUMNS]
        return f"| {' | '.join([model, f'{self.rate:.3g}', turns, *cells])} |"


def head() -> str:
    columns = ["model", "sessions/s", "turns", *(f"{name}, theirs / ours" for name in COLUMNS.values())]
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def median(rounds: Sequence[Goodput], name: str) -> float | None:
    """The median of one number over the rounds; None if the median round has no such number."""
    told = [run.numbers()[name] for run in rounds]
    middle = statistics.median(float("inf") if number is None else number for number in told)
    return None if middle == float("inf") else middle


def is_good(rounds: Sequence[Goodput], share: float) -> bool:
    return statistics.median(run.share for run in rounds) >= share


def good(sides: Mapping[float, Sequence[Goodput]], share: float) -> Good:
    """By rate, whether that share of the turns was on time."""
    return {rate: is_good(rounds, share) for rate, rounds in sides.items()}


def verdict(model: str, peer: str, rows: Iterable[Row], share: float) -> str:
    """The highest good rates of both sides and their ratio, in words."""
    rows = list(rows)
    rates = [row.rate for row in rows]
    ours = highest(good({row.rate: row.ours for row in rows}, share))
    theirs = highest(good({row.rate: row.theirs for row in rows}, share))
    told = f"ours {_bounded(ours, rates)}, llama-server {peer} {_bounded(theirs, rates)}"
    if ours is not None and theirs is not None:
        ratio = round(ours / theirs, 2)
        told += f", {ratio:.2f} times as many (goal {RATIO_GOAL:g} {'✓' if ratio >= RATIO_GOAL else '✗'})"
    return f"{model}: sessions per second with {share:.0%} of the turns on time: {told}"


def _bounded(rate: float | None, tried: Sequence[float]) -> str:
    """The highest good rate as text, as far as it is known."""
    if rate is None:
        return f"below {min(tried):.3g}"
    return f"{rate:.3g}" + (" or more" if rate == max(tried) else "")


def _is_settled(rounds: Sequence[Goodput], most: int, share: float) -> bool:
    in_time = sum(run.share >= share for run in rounds)
    return 2 * max(in_time, len(rounds) - in_time) > most


def _shown(name: str, number: float | None) -> str:
    if number is None:
        return "∞"
    return f"{number:.0f}" if name.endswith("_ms") or name in ("refused", "failed") else f"{number:.2f}"
