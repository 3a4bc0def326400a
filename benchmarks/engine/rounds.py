"""Runs a workload on all sides in turn, round after round, keeps the results, and compares them with the goals."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.engine.measures import CHARACTERS, GAP_P95, THROUGHPUT, TPOT, TTFT, TTFT_P95, medians, ratios
from benchmarks.engine.target import Target
from benchmarks.engine.workloads import LONG_TTFT, Workload

RATES = {THROUGHPUT, CHARACTERS}


@dataclass(frozen=True, slots=True)
class Goal:
    measure: str
    bound: float

    def met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.measure in RATES else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.measure in RATES else '≤'} {self.bound:g}"


# By the first word or words of a workload's name.
GOALS = {
    "cold": [Goal(THROUGHPUT, 1.6), Goal(TTFT, 0.5)],
    "warm, 16": [Goal(THROUGHPUT, 1.05), Goal(TTFT, 0.3), Goal(TTFT_P95, 0.6), Goal(TPOT, 1.1), Goal(GAP_P95, 1.2)],
    "warm, 8": [Goal(THROUGHPUT, 1.03), Goal(TTFT, 0.5), Goal(TPOT, 1.05)],
    "warm, 1 ": [Goal(THROUGHPUT, 1.0), Goal(TTFT, 1.0)],
    "a 4000-token": [Goal(GAP_P95, 0.5), Goal(LONG_TTFT, 1.2)],
    "64 conversations": [Goal(TTFT, 0.1)],
    "draft": [Goal(CHARACTERS, 0.98)],
    "lookup: nothing": [Goal(CHARACTERS, 0.98)],
    **{f"lookup: {task}, 1 ": [Goal(CHARACTERS, 1.3)] for task in ("a passage", "an edit of code", "a tool result")},
    "lookup": [Goal(CHARACTERS, 0.98)],
}


def goal(workload: str, measure: str) -> Goal | None:
    goals = next((goals for name, goals in GOALS.items() if workload.startswith(name)), [])
    return next((goal for goal in goals if goal.measure == measure), None)


Numbers = dict[str, float]


@dataclass(slots=True)
class Result:
    """The rounds of one workload on one model, ours and theirs in pairs."""

    model: str
    workload: str
    peer: str
    ours: list[Numbers] = field(default_factory=list)
    theirs: list[Numbers] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Rows of a Markdown table: model, workload, peer, measure, theirs, ours, ratio, goal."""
        ours, theirs, by = medians(self.ours), medians(self.theirs), ratios(self.ours, self.theirs)
        lines = []
        for measure, ratio in by.items():
            aim = goal(self.workload, measure)
            told = "" if aim is None else f"{aim} {'✓' if aim.met(round(ratio, 2)) else '✗'}"
            numbers = f"{theirs[measure]:.1f} | {ours[measure]:.1f} | {ratio:.2f}"
            lines.append(f"| {self.model} | {self.workload} | {self.peer} | {measure} | {numbers} | {told} |")
        return lines


async def compare(
    model: str, workload: Workload, ours: Target, peers: Sequence[Target], rounds: int, *, after: int = 0
) -> Result:
    """Run a workload. The first round runs on every peer, the others only on the one that did best in it.

    `after`: the number of earlier rounds of the same workload, whose prompts our side still has in its cache.
    """
    first = [await _round(workload, peer, after) for peer in peers]
    best = min(range(len(peers)), key=lambda i: _rank(first[i]))
    peer, theirs = peers[best], [first[best]]
    mine = [await _round(workload, ours, after)]
    for number in range(after + 1, after + rounds):
        mine.append(await _round(workload, ours, number))
        theirs.append(await _round(workload, peer, number))
    return Result(model, workload.name, peer.name, mine, theirs)


async def _round(workload: Workload, target: Target, number: int) -> Numbers:
    numbers = await workload.run(target, f"{workload.name}/{number}")
    told = ", ".join(f"{name} {value:.1f}" for name, value in numbers.items())
    print(f"{workload.name} | {number} | {target.name} | {told}", file=sys.stderr, flush=True)
    return numbers


def _rank(numbers: Numbers) -> float:
    """The rank of a peer, by the first and main measure of the workload; less is better."""
    name, value = next(iter(numbers.items()))
    return -value if name in RATES else value
