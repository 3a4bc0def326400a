"""Runs a workload on all sides in turn, round after round, and keeps the results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.engine.goals import RATES, goal
from benchmarks.engine.measures import medians, ratios
from benchmarks.engine.target import Target
from benchmarks.engine.workloads import Workload

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
