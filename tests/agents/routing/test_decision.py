"""What a route decides, for any situation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agents.routing.policy import Cascade, Cost, Fixed, Policy, Rules, Situation, Steps, decide, described, named_by

POLICY: TypeAdapter[Policy] = TypeAdapter(Policy)
SMALL_IS_CHEAP = {"small": Cost(0.1, 0.1), "large": Cost(1.0, 1.0)}
LARGE_IS_WARM = {"small": Cost(0.5, 0.5), "large": Cost(0.2, 0.2, warm=True)}

costs = st.builds(Cost, st.floats(0, 100), st.floats(0, 100), st.booleans(), st.booleans())
situations = st.builds(
    Situation,
    question_chars=st.integers(0, 100_000),
    prompt_chars=st.integers(0, 100_000),
    documents=st.integers(0, 50),
    offers_tools=st.booleans(),
    step=st.integers(0, 8),
    guess=st.sampled_from([lambda: "", lambda: "de", lambda: "en"]),
    costs=st.dictionaries(st.sampled_from(["small", "middle", "large"]), costs),
)
models = st.one_of(st.sampled_from(["small", "large"]), st.just(["small", "middle", "large"]))
conditions = st.fixed_dictionaries(
    {},
    optional={
        "question_chars_max": st.integers(0, 1000),
        "prompt_chars_min": st.integers(0, 1000),
        "documents_min": st.integers(0, 5),
        "tools": st.booleans(),
        "languages": st.just(["de", "fr"]),
    },
)
policies = st.one_of(
    st.builds(lambda model: {"policy": "fixed", "model": model}, models),
    st.just({"policy": "steps", "tools": "small", "answer": "large"}),
    st.just({"policy": "cascade", "first": "small", "then": "large"}),
    st.builds(
        lambda rules, otherwise: {"policy": "rules", "rules": rules, "otherwise": otherwise},
        st.lists(st.fixed_dictionaries({"when": conditions, "model": models}), min_size=1, max_size=4),
        models,
    ),
).map(POLICY.validate_python)


def route(**table: Any) -> Policy:
    return POLICY.validate_python(table)


@given(policies, situations)
def test_a_route_chooses_among_its_own_models_and_nothing_is_tried_against_itself(
    policy: Policy, situation: Situation
) -> None:
    decision = decide(policy, situation)
    assert decision.model in named_by(policy)
    assert decision.reason
    if decision.is_trial:
        assert decision.fallback in named_by(policy) and decision.fallback != decision.model


@given(policies, situations)
def test_the_same_situation_gets_the_same_decision(policy: Policy, situation: Situation) -> None:
    assert decide(policy, situation) == decide(policy, situation)


@given(situations)
def test_of_models_that_are_equally_good_none_is_cheaper_than_the_one_that_is_taken(situation: Situation) -> None:
    taken = decide(Fixed(model=["small", "middle", "large"]), situation).model
    assert situation.price(taken) == min(situation.price(name) for name in ("small", "middle", "large"))


@given(situations)
def test_the_better_model_of_a_cascade_begins_where_it_costs_no_more(situation: Situation) -> None:
    decision = decide(Cascade(policy="cascade", first="small", then="large"), situation)
    known = {"small", "large"} <= situation.costs.keys()
    no_dearer = known and situation.costs["large"].price <= situation.costs["small"].price
    assert (decision.model, decision.is_trial) == (("large", False) if no_dearer else ("small", True))


def test_a_cascade_begins_with_the_small_model_and_holds_it_back() -> None:
    decision = decide(route(policy="cascade", first="small", then="large"), Situation(costs=SMALL_IS_CHEAP))
    assert (decision.model, decision.fallback) == ("small", "large")
    assert (decision.hold.tokens, decision.hold.ms) == (8, 80)


def test_what_is_in_a_prompt_cache_is_cheaper() -> None:
    cascade = route(policy="cascade", first="small", then="large")
    assert decide(cascade, Situation(costs=LARGE_IS_WARM)).model == "large"
    either = route(policy="fixed", model=["small", "large"])
    assert decide(either, Situation(costs=LARGE_IS_WARM)).model == "large"
    assert decide(either, Situation(costs=SMALL_IS_CHEAP)).model == "small"


def test_by_step_the_small_model_is_tried_while_tools_may_be_called() -> None:
    steps = route(policy="steps", tools="small", answer="large")
    assert isinstance(steps, Steps)
    tried = decide(steps, Situation(offers_tools=True, costs=SMALL_IS_CHEAP))
    assert (tried.model, tried.fallback, tried.doubt) == ("small", "large", None)
    assert decide(steps, Situation(costs=SMALL_IS_CHEAP)).model == "large"


@pytest.mark.parametrize(
    ("when", "situation", "holds"),
    [
        ({"question_chars_max": 10}, Situation(question_chars=10), True),
        ({"question_chars_max": 10}, Situation(question_chars=11), False),
        ({"question_chars_min": 10}, Situation(question_chars=9), False),
        ({"prompt_chars_min": 10}, Situation(prompt_chars=10), True),
        ({"prompt_chars_max": 10}, Situation(prompt_chars=11), False),
        ({"languages": ["de", "fr"]}, Situation(guess=lambda: "de"), True),
        ({"languages": ["de", "fr"]}, Situation(guess=lambda: ""), False),
        ({"tools": True}, Situation(), False),
        ({"tools": False}, Situation(), True),
        ({"documents_min": 1}, Situation(), False),
        ({"documents_max": 2}, Situation(documents=2), True),
        ({"tools": True, "documents_min": 1}, Situation(documents=3), False),
        ({}, Situation(), True),
    ],
)
def test_a_rule_holds_when_all_of_its_conditions_do(when: dict[str, Any], situation: Situation, holds: bool) -> None:
    rules = route(policy="rules", rules=[{"when": when, "model": "small"}], otherwise="large")
    assert isinstance(rules, Rules)
    decision = decide(rules, situation)
    assert (decision.model, decision.reason) == (("small", "rule 1") if holds else ("large", "otherwise"))


def test_a_language_is_guessed_for_rules_that_ask_for_it_alone() -> None:
    asked = []
    situation = Situation(guess=lambda: asked.append(1) or "de")  # type: ignore[func-returns-value]
    decide(route(policy="rules", rules=[{"when": {"tools": True}, "model": "small"}], otherwise="large"), situation)
    assert not asked


def test_the_last_model_that_a_route_names_is_its_best() -> None:
    rules = route(
        policy="rules",
        rules=[{"when": {}, "model": "large"}, {"when": {}, "model": ["small", "middle"]}],
        otherwise="large",
    )
    assert named_by(rules)[-1] == "large"
    assert described(rules) == "large, small or middle by 2 rules, otherwise large"
    assert named_by(route(policy="cascade", first="small", then="large")) == ("small", "large")
