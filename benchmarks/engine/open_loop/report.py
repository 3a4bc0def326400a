"""The measurements at each rate, as a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.engine.open_loop.goodput import Goodput
from benchmarks.engine.open_loop.search import Good, highest

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
