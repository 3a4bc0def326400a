"""Copies of frozen dataclasses with other values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from agents.turn import Limits
from inference.changed import changed
from inference.generation import Sampling


@pytest.mark.parametrize("given", [Sampling(), Sampling(top_k=40, seed=3, logit_bias={1: 2.0}), Limits(steps=3)])
def test_a_changed_copy_is_what_the_standard_library_makes(given: Sampling | Limits) -> None:
    assert changed(given) == given
    if isinstance(given, Sampling):
        assert changed(given, max_tokens=7, seed=None) == replace(given, max_tokens=7, seed=None) != given
    else:
        assert changed(given, cost=1.0) == replace(given, cost=1.0) != given


def test_what_a_copy_keeps_for_itself_is_not_copied() -> None:
    @dataclass(frozen=True)
    class Frame:
        id: str
        model: str = "a"
        told: list[str] = field(default_factory=list, init=False)

    one = Frame("x")
    one.told.append("said")
    assert changed(one, model="b") == replace(one, model="b") == Frame("x", "b")


def test_there_is_no_value_without_a_field() -> None:
    with pytest.raises(KeyError, match="max_token"):
        changed(Sampling(), max_token=7)  # type: ignore[call-arg]
