"""Which answers come in time: by the targets of their surface, whatever it is called."""

from __future__ import annotations

from math import inf

import pytest

from agents.definition import Surface
from worker.runs.record import USUAL_TARGETS, Target, Targets
from worker.telemetry.prometheus import SURFACES_MAX, WINDOWS_S, BurnRate

TARGETS = Targets.parse("chat=500/100, kiosk-2=50.5/20")


def test_targets_are_read_by_surface() -> None:
    assert TARGETS.by_surface == {"chat": Target(500, 100), "kiosk-2": Target(50.5, 20)}
    assert {"chat", "embedded"} <= Targets.parse(USUAL_TARGETS).by_surface.keys()
    assert Targets.parse("").by_surface == {}


@pytest.mark.parametrize("text", ["chat", "chat=500", "chat=fast/100", "chat=-1/100", "=1/2", "Chat=1/2", "chat=1/2/3"])
def test_what_is_no_target_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"must look like chat=500/100, not '{text}'"):
        Targets.parse(f"voice=300/50,{text}")


def test_a_file_sets_what_it_names_and_leaves_the_rest() -> None:
    slow, new, plain = Surface(first_token_ms=900), Surface(pace_ms=40, first_answer_ms=2000), Surface(tokens=5)
    told = TARGETS.with_those_of({"chat": slow, "desk": new, "kiosk-2": plain, "batch": plain}).by_surface
    assert told == {"chat": Target(900, 100), "kiosk-2": Target(50.5, 20), "desk": Target(inf, 40, 2000)}
    assert str(told["desk"]) == "first answer 2000 ms, pace 40 ms"


def test_a_surface_has_one_target() -> None:
    with pytest.raises(ValueError, match="names chat twice"):
        Targets.parse("chat=1/2,chat=3/4")


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "met"),
    [(500, 100, True), (500.1, 100, False), (500, 100.1, False), (20, None, True), (None, None, False)],
)
def test_an_answer_is_in_time_where_it_begins_and_goes_on_in_time(
    ttft_ms: float | None, tpot_ms: float | None, met: bool
) -> None:
    assert TARGETS.met("chat", "completed", ttft_ms, tpot_ms, 10**6) is met


@pytest.mark.parametrize(("ttfa_ms", "met"), [(900, True), (900.1, False), (None, True)])
def test_an_answer_may_have_to_begin_in_time_behind_its_reasoning(ttfa_ms: float | None, met: bool) -> None:
    targets = TARGETS.with_those_of({"chat": Surface(first_answer_ms=900)})
    assert targets.met("chat", "completed", 10, 10, ttfa_ms) is met


@pytest.mark.parametrize(
    ("surface", "status", "met"),
    [
        ("chat", "incomplete", True),  # as long as it was allowed to be
        ("chat", "failed", False),
        ("chat", "refused", False),  # by a worker that had no room for it
        ("chat", "cancelled", None),
        ("chat", "invalid", None),
        ("batch", "completed", None),
    ],
)
def test_a_failure_is_never_in_time_and_what_nobody_waits_for_is_not_judged(
    surface: str, status: str, met: bool | None
) -> None:
    assert TARGETS.met(surface, status, 10, 10, 10) is met


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
