"""The queries of the latency page over the roll-ups. Operators see all tenants; others see their own.

A query that several viewers send at the same time is computed once, and cached for a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from migrations.pool import Database
from worker.auth.principal import Principal
from worker.telemetry.latency import rollups
from worker.telemetry.latency.measures import Tally
from worker.telemetry.latency.rollups import Group
from worker.telemetry.latency.slice import DAY_S, Slice, TimeRange, Visibility
from worker.telemetry.latency.spending import Spending, per_thousand
from worker.telemetry.latency.summary import compared, facets, series, summary, usual

KEPT_S = 2.0  # shorter than the polling interval of the pages
KEPT_MAX = 64  # results of some kilobytes; beyond it the oldest are evicted


@dataclass(frozen=True, slots=True)
class CachedResult:
    asked_at: float
    answer: asyncio.Task[Any]


class SingleFlight:
    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._kept: dict[Hashable, CachedResult] = {}

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[Any]]) -> Any:
        """A caller that is cancelled does not cancel the query for the others. Failures are not cached."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or now - kept.asked_at >= self._kept_s or _failed(kept.answer):
            self._kept.pop(key, None)
            while len(self._kept) >= KEPT_MAX:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[key] = CachedResult(now, asyncio.create_task(_result(compute), name="latency view"))
        return await asyncio.shield(kept.answer)


async def _result(compute: Callable[[], Awaitable[Any]]) -> Any:
    return await compute()


def _failed(answer: asyncio.Task[Any]) -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)


USUAL_S = DAY_S  # the usual values are those of the last day
USUAL_KEPT_S = 30.0
OFFERED_KEPT_S = 30.0  # a new name may appear in the lists this much later
USUAL_TURNS_MIN = 5  # with fewer turns there is no usual value

View: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LatencyQuery:
    """The last `window_s` seconds, or from one moment to another (Unix seconds)."""

    window_s: float
    slice: Slice
    start: float | None = None
    end: float | None = None

    def time_range(self, now: float) -> TimeRange:
        end = now if self.end is None else self.end
        return TimeRange.of(end - self.window_s if self.start is None else self.start, end, now)


class LatencyQueries:
    """A result is shared by all viewers who send the same query at about the same time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._shared = SingleFlight()
        self._usual = SingleFlight(USUAL_KEPT_S)
        self._offered = SingleFlight(OFFERED_KEPT_S)

    async def summary(self, principal: Principal, asked: LatencyQuery) -> View:
        """Goodput and percentiles: of all responses, by surface, by span; and the values to filter by."""

        async def compute() -> View:
            time_range = asked.time_range(time.time())
            async with Visibility.of(principal).open(self._database) as connection:
                groups = await rollups.groups(connection, time_range, asked.slice)
                spans = await rollups.span_names(connection)
            found = await asyncio.to_thread(summary, groups, spans)
            offered = await self._offer(principal, time_range)
            return {
                "window_s": asked.window_s,
                "start": time_range.start,
                "end": time_range.end,
                **found,
                "facets": offered if principal.is_operator else offered | {"tenant": [], "worker": []},
            }

        return await self._share("summary", principal, asked, compute)

    async def _offer(self, principal: Principal, time_range: TimeRange) -> dict[str, list[str]]:
        """The values to filter by, independent of the current filter."""

        async def compute() -> Any:
            async with Visibility.of(principal).open(self._database) as connection:
                return facets(
                    await rollups.choices(connection, time_range), await rollups.names(connection, time_range)
                )

        found: dict[str, list[str]] = await self._offered.get((Visibility.of(principal), time_range), compute)
        return found

    async def series(self, principal: Principal, asked: LatencyQuery) -> View:
        """The same over time; for operators also the load of the workers."""

        async def compute() -> View:
            time_range = asked.time_range(time.time())
            async with Visibility.of(principal).open(self._database) as connection:
                points = await rollups.points(connection, time_range, asked.slice)
                workers = await rollups.worker_points(connection, time_range) if principal.is_operator else []
            found = await asyncio.to_thread(series, time_range, points)
            return {**found, **_columns(workers, found["at"])}

        return await self._share("series", principal, asked, compute)

    async def comparison(self, principal: Principal, asked: LatencyQuery, against: LatencyQuery) -> View:
        """Compares the spans of two time ranges and slices."""

        async def compute() -> View:
            now = time.time()
            time_ranges = [each.time_range(now) for each in (asked, against)]
            async with Visibility.of(principal).open(self._database) as connection:
                one = await rollups.groups(connection, time_ranges[0], asked.slice)
                other = await rollups.groups(connection, time_ranges[1], against.slice)
                names = await rollups.span_names(connection)
            rows = await asyncio.to_thread(_compare, one, other, names)
            told = [{"start": time_range.start, "end": time_range.end} for time_range in time_ranges]
            return {"now": told[0], "then": told[1], "rows": rows}

        return await self._share(f"comparison with {against}", principal, asked, compute)

    async def usual(self, principal: Principal, surface: str) -> dict[str, dict[str, float]]:
        """Median and 95th percentile of each span on a surface, and of `tpot`, if enough turns had it."""

        async def compute() -> Any:
            time_range = LatencyQuery(USUAL_S, Slice()).time_range(time.time())
            async with Visibility.of(principal).open(self._database) as connection:
                groups = await rollups.groups(connection, time_range, Slice(surface=surface))
                names = await rollups.span_names(connection)
            return await asyncio.to_thread(usual, groups, names, USUAL_TURNS_MIN)

        found: dict[str, dict[str, float]] = await self._usual.get((Visibility.of(principal), surface), compute)
        return found

    async def _share(
        self, what: str, principal: Principal, asked: LatencyQuery, compute: Callable[[], Awaitable[View]]
    ) -> View:
        found: View = await self._shared.get((what, Visibility.of(principal), asked), compute)
        return dict(found)


def _compare(one: Sequence[Group], other: Sequence[Group], names: list[str]) -> list[dict[str, Any]]:
    now, then = (Tally(b"".join(group.measures for group in groups)) for groups in (one, other))
    return compared(now, then, names)


def _columns(workers: list[dict[str, Any]], at: list[int]) -> Mapping[str, Any]:
    by_point = {row["at"]: row for row in workers}
    return {
        name: [by_point[moment][name] if moment in by_point else None for moment in at]
        for name in ("running", "waiting", "loop_lag_ms", "kv_use")
    }


QUANTILES = (0.5, 0.95)


async def cost_summary(database: Database, principal: Principal, asked: LatencyQuery) -> list[dict[str, Any]]:
    """The groups with the most responses first; empty for slices without stored costs. Costs are stored per hour, so
    the hours at both ends count in full."""
    if not asked.slice.has_costs:
        return []
    time_range = asked.time_range(time.time())
    async with Visibility.of(principal).open(database) as connection:
        groups = await rollups.groups(connection, time_range, asked.slice)
    spent = await Spending(database).board(principal, asked.slice, start=time_range.start, end=time_range.end)
    return await asyncio.to_thread(board, spent, groups)


def board(spent: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Pure."""
    pieces: dict[tuple[str, str, str], list[bytes]] = defaultdict(list)
    for group in groups:
        pieces[group.surface, group.model, group.agent].append(group.measures)
    rows = []
    for row in spent:
        tally = Tally(b"".join(pieces[row["surface"], row["model"], row["agent"]]))
        p50, p95 = tally.percentiles(QUANTILES, "ttft")
        rows.append({**row, **per_thousand(row), "ttft_ms": {"p50": p50, "p95": p95}})
    return rows
