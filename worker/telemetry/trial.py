"""One canary: which agent answers which share of whose conversations; how an operator proposes it, its report, and the
verdict so far: promote it, roll it back, or continue.

Each measure is a harm between 0 and 1. Conversations are assigned at random, so the difference between two consecutive
ones, one of each arm, has the difference of the means as its expectation.

The evidence is valid at any time, however often it is looked at: if the mean of bounded values is at most `bound`, a
bettor who stakes shares of a capital on larger values gains nothing in expectation, so the capital reaches 1/alpha with
probability at most alpha (Ville's inequality), whatever the distribution of the values and whenever one stops.
Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", Journal of the Royal
Statistical Society B 86(1): the mean of the capitals of fixed stakes, "grid Kelly".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from math import isnan, nan
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from agents.turn import Arm

UNIT_BYTES = 8
KNOWN_BY_CHARS = 4096  # of a first question: a long document is not hashed on the event loop
_END = 1 << 64


class State(StrEnum):
    RUNNING = "running"
    PROMOTED = "promoted"  # all conversations use the treatment
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


# What people may decide, and in which states.
DECIDED_IN = {State.PROMOTED: (State.RUNNING,), State.ABORTED: (State.RUNNING, State.PROMOTED)}


@dataclass(frozen=True, slots=True)
class Canary:
    """`agent` is the name of the agent on trial, empty for requests that name none; `treatment` that of the agent which
    answers in its place. `margins` is by the names of measures."""

    id: UUID
    name: str
    agent: str
    treatment: str
    share: float
    margins: Mapping[str, float]
    state: State
    reason: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in (State.RUNNING, State.PROMOTED)

    def arm(self, tenant_id: UUID, conversation: str) -> Arm:
        """The same for all turns of a conversation, on every worker, and independent of other canaries."""
        said = tenant_id.bytes + conversation[:KNOWN_BY_CHARS].encode("utf-8", "surrogatepass")
        digest = blake2b(said, key=self.id.bytes, digest_size=8 + UNIT_BYTES).digest()
        treated = self.state is State.PROMOTED or int.from_bytes(digest[:8]) < self.share * _END
        return Arm(self.name, treated, digest[8:].hex())


SHARE_MIN = 0.0001  # of either arm: with less, the limit of stored answers is reached without evidence
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"  # it is part of traces


@dataclass(frozen=True, slots=True)
class Proposal:
    """`agent` is empty for requests that name none. `share` is of conversations, `margins` by measure."""

    name: str
    agent: str
    treatment: str
    share: float
    margins: Mapping[str, float] = field(default_factory=dict)

    def problem(self, agents: Collection[str]) -> tuple[str, str] | None:
        """The invalid field, and why; None if it is valid. `agents` are those of the worker."""
        known = ", ".join(agents) or "none"
        for part, agent in (("agent", self.agent), ("treatment", self.treatment)):
            if agent not in agents and not (part == "agent" and not agent):
                return part, f"there is no agent {agent} in the file of --agents: it has {known}"
        if not SHARE_MIN <= self.share <= 1 - SHARE_MIN:
            return "share", f"the share must be from {SHARE_MIN} to {1 - SHARE_MIN}: otherwise one group is too small"
        if self.agent == self.treatment:
            return "treatment", "the treatment is the agent itself: name another one"
        unknown = next((measure for measure in self.margins if measure not in MEASURES), None)
        if unknown is not None:
            return "margins", f"there is no measure {unknown}: the measures are {', '.join(MEASURES)}"
        return None


def canary_report(canary: Canary, evidence: Evidence) -> dict[str, Any]:
    """As JSON. Takes a second for ten thousand answers."""
    verdict = judge(evidence, canary.margins)
    return {
        "name": canary.name,
        "agent": canary.agent,
        "treatment": canary.treatment,
        "share": round(canary.share, 4),
        "state": canary.state,
        "reason": canary.reason,
        "conversations": {
            "control": evidence.conversations(treated=False),
            "treatment": evidence.conversations(treated=True),
        },
        "verdict": verdict.decision,
        "verdict_reason": verdict.reason,
        "measures": [each.as_dict() for each in findings(evidence, canary.margins)],
    }


Values: TypeAlias = NDArray[np.float64]  # one dimension, between -1 and 1

# Shares of the largest possible stake. Small ones find small differences in many values, large ones large in few.
STAKES = np.array([0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])
CAPITAL_LOG_MAX = 700.0  # within the range of a float: such evidence is more than enough
BISECTIONS = 16  # precise to 0.00003


def capital_against(values: Values, bound: float) -> float:
    """The maximum of the capital so far, starting at 1, when betting that the mean is larger than `bound`."""
    if not values.size:
        return 1.0
    stakes = STAKES / (1 + bound)
    logs = np.log1p(np.outer(stakes, values - bound)).cumsum(axis=1)
    means = np.exp(np.minimum(logs, CAPITAL_LOG_MAX)).mean(axis=0)
    return max(1.0, float(means.max()))


def interval(values: Values, alpha: float) -> tuple[float, float]:
    """A confidence sequence: contains the mean with a confidence of 1 - alpha, at all times simultaneously."""
    return _lowest(values, alpha / 2), -_lowest(-values, alpha / 2)


def _lowest(values: Values, alpha: float) -> float:
    low, high = -1.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if capital_against(values, middle) >= 1 / alpha else (low, middle)
    return low


ALPHA = 0.05  # of being wrong: of rolling back a canary that is within its margins, and of promoting one that is not
# Of a measure in an arbitrary unit, the first values only determine its scale.
FIRST = 10

Sample: TypeAlias = tuple[bool, float]  # whether it is of the treatment, and the value


@dataclass(frozen=True, slots=True)
class Answer:
    """The first answer of a conversation: later ones depend on it. None: not judged, or there was none."""

    treated: bool
    failed: bool
    late: bool | None
    ttft_ms: float | None
    tpot_ms: float | None
    tokens: int  # computed: uncached input tokens and output tokens
    declined: bool | None = None  # whether it begins like an answer of a model that does not know
    cost: float | None = None  # None without configured prices


@dataclass(frozen=True, slots=True)
class Vote:
    """The rating of a conversation after its answer was available for a while, as a harm between 0 and 1."""

    treated: bool
    measure: str
    harm: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Both in order of arrival."""

    answers: Sequence[Answer] = ()
    votes: Sequence[Vote] = ()

    def samples(self, name: str) -> list[Sample]:
        measure = MEASURES[name]
        if measure.value is None:
            return [(vote.treated, vote.harm) for vote in self.votes if vote.measure == name]
        found = ((each.treated, measure.value(each)) for each in self.answers)
        return [(treated, value) for treated, value in found if value is not None]

    def conversations(self, *, treated: bool) -> int:
        return sum(each.treated is treated for each in self.answers)


