"""Which part of a response got slower: two tallies side by side, and which differences may be chance. Pure.

Quantiles have intervals by order statistics (Conover 1999, "Practical Nonparametric Statistics", 3.2), differences
those of Zou and Donner 2008, "Construction of confidence limits about effect measures" (MOVER), which need nothing but
the intervals of both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from worker.latency.histogram import Tally
from worker.latency.measures import SPAN
from worker.latency.summary import TIMES, in_order

Z = 1.96  # for 95 %
TURNS_MIN = 5  # with fewer, a median has no interval
QUANTILES = {"p50": 0.5, "p95": 0.95}

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
        | {p: _quantile(now, then, measure, q) for p, q in QUANTILES.items()}
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
