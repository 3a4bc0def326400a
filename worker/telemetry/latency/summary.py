"""Tallies in the form that pages and programs read: summed up, or two of them compared, to see
which part of a response got slower and which differences may be chance. Pure; takes milliseconds for a month: call it
in a thread.

Quantiles have intervals by order statistics (Conover 1999, "Practical Nonparametric Statistics", 3.2), differences
those of Zou and Donner 2008, "Construction of confidence limits about effect measures" (MOVER), which need nothing but
the intervals of both sides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from inference.prompt import Cause
from worker.telemetry.latency.measures import MISS, SPAN, STATUS, Tally
from worker.telemetry.latency.rollups import Choice, Group, Names, Point
from worker.telemetry.latency.slice import TimeRange

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


def summary(groups: Sequence[Group], span_names: Iterable[str]) -> dict[str, Any]:
    """Totals of all responses, by surface (which includes embeddings and the like), and by span; and the values of each
    dimension.
    """
    by_surface: dict[str, list[bytes]] = defaultdict(list)
    for group in groups:
        by_surface[group.surface].append(group.measures)
    overall = Tally(b"".join(group.measures for group in groups))
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


def usual(groups: Sequence[Group], span_names: Iterable[str], turns_min: int) -> dict[str, dict[str, float | None]]:
    """Median and 95th percentile of each span and time that enough turns had."""
    tally = Tally(b"".join(group.measures for group in groups))
    rows = span_table(tally, span_names)
    rows += [{"name": name, "turns": tally.amount(name), **_percentiles(tally, name)} for name in TIMES]
    return {row["name"]: {"p50_ms": row["p50"], "p95_ms": row["p95"]} for row in rows if row["turns"] >= turns_min}


def facets(choices: Iterable[Choice], names: Sequence[Names]) -> dict[str, list[str]]:
    """The values of each dimension without a fixed set of values, those with the most data first."""
    sizes: dict[str, dict[str, int]] = {name: defaultdict(int) for name in DIMENSIONS}
    for choice in choices:
        for name in DIMENSIONS:
            sizes[name][str(getattr(choice, name))] += choice.size
    ordered = {name: sorted(values, key=lambda value: (-values[value], value)) for name, values in sizes.items()}
    found = {name.removesuffix("_id"): [value for value in values if value] for name, values in ordered.items()}
    return found | {
        "key": list(dict.fromkeys(each.key for each in names if each.key)),
        "worker": list(dict.fromkeys(each.worker for each in names if each.worker)),
    }


def series(time_range: TimeRange, points: Iterable[Point]) -> dict[str, Any]:
    """Columns over time, one value for each step; None for steps without data."""
    known = {point.at: _answers(Tally(point.measures)) for point in points}
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