@dataclass(frozen=True, slots=True)
class Measure:
    """`margin` is how much larger the mean harm may be. With a `scale`, a value equal to the scale has a harm of 0.5;
    without one, values are between 0 and 1 already. A scale of 0 means the median of the first values, which are not
    compared. Without a `value`, the measure comes from votes: they may veto, but nobody waits for them.
    """

    value: Callable[[Answer], float | None] | None
    margin: float
    scale: float | None = None
    unit: str = ""

    @property
    def is_voted(self) -> bool:
        return self.value is None

    def differences(self, samples: Sequence[Sample]) -> Values:
        """Of the harms."""
        if self.scale is None:
            return differences(samples)
        scale = self.scale or float(np.median([value for _, value in samples[:FIRST]] or [1.0])) or 1.0
        compared = samples if self.scale else samples[FIRST:]
        return differences([(treated, value / (value + scale)) for treated, value in compared])

    def typical(self, values: Sequence[float]) -> float:
        """The median, or the share of true values. NaN without values."""
        if not values:
            return nan
        return float(np.mean(values) if self.scale is None else np.median(values))


MEASURES: Mapping[str, Measure] = {
    "failed": Measure(lambda answer: float(answer.failed), 0.02),
    "late": Measure(lambda answer: None if answer.late is None else float(answer.late), 0.05),
    "declined": Measure(lambda answer: None if answer.declined is None else float(answer.declined), 0.05),
    "first_token": Measure(lambda answer: answer.ttft_ms, 0.05, scale=500.0, unit="ms"),
    "pace": Measure(lambda answer: answer.tpot_ms, 0.05, scale=50.0, unit="ms"),
    "tokens": Measure(lambda answer: answer.tokens, 0.1, scale=500.0, unit="tokens"),
    "cost": Measure(lambda answer: answer.cost, 0.05, scale=0.0, unit="price"),
    "thumbs_down": Measure(None, 0.1),
    "graded": Measure(None, 0.1),
}


class Decision(StrEnum):
    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    GO_ON = "go on"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one measure: the typical value of both arms, in its unit, and the confidence interval of the
    difference of the mean harms."""

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

    def as_dict(self) -> dict[str, Any]:
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


def judge(evidence: Evidence, margins: Mapping[str, float]) -> Verdict:
    """With equal arms, at most one canary in twenty is rolled back, however often this is called; one that always fails
    is rolled back after twelve conversations of each arm."""
    harmless = list[bool]()
    for name, measure in MEASURES.items():
        values, margin = measure.differences(evidence.samples(name)), margins.get(name, measure.margin)
        if capital_against(values, margin) >= len(MEASURES) / ALPHA:
            return Verdict(Decision.ROLL_BACK, f"{name} is worse by more than {margin:g}, after {values.size} pairs")
        if measure.is_voted or not values.size:
            continue
        # All measures must be harmless, so each may be tested at the full alpha.
        harmless.append(capital_against(-values, -margin) >= 1 / ALPHA)
    if harmless and all(harmless):
        return Verdict(Decision.PROMOTE, "no measure is worse than its margin allows")
    return Verdict(Decision.GO_ON, "the answers so far are inconclusive")


def findings(evidence: Evidence, margins: Mapping[str, float]) -> list[Finding]:
    """The data behind `judge`, for people. Takes a second for ten thousand answers."""
    return [_finding(name, each, margins.get(name, each.margin), evidence) for name, each in MEASURES.items()]


def _finding(name: str, measure: Measure, margin: float, evidence: Evidence) -> Finding:
    samples = evidence.samples(name)
    values = measure.differences(samples)
    control, treatment = (measure.typical([value for of, value in samples if of is kind]) for kind in (False, True))
    low, high = interval(values, ALPHA)
    is_worse = capital_against(values, margin) >= len(MEASURES) / ALPHA
    is_harmless = capital_against(-values, -margin) >= 1 / ALPHA
    return Finding(name, measure.unit, margin, int(values.size), control, treatment, low, high, is_worse, is_harmless)


def differences(harms: Iterable[Sample]) -> Values:
    """Treatment minus control of neighbouring conversations: a block ends as soon as it has both arms, which does not
    depend on their values."""
    found: list[float] = []
    block: tuple[list[float], list[float]] = ([], [])
    for treated, harm in harms:
        block[treated].append(harm)
        if all(block):
            control, treatment = (sum(values) / len(values) for values in block)
            found.append(treatment - control)
            block = ([], [])
    return np.array(found, dtype=np.float64)
