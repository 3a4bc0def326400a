"""The measurements at each rate, as a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.engine.open_loop.goodput import Goodput

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


def _shown(name: str, number: float | None) -> str:
    if number is None:
        return "∞"
    return f"{number:.0f}" if name.endswith("_ms") or name in ("refused", "failed") else f"{number:.2f}"
