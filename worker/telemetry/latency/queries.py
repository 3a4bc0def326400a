"""The queries of the latency page over the roll-ups. Operators see all tenants; others see their own. A query that
several viewers send at the same time is computed once, and cached for a moment.

What is found is summed up, or two of them compared, to see which part of a response got slower and which differences
may be chance. That is pure and takes milliseconds for a month: call it in a thread. Quantiles have intervals by order
statistics (Conover 1999, "Practical Nonparametric Statistics", 3.2), differences those of Zou and Donner 2008,
"Construction of confidence limits about effect measures" (MOVER), which need nothing but the intervals of both sides.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias

from inference.lru_cache import LruCache
from inference.prompt import Cause
from migrations.pool import Database
from worker.auth.principal import Principal
from worker.telemetry.latency import rollups
from worker.telemetry.latency.measures import DAY_S, MISS, SPAN, STATUS, Slice, Tally, TimeRange, visible
from worker.telemetry.latency.rollups import Row
from worker.telemetry.latency.spending import Spending, per_thousand

KEPT_S = 2.0  # shorter than the polling interval of the pages
KEPT_MAX = 64  # results of some kilobytes; beyond it the oldest are evicted
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


P = ParamSpec("P")
Viewing: TypeAlias = Callable[Concatenate["LatencyQueries", Principal, P], Coroutine[Any, Any, View]]


def shared(kept_s: float) -> Callable[[Viewing[P]], Viewing[P]]:
    """A view that is computed once for all who ask for the same at about the same time."""

    def declare(compute: Viewing[P]) -> Viewing[P]:
        async def view(self: LatencyQueries, principal: Principal, /, *asked: P.args, **named: P.kwargs) -> View:
            key = compute.__name__, None if principal.is_operator else principal.tenant_id, asked
            return await self._share(key, partial(compute, self, principal, *asked, **named), kept_s)

        return view

    return declare


class LatencyQueries:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept = LruCache[Hashable, tuple[float, asyncio.Task[View]]](KEPT_MAX)  # and when each was asked for

    @shared(KEPT_S)
    async def summary(self, principal: Principal, asked: LatencyQuery) -> View:
        """Goodput and percentiles: of all responses, by surface, by span; and the values to filter by."""
        time_range = asked.time_range(time.time())
        async with visible(self._database, principal) as connection:
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

    @shared(OFFERED_KEPT_S)
    async def _offer(self, principal: Principal, time_range: TimeRange) -> View:
        """The values to filter by, independent of the current filter."""
        async with visible(self._database, principal) as connection:
            return facets(await rollups.choices(connection, time_range), await rollups.names(connection, time_range))

    @shared(KEPT_S)
    async def series(self, principal: Principal, asked: LatencyQuery) -> View:
        """The same over time; for operators also the load of the workers."""
        time_range = asked.time_range(time.time())
        async with visible(self._database, principal) as connection:
            points = await rollups.points(connection, time_range, asked.slice)
            workers = await rollups.worker_points(connection, time_range) if principal.is_operator else []
        found = await asyncio.to_thread(series, time_range, points)
        return {**found, **_columns(workers, found["at"])}

    @shared(KEPT_S)
    async def comparison(self, principal: Principal, asked: LatencyQuery, against: LatencyQuery) -> View:
        """Compares the spans of two time ranges and slices."""
        now = time.time()
        time_ranges = [each.time_range(now) for each in (asked, against)]
        async with visible(self._database, principal) as connection:
            one = await rollups.groups(connection, time_ranges[0], asked.slice)
            other = await rollups.groups(connection, time_ranges[1], against.slice)
            names = await rollups.span_names(connection)
        rows = await asyncio.to_thread(lambda: compared(_tally(one), _tally(other), names))
        now_range, then_range = ({"start": each.start, "end": each.end} for each in time_ranges)
        return {"now": now_range, "then": then_range, "rows": rows}

    @shared(USUAL_KEPT_S)
    async def usual(self, principal: Principal, surface: str) -> View:
        """Median and 95th percentile of each span on a surface, and of `tpot`, if enough turns had it."""
        time_range = LatencyQuery(USUAL_S, Slice()).time_range(time.time())
        async with visible(self._database, principal) as connection:
            groups = await rollups.groups(connection, time_range, Slice(surface=surface))
            names = await rollups.span_names(connection)
        return await asyncio.to_thread(usual, groups, names, USUAL_TURNS_MIN)

    async def _share(self, key: Hashable, compute: Callable[[], Coroutine[Any, Any, View]], kept_s: float) -> View:
        """A caller that is cancelled does not cancel the query for the others. Failures are not cached."""
        now = time.monotonic()
        asked_at, answer = self._kept.get(key) or (-math.inf, None)
        if answer is None or now - asked_at >= kept_s or _failed(answer):
            answer = asyncio.create_task(compute(), name="latency view")
            self._kept.put(key, (now, answer))
        return dict(await asyncio.shield(answer))


def _failed(answer: asyncio.Task[View]) -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)


def _columns(workers: list[dict[str, Any]], at: list[int]) -> Mapping[str, Any]:
    by_point = {row["at"]: row for row in workers}
    return {
        name: [by_point[moment][name] if moment in by_point else None for moment in at]
        for name in ("running", "waiting", "loop_lag_ms", "kv_use")
    }


async def cost_summary(database: Database, principal: Principal, asked: LatencyQuery) -> list[dict[str, Any]]:
    """The groups with the most responses first; empty for slices without stored costs. Costs are stored per hour, so
    the hours at both ends count in full."""
    if not asked.slice.has_costs:
        return []
    time_range = asked.time_range(time.time())
    async with visible(database, principal) as connection:
        groups = await rollups.groups(connection, time_range, asked.slice)
    spent = await Spending(database).board(principal, asked.slice, start=time_range.start, end=time_range.end)
    return await asyncio.to_thread(board, spent, groups)


def board(spent: Sequence[Mapping[str, Any]], groups: Sequence[Row]) -> list[dict[str, Any]]:
    """Pure."""
    pieces: dict[tuple[str, str, str], list[bytes]] = defaultdict(list)
    for group in groups:
        pieces[group["surface"], group["model"], group["agent"]].append(group["measures"])
    rows = []
    for row in spent:
        tally = Tally(b"".join(pieces[row["surface"], row["model"], row["agent"]]))
        p50, p95 = tally.percentiles((0.5, 0.95), "ttft")
        rows.append({**row, **per_thousand(row), "ttft_ms": {"p50": p50, "p95": p95}})
    return rows


QUANTILES = (0.5, 0.95, 0.99)
NAMES = ("p50", "p95", "p99")
TIMES = ("ttft", "ttfa", "tpot", "duration")
TURNS = ("duration", "turned_away")  # each turn has one of them
CAUSES = tuple(map(str, Cause))
DIMENSIONS = ("surface", "model", "agent", "tenant_id")
# The chronological order of spans; tools stand before the end, and unknown spans at the end.
ORDER = (
    *("edge", "auth", "jwks", "hydrate", "retrieve", "open", "embed", "search", "fuse", "rerank", "read", "reread"),
    *("compress", "prefill_prefix", "assemble", "tokenize", "connect", "queue", "prefill", "first_token"),
    "first_answer",
    *("decode", "engine", "tools", "tool:", "flush"),
)


def _tally(groups: Iterable[Row]) -> Tally:
    return Tally(b"".join(group["measures"] for group in groups))


def summary(groups: Sequence[Row], span_names: Iterable[str]) -> dict[str, Any]:
    """Totals of all responses, by surface (which includes embeddings and the like), and by span; and the values of each
    dimension.
    """
    by_surface: dict[str, list[bytes]] = defaultdict(list)
    for group in groups:
        by_surface[group["surface"]].append(group["measures"])
    overall = _tally(groups)
    surfaces = [
        {"surface": surface, **_answers(Tally(b"".join(pieces)), "call")} for surface, pieces in by_surface.items()
    ]
    return {
        **_answers(overall),
        "surfaces": sorted(surfaces, key=lambda row: (-row["requests"], row["surface"])),
        "spans": span_table(overall, span_names),
    }


def span_table(tally: Tally, span_names: Iterable[str]) -> list[dict[str, Any]]:
    """Spans of one name are summed within a turn."""
    return [
        {"name": name, "turns": turns, **_percentiles(tally, SPAN + name)}
        for name in in_order(span_names)
        if (turns := tally.amount(SPAN + name))
    ]


def in_order(span_names: Iterable[str]) -> list[str]:
    """In chronological order."""
    return sorted(span_names, key=lambda name: (_place(name), name))


def usual(groups: Sequence[Row], span_names: Iterable[str], turns_min: int) -> dict[str, dict[str, float | None]]:
    """Median and 95th percentile of each span and time that enough turns had."""
    tally = _tally(groups)
    rows = span_table(tally, span_names)
    rows += [{"name": name, "turns": tally.amount(name), **_percentiles(tally, name)} for name in TIMES]
    return {row["name"]: {"p50_ms": row["p50"], "p95_ms": row["p95"]} for row in rows if row["turns"] >= turns_min}


def facets(choices: Iterable[Row], names: Sequence[Row]) -> dict[str, list[str]]:
    """The values of each dimension without a fixed set of values, those with the most data first."""
    sizes: dict[str, dict[str, int]] = {name: defaultdict(int) for name in DIMENSIONS}
    for choice in choices:
        for name in DIMENSIONS:
            sizes[name][str(choice[name])] += choice["size"]
    ordered = {name: sorted(values, key=lambda value: (-values[value], value)) for name, values in sizes.items()}
    found = {name.removesuffix("_id"): [value for value in values if value] for name, values in ordered.items()}
    return found | {
        "key": list(dict.fromkeys(each["key_id"] for each in names if each["key_id"])),
        "worker": list(dict.fromkeys(each["worker"] for each in names if each["worker"])),
    }


def series(time_range: TimeRange, points: Iterable[Row]) -> dict[str, Any]:
    """Columns over time, one value for each step; None for steps without data."""
    known = {point["at"]: _answers(Tally(point["measures"])) for point in points}
    at = list(range(time_range.start, time_range.end, time_range.step_s))
    answers = [known.get(moment) for moment in at]
    counts = ("requests", "failed", "judged", "within_target", "prompt_tokens", "cached_tokens", "drafted", "accepted")
    return {
        "start": time_range.start,
        "end": time_range.end,
        "step_s": time_range.step_s,
        "at": at,
        **{name: [each[name] if each else 0 for each in answers] for name in counts},
        "misses": {cause: [each["misses"][cause] if each else 0 for each in answers] for cause in CAUSES},
        **{
            f"{name}_ms": {p: [each[f"{name}_ms"][p] if each else None for each in answers] for p in NAMES}
            for name in TIMES
        },
    }


def _answers(tally: Tally, *also: str) -> dict[str, Any]:
    """Counts and times; turns with one of the measures `also` count as responses."""
    return {
        "requests": sum(map(tally.amount, (*TURNS, *also))),
        **{status: tally.amount(STATUS + status) for status in ("failed", "refused", "invalid")},
        "judged": tally.amount("judged"),
        "within_target": tally.amount("within"),
        "prompt_tokens": tally.amount("prompt_tokens"),
        "cached_tokens": tally.amount("cached_tokens"),
        "output_tokens": tally.amount("output_tokens"),
        "drafted": tally.amount("drafted"),
        "accepted": tally.amount("accepted"),
        "misses": {cause: tally.amount(MISS + cause) for cause in CAUSES},
        "ttft_ms": _percentiles(tally, "ttft"),
        "ttfa_ms": _percentiles(tally, "ttfa"),
        "tpot_ms": _percentiles(tally, "tpot"),
        "duration_ms": _percentiles(tally, "duration", *also),
    }


def _percentiles(tally: Tally, *measures: str) -> dict[str, float | None]:
    return dict(zip(NAMES, tally.percentiles(QUANTILES, *measures), strict=True))


def _place(name: str) -> int:
    known = "tool:" if name.startswith("tool:") else name
    return ORDER.index(known) if known in ORDER else len(ORDER)


Z = 1.96  # for 95 %
TURNS_MIN = 5  # with fewer, a median has no interval
COMPARED = {"p50": 0.5, "p95": 0.95}

Verdict: TypeAlias = Literal["slower", "faster", "same", "unknown"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantile in milliseconds, with its 95 % confidence interval."""

    ms: float
    low_ms: float
    high_ms: float


