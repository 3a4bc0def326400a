"""The policy of a canary, on answers that are drawn: what is worse goes back, what is equal does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from worker.telemetry.trial import ALPHA, MEASURES, Answer, Decision, Evidence, Vote, findings, interval, judge

CONVERSATIONS = 400


@dataclass(frozen=True)
class Kind:
    """What answers of one kind are like."""

    fails: float = 0.01
    is_late: float = 0.05
    ttft_ms: float = 200.0
    tpot_ms: float = 20.0
    tokens: int = 300
    declines: float = 0.05
    cost: float = 0.002
    disliked: float = 0.2  # of those that are rated

    def answer(self, chance: np.random.Generator, treated: bool) -> Answer:
        spread = chance.lognormal(0, 0.5, size=4)
        return Answer(
            treated,
            bool(chance.random() < self.fails),
            bool(chance.random() < self.is_late),
            self.ttft_ms * spread[0],
            self.tpot_ms * spread[1],
            int(self.tokens * spread[2]),
            bool(chance.random() < self.declines),
            self.cost * spread[3],
        )

    def vote(self, chance: np.random.Generator, treated: bool) -> Vote:
        return Vote(treated, "thumbs_down", float(chance.random() < self.disliked))


USUAL = Kind()


def trial(seed: int, treatment: Kind, share: float = 0.5, count: int = CONVERSATIONS) -> Evidence:
    """One of ten conversations is rated."""
    chance = np.random.default_rng(seed)
    kinds = [(treatment if each else USUAL, bool(each)) for each in chance.random(count) < share]
    answers = [kind.answer(chance, treated) for kind, treated in kinds]
    return Evidence(answers, [kind.vote(chance, treated) for kind, treated in kinds[::10]])


def rolled_back(trials: Sequence[Evidence]) -> float:
    return float(np.mean([judge(each, {}).decision is Decision.ROLL_BACK for each in trials]))


@pytest.mark.parametrize("trials", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_of_equal_treatments_fewer_than_one_in_twenty_is_ever_rolled_back(trials: int) -> None:
    """Each verdict is that of somebody who looked after every answer: what was reached once is not lost again. Without
    margins, which is the hardest."""
    strict = dict.fromkeys(MEASURES, 0.0)
    alarms = [judge(trial(seed, USUAL), strict).decision is Decision.ROLL_BACK for seed in range(trials)]
    assert np.mean(alarms) < ALPHA


@pytest.mark.parametrize(
    "treatment",
    [
        replace(USUAL, ttft_ms=600),
        replace(USUAL, tpot_ms=60),
        replace(USUAL, fails=0.2),
        replace(USUAL, is_late=0.4),
        replace(USUAL, declines=0.4),
        replace(USUAL, cost=0.006),
    ],
    ids=["slow to begin", "slow", "fails", "late", "declines", "dear"],
)
def test_what_is_worse_is_rolled_back(treatment: Kind) -> None:
    assert rolled_back([trial(seed, treatment) for seed in range(50)]) > 0.9


def test_what_always_fails_is_rolled_back_after_twelve_conversations_of_each_kind() -> None:
    broken = [replace(USUAL.answer(np.random.default_rng(1), bool(i % 2)), failed=bool(i % 2)) for i in range(24)]
    assert judge(Evidence(broken), {}).decision is Decision.ROLL_BACK
    assert "failed is worse by more than 0.02" in judge(Evidence(broken), {}).reason


def test_what_is_worse_within_its_margin_stays() -> None:
    slower = [trial(seed, replace(USUAL, ttft_ms=600)) for seed in range(20)]
    wide = {"first_token": 0.5}
    assert all(judge(each, wide).decision is not Decision.ROLL_BACK for each in slower)


def test_an_equal_treatment_is_promoted_in_the_end_and_not_at_once() -> None:
    assert judge(trial(1, USUAL, count=50), {}).decision is Decision.GO_ON
    assert judge(trial(1, USUAL, count=6000), {}).decision is Decision.PROMOTE


def test_a_small_share_is_enough() -> None:
    """What comes of nine answers of one kind beside one of the other is used as well."""
    assert rolled_back([trial(seed, replace(USUAL, fails=0.5), share=0.1) for seed in range(100)]) > 0.9


def test_the_interval_holds_the_difference_at_every_moment() -> None:
    """Of values that are as far apart as they can be; one in twenty may miss it."""
    missed = 0
    for seed in range(200):
        chance = np.random.default_rng(seed)
        values = np.where(chance.random(300) < 0.55, 1.0, -1.0)
        looks = [interval(values[:count], ALPHA) for count in (10, 30, 100, 300)]
        missed += any(not low <= 0.1 <= high for low, high in looks)
    assert missed / 200 < ALPHA


def test_what_was_not_judged_is_in_no_pair() -> None:
    known = Answer(False, False, None, None, None, 10)
    answers = [known, replace(known, treated=True), replace(known, late=True), replace(known, treated=True, late=False)]
    evidence = Evidence(answers)
    assert MEASURES["late"].differences(evidence.samples("late")).tolist() == [-1.0]
    assert MEASURES["failed"].differences(evidence.samples("failed")).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("measure", ["thumbs_down", "graded"])
def test_what_people_or_a_judge_find_worse_is_rolled_back_and_nobody_waits_for_them(measure: str) -> None:
    equal = trial(1, USUAL, count=6000)
    votes = [Vote(bool(number % 2), measure, float(number % 2 == 1 or number % 8 == 0)) for number in range(60)]
    assert judge(replace(equal, votes=[]), {}).decision is Decision.PROMOTE
    assert judge(replace(equal, votes=votes[:4]), {}).decision is Decision.PROMOTE
    verdict = judge(replace(equal, votes=votes), {})
    assert verdict.decision is Decision.ROLL_BACK and verdict.reason.startswith(measure)


def test_the_unit_of_prices_does_not_matter() -> None:
    dear = trial(2, replace(USUAL, cost=0.006))
    cents = replace(dear, answers=[replace(each, cost=100 * (each.cost or 0)) for each in dear.answers])
    assert findings(dear, {})[6].low == pytest.approx(findings(cents, {})[6].low)


def test_what_has_no_price_and_no_target_keeps_nothing_from_being_promoted() -> None:
    answers = [replace(each, cost=None, late=None) for each in trial(1, USUAL, count=6000).answers]
    assert judge(Evidence(answers), {}).decision is Decision.PROMOTE


def test_people_are_told_both_kinds_and_between_what_the_difference_lies() -> None:
    by_name = {finding.measure: finding for finding in findings(trial(3, replace(USUAL, fails=0.5)), {})}
    assert by_name["failed"].control < 0.1 < 0.4 < by_name["failed"].treatment
    assert 0.3 < by_name["failed"].low < 0.5 < by_name["failed"].high < 0.7
    assert by_name["failed"].as_dict()["verdict"] == "worse"
    assert not by_name["late"].is_worse


def test_nothing_is_said_of_nothing() -> None:
    assert judge(Evidence(), {}).decision is Decision.GO_ON
    assert interval(np.array([]), ALPHA) == pytest.approx((-1, 1), abs=1e-3)
