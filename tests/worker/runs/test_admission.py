"""Turns over a cap are refused with a time to come back, and a place is free again however a turn ends."""

from __future__ import annotations

from contextlib import ExitStack
from uuid import uuid4

import pytest

from worker.config import Config
from worker.errors import ApiError
from worker.runs.admission import Admission

ALICE, BOB = uuid4(), uuid4()


def test_a_tenant_at_its_cap_is_refused_while_others_get_in() -> None:
    admission = Admission(turns_max=10, tenant_turns_max=2)
    with admission.turn(ALICE), admission.turn(ALICE):
        with pytest.raises(ApiError) as refused, admission.turn(ALICE):
            pass
        with admission.turn(BOB):
            assert admission.active == 3
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.retry_after_s is not None


def test_the_worker_at_its_cap_refuses_everybody() -> None:
    admission = Admission(turns_max=3, tenant_turns_max=3)
    with ExitStack() as turns:
        for _ in range(3):
            turns.enter_context(admission.turn(ALICE))
        with pytest.raises(ApiError, match="busy with 3 turns") as refused, admission.turn(BOB):
            pass
    assert (refused.value.status, refused.value.code) == (503, "overloaded")


def test_who_holds_much_leaves_room_for_those_who_hold_little() -> None:
    admission = Admission(turns_max=20, tenant_turns_max=20)
    with ExitStack() as turns:
        with pytest.raises(ApiError, match="what is free is left to others") as refused:
            for _ in range(20):
                turns.enter_context(admission.turn(ALICE))
        assert (refused.value.status, admission.active) == (429, 16)
        turns.enter_context(admission.turn(BOB))


def test_what_nobody_waits_for_takes_no_place_of_what_people_ask_for() -> None:
    admission = Admission(turns_max=16, tenant_turns_max=4)
    with ExitStack() as turns:
        for _ in range(4):
            turns.enter_context(admission.turn(ALICE, waited=False))
        with (
            pytest.raises(ApiError, match="4 turns of the class batch") as refused,
            admission.turn(ALICE, waited=False),
        ):
            pass
        assert refused.value.status == 429
        for _ in range(4):
            turns.enter_context(admission.turn(ALICE))
        with pytest.raises(ApiError, match="4 turns in progress, which is the limit"), admission.turn(ALICE):
            pass


def test_whoever_asks_for_it_what_nobody_waits_for_leaves_a_quarter_of_the_places() -> None:
    admission = Admission(turns_max=16, tenant_turns_max=4)
    with ExitStack() as turns:
        for tenant in (uuid4(), uuid4(), uuid4()):
            for _ in range(4):
                turns.enter_context(admission.turn(tenant, waited=False))
        with pytest.raises(ApiError, match="busy with 12 turns") as refused, admission.turn(BOB, waited=False):
            pass
        assert refused.value.status == 503
        turns.enter_context(admission.turn(BOB))


def test_the_most_choices_that_a_request_may_have_find_places_where_nobody_else_is() -> None:
    admission = Admission(Config().turns, Config().tenant_turns)
    with ExitStack() as turns:
        for _ in range(32):
            turns.enter_context(admission.turn(ALICE, waited=False))


def test_a_place_is_free_again_when_a_turn_fails() -> None:
    admission = Admission(turns_max=1, tenant_turns_max=1)
    for _ in range(2):
        with pytest.raises(RuntimeError), admission.turn(ALICE):
            raise RuntimeError
    assert admission.active == 0
