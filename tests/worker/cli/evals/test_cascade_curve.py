"""Thresholds of a cascade, chosen on cases that are drawn: what they are worth shows on others."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from agents.routing.policy import Cascade, Policy
from worker.cli.evals.cascade_curve import (
    HALVES_MIN,
    PROBE,
    CascadeTrial,
    Thresholds,
    cascade_trial,
    fit,
    fragment,
    halves,
    markdown,
    measured,
    picture,
    probe,
    summary,
    table,
)
from worker.cli.evals.outcome import Result
from worker.cli.evals.suite import Answer, Usage

POLICY = Cascade(policy="cascade", first="small", then="large")


def case(at: int, right: bool, min_logprob: float, *, then: bool = True, **facts: object) -> CascadeTrial:
    """The second model costs five times as much."""
    told = {"mean_logprob": min_logprob / 4, "min_logprob": min_logprob, "margin": 0.9, "trial_cost": 0.4}
    scores, seconds, ttft_ms = (float(right), float(then)), (1.0, 5.0), (50.0, 200.0)
    return CascadeTrial(f"case-{at:03}", "a", scores, seconds, ttft_ms, **{**told, **facts})  # type: ignore[arg-type]


def cases(seed: int = 1, count: int = 80, *, tells: bool = True) -> list[CascadeTrial]:
    """The first model is right in about half of the cases; where it `tells`, it is unsure of the others."""
    chance = np.random.default_rng(seed)
    found = []
    for at in range(count):
        right = bool(chance.random() < 0.5)
        unsure = not right if tells else bool(chance.random() < 0.5)
        found.append(case(at, right, -float(chance.uniform(2, 6) if unsure else chance.uniform(0, 1.5))))
    return found


def test_where_the_first_model_knows_what_it_does_not_know_the_gap_is_closed_at_a_part_of_the_cost() -> None:
    found = fit(cases(), keep=0.95)
    assert found.recovered == pytest.approx(1.0)
    assert found.cost_share is not None and 0.5 < found.cost_share < 0.8
    assert found.held_out.taken_over == pytest.approx(0.5, abs=0.2)
    assert found.average_recovered is not None and found.average_recovered > 0.6
    assert found.difference.mean == 0


def test_where_it_does_not_nothing_is_gained_over_chance() -> None:
    found = fit(cases(tells=False, count=400), keep=0.5)
    assert found.average_recovered == pytest.approx(0.5, abs=0.1)


def test_what_is_told_was_not_seen_when_thresholds_were_chosen() -> None:
    known = cases()
    one, other = halves(known)
    assert not set(one) & set(other) and len(one) + len(other) == len(known)
    found = fit(known, keep=0.95)
    assert measured(other, found.thresholds) == found.held_out
    worse = [replace(each, scores=(0.0, 0.0)) for each in other]
    assert fit([*one, *worse], keep=0.95).thresholds == found.thresholds


def test_the_less_is_to_be_kept_the_less_it_costs() -> None:
    spent = [fit(cases(), keep=keep).fitted.cost for keep in (0.2, 0.5, 0.8, 1.0)]
    assert spent == sorted(spent) and spent[0] < spent[-1]


def test_a_first_model_that_is_as_good_is_never_taken_over_and_the_report_says_so() -> None:
    found = fit([case(at, True, -1.0) for at in range(40)], keep=0.95)
    assert found.thresholds == Thresholds() and found.recovered is None
    assert any("use the first one alone" in line for line in summary(found, "auto"))


def test_what_was_taken_over_for_its_form_is_taken_over_at_every_threshold() -> None:
    assert measured([case(1, False, 0.0, surely=True)], Thresholds()).taken_over == 1


def test_both_tokens_are_waited_for_where_the_second_model_takes_over() -> None:
    slow = case(1, False, -5.0, held_ms=30.0)
    assert measured([slow], Thresholds(min_logprob=-2.0)).first_ms == 280
    assert measured([slow], Thresholds()).first_ms == 80


def test_too_few_cases_choose_nothing() -> None:
    with pytest.raises(ValueError, match=f"{2 * HALVES_MIN} are needed"):
        fit(cases(count=2 * HALVES_MIN - 1), keep=0.9)
    fit(cases(count=2 * HALVES_MIN), keep=0.9)


def test_the_policy_that_is_written_can_be_read_and_keeps_what_was_not_fitted() -> None:
    refusals = ["nö", 'a "b"\n\x7f\\']
    policy = POLICY.model_copy(update={"hedge": True, "doubt": POLICY.doubt.model_copy(update={"refusals": refusals})})
    found = fit(cases(), keep=0.95)
    read = tomllib.loads(fragment(found, "auto", policy))["routes"]["auto"]
    parsed = TypeAdapter[Policy](Policy).validate_python(read)
    assert isinstance(parsed, Cascade)
    assert (parsed.first, parsed.then, parsed.hedge, parsed.doubt.refusals) == ("small", "large", True, refusals)
    assert parsed.doubt.min_logprob == pytest.approx(found.thresholds.min_logprob, abs=1e-4)


def test_people_are_told_both_models_and_the_cascade_with_a_picture() -> None:
    found = fit(cases(), keep=0.95)
    head, small, cascade, large, *_ = table(found, "auto", POLICY)
    assert [line.split()[0] for line in (small, cascade, large)] == ["small", "cascade", "large"]
    assert head.split()[-2:] == ["TAKEN", "OVER"] and cascade.split()[1] == "1.000"
    told = markdown(found, "auto", POLICY, "a.svg")
    assert "![Score against cost](a.svg)" in told and "FrugalGPT" in told and "RouteLLM" in told
    assert picture(found, POLICY).count("<circle") == 3


JUDGING = Cascade(policy="cascade", first="small", then="large")
TRIAL = {
    "trial.tokens": 8,
    "trial.held_ms": 20.0,
    "trial.mean_logprob": -0.2,
    "trial.min_logprob": -0.9,
    "trial.margin": 0.3,
    "took_over": False,
}


def span(name: str, ms: float, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "duration_ms": ms, "attributes": attributes}


SPANS = (span("route", 0.1, **TRIAL), span("prefill", 100.0), span("decode", 80.0, tokens=16))


def result(score: float, **took: float) -> Result:
    return Result("one", None, "", {}, score, Usage(**took), {})


ONE = result(0.0, first_ms=120.0, engine_ms=200.0)
OTHER = result(1.0, first_ms=300.0, engine_ms=400.0)


def test_costs_are_seconds_of_each_engine_and_a_trial_ends_early() -> None:
    found = cascade_trial(ONE, OTHER, Answer("Paris.", spans=SPANS), JUDGING, (0.5, 2.0))
    assert found is not None
    assert found.costs == (0.1, 0.8) and found.scores == (0.0, 1.0)
    assert found.trial_cost == pytest.approx(0.1 * 140 / 180)
    assert found.first_ms == (100.0, 300.0) and found.held_ms == 20.0
    assert (found.mean_logprob, found.min_logprob, found.margin, found.surely) == (-0.2, -0.9, 0.3, False)


@pytest.mark.parametrize(("text", "took_over"), [("I don’t know that.", False), ("[7].", True)])
def test_refusals_and_flaws_are_taken_over_whatever_the_thresholds_are(text: str, took_over: bool) -> None:
    spans = (span("route", 0.1, **{**TRIAL, "took_over": took_over}), *SPANS[1:])
    found = cascade_trial(ONE, OTHER, Answer(text, spans=spans), JUDGING, (1.0, 1.0))
    assert found is not None and found.surely


def test_an_answer_without_a_trial_or_without_its_times_is_no_case() -> None:
    answer = Answer("Paris.", spans=SPANS)
    assert cascade_trial(ONE, OTHER, replace(answer, spans=SPANS[1:]), JUDGING, (1.0, 1.0)) is None
    assert cascade_trial(result(0.0, first_ms=1.0), OTHER, answer, JUDGING, (1.0, 1.0)) is None
    assert cascade_trial(ONE, replace(OTHER, failed=True), answer, JUDGING, (1.0, 1.0)) is None


def test_the_probe_is_a_route_that_never_doubts() -> None:
    route = tomllib.loads(probe(JUDGING))["routes"][PROBE]
    policy = Cascade.model_validate(route)
    assert (policy.doubt.mean_logprob, policy.doubt.min_logprob, policy.doubt.margin) == (-100, -100, 0)
    assert policy.doubt.refusals == []
