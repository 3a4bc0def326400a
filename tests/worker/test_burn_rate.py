"""How fast late answers are used up, on a clock of its own."""

from __future__ import annotations

import pytest

from worker.burn_rate import SURFACES_MAX, WINDOWS_S, BurnRate


def rates(burn_rate: BurnRate, now_s: float) -> dict[str, float]:
    return {window: rate for surface, window, rate in burn_rate.rates(now_s) if surface == "chat"}


def test_as_many_late_ones_as_are_allowed_burn_at_one() -> None:
    burn_rate = BurnRate(0.95)
    for number in range(100):
        burn_rate.add("chat", number % 20 != 0, 0.0)
    assert rates(burn_rate, 1.0) == pytest.approx(dict.fromkeys(WINDOWS_S, 1.0))


def test_a_short_window_forgets_sooner_than_a_long_one() -> None:
    burn_rate = BurnRate(0.9)
    burn_rate.add("chat", False, 0.0)
    for minute in range(1, 61):
        burn_rate.add("chat", True, 60.0 * minute)
    found = rates(burn_rate, 3600.0)
    assert (found["5m"], found["30m"]) == (0, 0)
    assert found["1h"] == found["6h"] == pytest.approx(10 / 61)


def test_what_is_older_than_the_longest_window_is_forgotten() -> None:
    burn_rate = BurnRate(0.9)
    for hour in range(100):
        burn_rate.add("chat", False, 3600.0 * hour)
    assert all(rate == pytest.approx(10) for window, rate in rates(burn_rate, 99 * 3600.0).items())
    assert set(rates(burn_rate, 10**7).values()) == {0.0}


def test_the_number_of_surfaces_is_bounded() -> None:
    burn_rate = BurnRate(0.9)
    for number in range(2 * SURFACES_MAX):
        burn_rate.add(f"s{number}", True, 0.0)
    assert len({surface for surface, _, _ in burn_rate.rates(0.0)}) == SURFACES_MAX
