"""What a trace tells of a trial becomes a case of the curve."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from agents.routing.policy import Cascade
from worker.evals.answer import Answer, Usage
from worker.evals.cascade_trial import PROBE, cascade_trial, probe
from worker.evals.outcome import Result

POLICY = Cascade(policy="cascade", first="small", then="large")
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
    found = cascade_trial(ONE, OTHER, Answer("Paris.", spans=SPANS), POLICY, (0.5, 2.0))
    assert found is not None
    assert found.costs == (0.1, 0.8) and found.scores == (0.0, 1.0)
    assert found.trial_cost == pytest.approx(0.1 * 140 / 180)
    assert found.first_ms == (100.0, 300.0) and found.held_ms == 20.0
    assert (found.mean_logprob, found.min_logprob, found.margin, found.surely) == (-0.2, -0.9, 0.3, False)


@pytest.mark.parametrize(("text", "took_over"), [("I don’t know that.", False), ("[7].", True)])
def test_refusals_and_flaws_are_taken_over_whatever_the_thresholds_are(text: str, took_over: bool) -> None:
    spans = (span("route", 0.1, **{**TRIAL, "took_over": took_over}), *SPANS[1:])
    found = cascade_trial(ONE, OTHER, Answer(text, spans=spans), POLICY, (1.0, 1.0))
    assert found is not None and found.surely


def test_an_answer_without_a_trial_or_without_its_times_is_no_case() -> None:
    answer = Answer("Paris.", spans=SPANS)
    assert cascade_trial(ONE, OTHER, replace(answer, spans=SPANS[1:]), POLICY, (1.0, 1.0)) is None
    assert cascade_trial(result(0.0, first_ms=1.0), OTHER, answer, POLICY, (1.0, 1.0)) is None
    assert cascade_trial(ONE, replace(OTHER, failed=True), answer, POLICY, (1.0, 1.0)) is None


def test_the_probe_is_a_route_that_never_doubts() -> None:
    route = tomllib.loads(probe(POLICY))["routes"][PROBE]
    policy = Cascade.model_validate(route)
    assert (policy.doubt.mean_logprob, policy.doubt.min_logprob, policy.doubt.margin) == (-100, -100, 0)
    assert policy.doubt.refusals == []
