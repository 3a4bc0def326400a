"""Goals for the ratios to the other side: upper limits for times, lower limits for rates."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.engine.measures import CHARACTERS, GAP_P95, THROUGHPUT, TPOT, TTFT, TTFT_P95
from benchmarks.engine.workloads import LONG_TTFT

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
