"""A time range of the roll-ups: its start and end, its number of points, and the rows that are read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
MINUTES_KEPT_S = 48 * HOUR_S  # by forget_latency, with an hour to spare
HOURS_KEPT_S = 32 * DAY_S
POINTS_MAX = 180  # more than a chart on a phone has pixels for
STEPS_S = (MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `start` up to `end`, in Unix seconds, in steps of `step_s`: both are multiples of it."""

    start: int
    end: int
    step_s: int

    @classmethod
    def of(cls, start: float, end: float, now: float) -> TimeRange:
        """The smallest range that contains both moments, with the finest steps that are stored and can be drawn."""
        kept_s = MINUTE_S if start >= now - MINUTES_KEPT_S else HOUR_S if start >= now - HOURS_KEPT_S else DAY_S
        length_s = max(1.0, end - start)
        step_s = next((s for s in STEPS_S if s >= kept_s and length_s / s <= POINTS_MAX), STEPS_S[-1])
        return cls(_floor(start, step_s), -_floor(-end, step_s), step_s)

    def parts(self, *, whole: bool) -> tuple[tuple[int, int], tuple[int, int]]:
        """The hours and the days that are read as one row each, as (first, end). Minutes are read outside these hours,
        hours outside these days. For points (`whole` is False) no row is coarser than a step."""
        hours = self._part(HOUR_S) if whole or self.step_s >= HOUR_S else (self.end, self.end)
        days = self._part(DAY_S) if whole or self.step_s >= DAY_S else (self.end, self.end)
        return hours, days

    def _part(self, unit_s: int) -> tuple[int, int]:
        first, end = -_floor(-self.start, unit_s), _floor(self.end, unit_s)
        return (first, end) if first < end else (self.end, self.end)


def _floor(at: float, unit_s: int) -> int:
    return int(at // unit_s) * unit_s