def compared(now: Tally, then: Tally, span_names: Iterable[str]) -> list[dict[str, Any]]:
    """The durations of whole responses, then of spans in chronological order; those that occur on either side."""
    rows = [(name, name) for name in TIMES] + [(name, SPAN + name) for name in in_order(span_names)]
    return [
        {"name": name, "turns": now.amount(measure), "turns_then": then.amount(measure)}
        | {p: _quantile(now, then, measure, q) for p, q in COMPARED.items()}
        for name, measure in rows
        if now.amount(measure) or then.amount(measure)
    ]


def _quantile(now: Tally, then: Tally, measure: str, quantile: float) -> dict[str, Any]:
    one, other = estimate(now, measure, quantile), estimate(then, measure, quantile)
    row: dict[str, Any] = {"ms": one and one.ms, "then_ms": other and other.ms}
    if one is None or other is None:
        return row | {"change_ms": None, "low_ms": None, "high_ms": None, "verdict": "unknown"}
    low, high = difference(one, other)
    verdict: Verdict = "slower" if low > 0 else "faster" if high < 0 else "same"
    if min(now.amount(measure), then.amount(measure)) < TURNS_MIN:
        verdict = "unknown"
    change = round(one.ms - other.ms, 3)
    return row | {"change_ms": change, "low_ms": round(low, 3), "high_ms": round(high, 3), "verdict": verdict}


def estimate(tally: Tally, measure: str, quantile: float) -> Estimate | None:
    """None without values."""
    count = tally.amount(measure)
    if not count:
        return None
    half = Z * math.sqrt(quantile * (1 - quantile) / count)
    bounds = (quantile, max(0.0, quantile - half), min(1.0, quantile + half))
    ms, low, high = (value or 0.0 for value in tally.percentiles(bounds, measure))
    return Estimate(ms, low, high)


def difference(one: Estimate, other: Estimate) -> tuple[float, float]:
    """The confidence interval of `one.ms - other.ms`."""
    change = one.ms - other.ms
    low = change - math.hypot(one.ms - one.low_ms, other.high_ms - other.ms)
    high = change + math.hypot(one.high_ms - one.ms, other.ms - other.low_ms)
    return low, high
