"""Frozen dataclasses that are made quickly, and copies of them with other values."""

from __future__ import annotations

import dataclasses
from dataclasses import field, replace

import pytest

from agents.turn import Limits
from inference.frozen import changed, dataclass
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


def test_what_is_frozen_for_the_type_checker_only_is_equal_and_hashed_like_what_is_frozen() -> None:
    @dataclass(frozen=True, slots=True)
    class Quick:
        a: int
        b: str = "b"

    @dataclasses.dataclass(frozen=True, slots=True)
    class Usual:
        a: int
        b: str = "b"

    assert Quick(1) == Quick(1, "b") != Quick(2)
    assert hash(Quick(1)) == hash(Usual(1))
    assert {Quick(1): "one"}[Quick(1)] == "one"
    assert repr(Quick(1)).endswith("Quick(a=1, b='b')")


def test_what_may_be_changed_has_no_hash() -> None:
    @dataclass(slots=True)
    class Counted:
        count: int = 0

    counted = Counted()
    counted.count += 1
    assert counted == Counted(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counted)
