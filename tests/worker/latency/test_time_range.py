"""A stretch of time is read from as few rows as contain it, each value once."""

from __future__ import annotations

import pytest

from worker.latency.time_range import DAY_S, HOUR_S, MINUTE_S, POINTS_MAX, TimeRange

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("window_s", "step_s"),
    [(900, 60), (HOUR_S, 60), (6 * HOUR_S, 300), (DAY_S, 900), (7 * DAY_S, HOUR_S), (30 * DAY_S, 6 * HOUR_S)],
)
def test_the_steps_are_the_finest_that_can_be_drawn(window_s: int, step_s: int) -> None:
    time_range = TimeRange.of(NOW - window_s, NOW, NOW)
    assert time_range.step_s == step_s
    assert (
        time_range.start <= NOW - window_s < time_range.start + step_s
        and time_range.end - step_s < NOW <= time_range.end
    )
    assert (time_range.end - time_range.start) / step_s <= POINTS_MAX + 1


def test_minutes_that_are_gone_are_not_asked_for() -> None:
    assert TimeRange.of(NOW - 10 * DAY_S, NOW - 10 * DAY_S + HOUR_S, NOW).step_s == HOUR_S
    assert TimeRange.of(NOW - 100 * DAY_S, NOW - 99 * DAY_S, NOW).step_s == DAY_S


def test_a_sum_takes_whole_days_and_hours_a_chart_only_what_fits_its_steps() -> None:
    time_range = TimeRange.of(NOW - 7 * DAY_S, NOW, NOW)
    hours, days = time_range.parts(whole=True)
    assert time_range.start <= hours[0] <= days[0] < days[1] <= hours[1] <= time_range.end
    assert all(moment % DAY_S == 0 for moment in days) and all(moment % HOUR_S == 0 for moment in hours)
    assert time_range.parts(whole=False)[1] == (time_range.end, time_range.end)
    short = TimeRange(start=0, end=30 * MINUTE_S, step_s=MINUTE_S)
    assert short.parts(whole=True) == ((short.end, short.end), (short.end, short.end))
