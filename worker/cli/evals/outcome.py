"""The outcome of a run: scores and times of each case for one or two targets, their differences, and the verdict. Pure.

Both sides answer the same cases, so the differences of each case are resampled (the paired bootstrap: Efron and
Tibshirani 1993, "An Introduction to the Bootstrap", ch. 13; for language: Koehn 2004). The percentiles are corrected
for the variance that n cases underestimate, n / (n - 1) (ibid., 13.3), since suites are often small. Seeded: the same
run gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.cli.evals.graders import score
from worker.cli.evals.suite import Answer, Usage

RESAMPLES = 10_000  # the interval's ends then vary by less than a hundredth of its width from seed to seed
CELLS_MAX = 4_000_000  # of 8 bytes that are resampled at once
SEED = 20_041
CONFIDENCE = (2.5, 97.5)
Verdict: TypeAlias = Literal["not worse", "worse", "unsure"]
MEASURES: Mapping[str, str] = {
    "first_ms": "first token",
    "total_ms": "whole answer",
    "input_tokens": "tokens read",
    "output_tokens": "tokens written",
    "engine_ms": "time of the engine",
    "cost": "cost",
}
UNITS: Mapping[str, str] = {"first_ms": "ms", "total_ms": "ms", "engine_ms": "ms"}


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def difference(one: Sequence[float], other: Sequence[float]) -> Interval:
    """The difference of the means, `one` less `other`, case by case; there is at least one case."""
    return _interval(np.asarray(one, np.float64) - np.asarray(other, np.float64))


def ratio(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """The ratio, case by case (the geometric mean); None if no case has both above zero."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a > 0 and b > 0]
    if not pairs:
        return None
    logs = _interval(np.log([a / b for a, b in pairs]))
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high))


def _interval(values: npt.NDArray[np.float64]) -> Interval:
    count, mean = len(values), float(values.mean())
    if count == 1 or not values.std():
        return Interval(mean, mean, mean)
    random = np.random.default_rng(SEED)
    at_once = max(1, CELLS_MAX // count)
    means = np.concatenate(
        [
            values[random.integers(0, count, (min(at_once, RESAMPLES - done), count))].mean(axis=1)
            for done in range(0, RESAMPLES, at_once)
        ]
    )
    means = mean + (means - mean) * math.sqrt(count / (count - 1))
    low, high = np.percentile(means, CONFIDENCE)
    return Interval(mean, float(low), float(high))


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """One answer with its grades."""

    answer: Answer
    grades: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """Of one case on one side, over its repetitions; `fingerprint` identifies the case."""

    id: str
    group: str | None
    fingerprint: str
    grades: Mapping[str, float]
    score: float
    took: Usage
    answer: Mapping[str, object]
    failed: bool = False

    @classmethod
    def of(cls, id: str, group: str | None, fingerprint: str, given: Sequence[GradedAnswer]) -> Result:
        tooks = [each.answer.took for each in given]
        took = Usage(**{name: _mean(getattr(each, name) for each in tooks) for name in Usage.__dataclass_fields__})
        grades = {name: fmean(each.grades[name] for each in given) for name in given[0].grades}
        return cls(
            *(id, group, fingerprint, grades, fmean(score(each.grades) for each in given), took),
            answer=given[0].answer.shown,
            failed=any(each.answer.error is not None for each in given),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A score that both sides have: over all cases, by group or by grader."""

    name: str
    cases: int
    score: float
    score_against: float | None = None
    difference: Interval | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """The median of a measure on each side, and their ratio, case by case."""

    name: str
    median: float
    median_against: float | None = None
    times: Interval | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`one` is the target under test, `other` what it is compared with; both in the order of the cases.

    `margin` is by how much the mean score may be lower, `slower` by what share TTFT may be longer.
    """

    names: tuple[str, str | None]
    one: Sequence[Result]
    other: Sequence[Result] | None
    margin: float
    slower: float | None = None
    timed: bool = True  # whether the times of both sides are from one run
    notes: Sequence[str] = field(default_factory=list)

    @property
    def overall(self) -> Row:
        return self._row("all cases", range(len(self.one)))

    @property
    def groups(self) -> list[Row]:
        names = dict.fromkeys(result.group for result in self.one if result.group)
        return [self._row(name, [i for i, r in enumerate(self.one) if r.group == name]) for name in names]

    @property
    def graders(self) -> list[Row]:
        names = dict.fromkeys(name for result in self.one for name in result.grades)
        return [self._row(name, [i for i, r in enumerate(self.one) if name in r.grades], grader=name) for name in names]

    @property
    def costs(self) -> list[Cost]:
        return [cost for name in MEASURES if (cost := self._cost(name)) is not None]

    @property
    def verdict(self) -> Verdict:
        """ "Not worse" requires evidence: a loss beyond the margin is ruled out with 97.5 % confidence, as in
        non-inferiority trials (Piaggio et al. 2012). For times it is the opposite: they vary with other load on the
        machine, so "slower" is what requires evidence."""
        differs = self.overall.difference
        if differs is None or self.other is None:
            return "not worse"
        if differs.low >= -self.margin and not self.is_slower:
            return "not worse"
        return "worse" if self.is_slower or differs.high < 0 or differs.mean < -self.margin else "unsure"

    @property
    def is_slower(self) -> bool:
        """Beyond what is allowed."""
        if self.slower is None:
            return False
        first = next((cost.times for cost in self.costs if cost.name == "first_ms"), None)
        return first is not None and first.low > 1 + self.slower

    @property
    def changed(self) -> list[tuple[Result, Result]]:
        """Cases with different results, the largest loss first."""
        pairs = [(a, b) for a, b in zip(self.one, self.other or self.one, strict=True) if a.score != b.score]
        return sorted(pairs, key=lambda pair: pair[0].score - pair[1].score)

    def _row(self, name: str, indices: Sequence[int], grader: str | None = None) -> Row:
        def scores(results: Sequence[Result]) -> list[float]:
            return [results[i].grades.get(grader, 0.0) if grader else results[i].score for i in indices]

        one = scores(self.one)
        if self.other is None:
            return Row(name, len(indices), fmean(one))
        other = scores(self.other)
        return Row(name, len(indices), fmean(one), fmean(other), difference(one, other))

    def _cost(self, measure: str) -> Cost | None:
        def values(results: Iterable[Result]) -> list[float | None]:
            return [getattr(result.took, measure) for result in results]

        one = values(self.one)
        known = [value for value in one if value is not None]
        if not known or not any(known):
            return None
        if self.other is None:
            return Cost(measure, median(known))
        other = values(self.other)
        pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
        theirs = [value for value in other if value is not None]
        if not pairs or not theirs:
            return Cost(measure, median(known))
        comparable = self.timed or measure.endswith("tokens")
        between = ratio([a for a, _ in pairs], [b for _, b in pairs]) if comparable else None
        return Cost(measure, median(known), median(theirs), between)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
