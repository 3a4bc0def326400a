"""What the answers of a canary say so far: promote it, roll it back, or go on.

Each measure is a harm between 0 and 1. Conversations are assigned at random, so the difference of two that come one
after the other, one of each kind, has the difference of the means as its mean. Evidence is that of `betting`: all of it
may be looked at all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan
from typing import Any

import numpy as np

from worker.canary.betting import Values, capital_against, interval

ALPHA = (
    0.05  # of being wrong: in rolling back something that is within its margins, and in calling harmless what is not
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The first answer of a conversation: later ones depend on it. None: not judged, or there was none."""

    treated: bool
    failed: bool
    late: bool | None
    ttft_ms: float | None
    tpot_ms: float | None
    tokens: int  # computed: read without the cache, and generated


@dataclass(frozen=True, slots=True)
class Measure:
    """`margin` is how much larger the mean harm may be. The harm of what has a `scale` is 0.5 there; what has none is
    0 or 1 already."""

    value: Callable[[Answer], float | None]
    margin: float
    scale: float | None = None
    unit: str = ""

    def harm(self, answer: Answer) -> float | None:
        value = self.value(answer)
        return value if value is None or self.scale is None else value / (value + self.scale)

    def typical(self, answers: Iterable[Answer]) -> float:
        """The median, or the share of those that have it. NaN where nothing is known."""
        known = [value for value in map(self.value, answers) if value is not None]
        if not known:
            return nan
        return float(np.mean(known) if self.scale is None else np.median(known))


MEASURES: Mapping[str, Measure] = {
    "failed": Measure(lambda answer: float(answer.failed), 0.02),
    "late": Measure(lambda answer: None if answer.late is None else float(answer.late), 0.05),
    "first_token": Measure(lambda answer: answer.ttft_ms, 0.05, scale=500.0, unit="ms"),
    "pace": Measure(lambda answer: answer.tpot_ms, 0.05, scale=50.0, unit="ms"),
    "tokens": Measure(lambda answer: answer.tokens, 0.1, scale=500.0, unit="tokens"),
}


class Decision(StrEnum):
    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    GO_ON = "go on"


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one measure: what is typical of both kinds, in its unit, and between which values the difference of the mean
    harms lies."""

    measure: str
    unit: str
    margin: float
    pairs: int
    control: float
    treatment: float
    low: float
    high: float
    is_worse: bool  # than the margin allows
    is_harmless: bool

    @property
    def verdict(self) -> str:
        return "worse" if self.is_worse else "harmless" if self.is_harmless else "open"

    def told(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "unit": self.unit,
            "margin": self.margin,
            "pairs": self.pairs,
            "control": None if isnan(self.control) else round(self.control, 4),
            "treatment": None if isnan(self.treatment) else round(self.treatment, 4),
            "difference": [round(self.low, 4), round(self.high, 4)],
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    reason: str


def judge(answers: Sequence[Answer], margins: Mapping[str, float]) -> Verdict:
    """`answers` in the order of their arrival. Of equal treatments one in twenty is rolled back at most, however often
    this is asked; one that always fails is rolled back after twelve conversations of each kind."""
    harmless = True
    for name, measure in MEASURES.items():
        values, margin = differences(answers, measure.harm), margins.get(name, measure.margin)
        if capital_against(values, margin) >= len(MEASURES) / ALPHA:
            return Verdict(Decision.ROLL_BACK, f"{name} is worse by more than {margin:g}, after {values.size} pairs")
        # All measures must be harmless, so each may be told at the whole of alpha.
        harmless = harmless and capital_against(-values, -margin) >= 1 / ALPHA
    if harmless:
        return Verdict(Decision.PROMOTE, "no measure is worse than its margin allows")
    return Verdict(Decision.GO_ON, "the answers so far do not tell")


def findings(answers: Sequence[Answer], margins: Mapping[str, float]) -> list[Finding]:
    """What `judge` looked at, for people. Takes a second for ten thousand answers."""
    return [_finding(name, each, margins.get(name, each.margin), answers) for name, each in MEASURES.items()]


def _finding(name: str, measure: Measure, margin: float, answers: Sequence[Answer]) -> Finding:
    values = differences(answers, measure.harm)
    control, treatment = (measure.typical(each for each in answers if each.treated is kind) for kind in (False, True))
    low, high = interval(values, ALPHA)
    is_worse = capital_against(values, margin) >= len(MEASURES) / ALPHA
    is_harmless = capital_against(-values, -margin) >= 1 / ALPHA
    return Finding(name, measure.unit, margin, int(values.size), control, treatment, low, high, is_worse, is_harmless)


def differences(answers: Iterable[Answer], harm: Callable[[Answer], float | None]) -> Values:
    """Treatment minus control, of neighbours: a block ends as soon as it has both kinds, which does not depend on what
    they are like."""
    found: list[float] = []
    block: tuple[list[float], list[float]] = ([], [])
    for answer in answers:
        value = harm(answer)
        if value is None:
            continue
        block[answer.treated].append(value)
        if all(block):
            control, treatment = (sum(values) / len(values) for values in block)
            found.append(treatment - control)
            block = ([], [])
    return np.array(found, dtype=np.float64)
