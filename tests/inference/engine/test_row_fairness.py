"""Turns between tenants, on a device whose rows cost time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.fairness import RowFairness, Share

STEP_S, ROW_S, PAUSE_S = 0.004, 0.002, 0.1


def took_s(rows: int) -> float:
    return STEP_S + ROW_S * rows


class Device:
    """Each tenant has so many streams, all the time."""

    def __init__(self, **rows: int) -> None:
        self.rows, self.turns = rows, RowFairness(PAUSE_S)
        self.tokens = Counter[str]()
        self.seconds = 0.0

    def step(self, *present: str) -> set[str]:
        """Returns whose rows it had."""
        here = {tenant: self.rows[tenant] for tenant in present or self.rows}
        due_s = self.turns.due_s({tenant: Share(count, took_s(count)) for tenant, count in here.items()})
        assert all(took_s(here[tenant]) <= seconds for tenant, seconds in due_s.items())
        rows = {tenant: count for tenant, count in here.items() if tenant in due_s or not due_s}
        self.turns.charge(seconds := took_s(sum(rows.values())), rows)
        self.seconds += seconds
        self.tokens.update(rows)
        return set(rows)


def test_who_asks_for_little_gets_half_of_the_time_and_who_asks_for_much_the_other() -> None:
    device = Device(much=7, little=1)
    while device.seconds < 10:
        device.step()
    of_little, of_much = (device.tokens[tenant] * took_s(count) / count for tenant, count in device.rows.items())
    assert 0.45 <= device.tokens["little"] * took_s(1) / 10 <= 0.65 and of_much > 0 and of_little > 0
    assert device.tokens["much"] / 7 * took_s(8) / 10 >= 0.45


def test_tenants_that_ask_for_as_much_share_each_step() -> None:
    device = Device(one=2, other=2)
    assert all(device.step() == {"one", "other"} for _ in range(100))


def test_who_was_away_comes_back_with_little_credit_however_long_it_was() -> None:
    device = Device(much=7, little=1)
    for away in (5, 500):
        for _ in range(away):
            device.step("much")
        began_s, alone = device.seconds, 0
        while device.step() == {"little"}:
            alone += 1
        assert 0 < alone * took_s(1) <= PAUSE_S
        assert away == 5 or device.seconds - began_s > PAUSE_S


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True), min_size=1, max_size=200))
def test_whoever_comes_and_goes_the_rows_of_all_are_computed_now_and_then_and_few_tenants_are_known(
    present: list[list[str]],
) -> None:
    device = Device(**{tenant: 1 + place for place, tenant in enumerate("abcdefgh")})
    since_s = 0.0
    for tenants in present:
        if device.step(*tenants) == set(tenants):
            since_s = device.seconds
        assert device.seconds - since_s <= PAUSE_S + took_s(36)
    for _ in range(100):
        device.step("a")
    assert len(device.turns) == 1
