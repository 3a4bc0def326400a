"""Bounds of numbers, limited to what every JSON parser represents exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.keywords import at, is_a

LARGEST = 2**53 - 1  # integers up to here are exact in every parser; zod uses the same bound
DIGITS_MAX = 9  # decimal places of a bounded number: models may never stop writing threes
NEAR = 1e-6  # distance to an exclusive bound
STEPS_MAX = 1_000_000  # each remainder is a state of its own
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def integer(said: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Raises InvalidSchema."""
    bounds = _bounds(said, path)
    low = max(math.ceil(bounds.get("minimum", -LARGEST)), math.floor(bounds.get("exclusiveMinimum", -LARGEST - 1)) + 1)
    high = min(math.floor(bounds.get("maximum", LARGEST)), math.ceil(bounds.get("exclusiveMaximum", LARGEST + 1)) - 1)
    if low > high:
        raise InvalidSchema("no number lies between the bounds", path)
    return {"type": "integer", "minimum": low, "maximum": high, **_multiples(said, path)}


def decimal(said: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Without bounds it may have an exponent; with bounds, up to DIGITS_MAX decimal places. Raises InvalidSchema."""
    bounds, multiples = _bounds(said, path), _multiples(said, path)
    if not bounds:
        return {"type": "number", **multiples}
    if bounds.keys().isdisjoint(LOWER):
        bounds["minimum"] = -LARGEST
    if bounds.keys().isdisjoint(UPPER):
        bounds["maximum"] = LARGEST
    low = max(bounds[name] for name in LOWER if name in bounds)
    high = min(bounds[name] for name in UPPER if name in bounds)
    if low > high or (low == high and not _is_inside(low, bounds)):
        raise InvalidSchema("no number lies between the bounds", path)
    if not multiples and low < high and all(round(bound, DIGITS_MAX) == bound for bound in bounds.values()):
        multiples = {"multipleOf": 10**-DIGITS_MAX}
    apart = _apart(bounds, low, high)
    held = {"type": "number", **apart, **multiples}
    shorter = [
        v for v in sorted({each for bound in apart.values() for each in _shorter(bound)}) if _is_inside(v, bounds)
    ]
    return {"anyOf": [held, {"enum": shorter}]} if shorter and "multipleOf" not in said else held


def _apart(bounds: Mapping[str, float], low: float, high: float) -> dict[str, float]:
    """llguidance allows an integral exclusive bound if the other bound is less than one away."""
    apart = dict(bounds)
    if high - low < 1:
        if bounds.get("exclusiveMinimum") == low and low % 1 == 0:
            apart["minimum"] = apart.pop("exclusiveMinimum") + NEAR
        if bounds.get("exclusiveMaximum") == high and high % 1 == 0:
            apart["maximum"] = apart.pop("exclusiveMaximum") - NEAR
    return apart


def _shorter(bound: float) -> list[float]:
    """The bound and its prefixes: 0.75, 0.7 and 0. llguidance may require more digits of such numbers."""
    text = format(bound, f".{DIGITS_MAX}f").rstrip("0")
    return [float(text[:end]) for end in range(text.index("."), len(text) + 1)]


def _is_inside(value: float, bounds: Mapping[str, float]) -> bool:
    return bounds.get("minimum", value) <= value <= bounds.get("maximum", value) and bounds.get(
        "exclusiveMinimum", value - 1
    ) < value < bounds.get("exclusiveMaximum", value + 1)


def _bounds(said: Mapping[str, Any], path: str) -> dict[str, float]:
    """The bounds that are present, clipped to LARGEST."""
    bounds: dict[str, float] = {}
    for keyword in (*LOWER, *UPPER):
        value = said.get(keyword)
        if value is None:
            continue
        if not is_a("number", value) or not math.isfinite(value):
            raise InvalidSchema("a bound must be a finite number", at(path, keyword))
        bounds[keyword] = max(value, -LARGEST) if keyword in LOWER else min(value, LARGEST)
    return bounds


def _multiples(said: Mapping[str, Any], path: str) -> dict[str, float]:
    """llguidance scales the number by ten until it is integral, also in floating point."""
    value = said.get("multipleOf")
    if value is None:
        return {}
    if not is_a("number", value) or not 0 < value <= STEPS_MAX:
        raise InvalidSchema(f"multipleOf must be above 0 and at most {STEPS_MAX}", at(path, "multipleOf"))
    whole = float(value)
    while whole % 1 and whole <= STEPS_MAX:
        whole *= 10
    if whole > STEPS_MAX:
        raise InvalidSchema("this number has too many digits", at(path, "multipleOf"))
    return {"multipleOf": value}
