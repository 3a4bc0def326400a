"""What the bounds of a credential leave of a turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.definition import Bounds, Definition
from agents.turn import Caps, Limits, Owner
from inference.generation import Priority
from tests.agents.turns import TENANT, asked
from worker.auth.principal import KeyLimits, Principal


def guest(bounds: KeyLimits | None) -> Principal:
    return Principal(TENANT, "key_1", frozenset(), "api_key", bounds)


@pytest.mark.parametrize("asked_steps", [None, 8, 9, 64])
@pytest.mark.parametrize("own", [7, Limits().steps, 9])
def test_a_turn_never_gets_more_than_its_credential_allows(own: int, asked_steps: int | None) -> None:
    generous = Definition(budget=Bounds(steps=64))
    turn = guest(KeyLimits(steps=own)).bounded(generous.applied(asked(caps=Caps(steps=asked_steps))))
    assert turn.limits.steps == min(own, asked_steps or own)


def test_what_a_credential_does_not_bound_is_as_the_agent_has_it() -> None:
    turn = Definition(budget=Bounds(steps=64, calls=99)).applied(asked())
    bounded = guest(KeyLimits(steps=3, seconds=9, tool_seconds=2, tokens=50, thought_tokens=7, cost=1)).bounded(turn)
    told = Limits(steps=3, calls=99, seconds=9, tool_seconds=2, tokens=50, thought_tokens=7, cost=1)
    assert bounded.limits == replace(told, answer_s=9, answer_tokens=50, seconds_by=Owner.KEY, tokens_by=Owner.KEY)
    assert guest(None).bounded(turn) == guest(KeyLimits()).bounded(turn) == turn


def test_a_credential_names_the_best_class_of_its_turns() -> None:
    assert guest(KeyLimits.model_validate({"class": "standard"})).best_class is Priority.STANDARD
    assert guest(KeyLimits.model_validate({"class": "batch"})).best_class is Priority.BATCH
    assert guest(KeyLimits(steps=1)).best_class is guest(None).best_class is Priority.INTERACTIVE
