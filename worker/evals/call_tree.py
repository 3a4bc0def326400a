"""Tool calls compared as syntax trees: by meaning, not by spelling. Pure.

After the AST evaluation of the Berkeley Function-Calling Leaderboard (Patil et al. 2025): arguments are compared value
by value, several values may be right, and an argument may be omitted if it is optional or has its default.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from worker.evals.answer import Called
from worker.evals.case import ExpectedCall, Tool

DEPTH_MAX = 32  # of arguments; no case expects a call with deeper nesting


def matched(expected: Sequence[ExpectedCall], called: Sequence[Called], tools: Sequence[Tool], ordered: bool) -> float:
    """The share of correct calls, of the expected or the made calls, whichever are more."""
    most = max(len(expected), len(called))
    if not most:
        return 1.0
    defaults = {tool.name: _defaults(tool) for tool in tools}
    fits = [[_fits(each, call, defaults.get(each.name, {})) for call in called] for each in expected]
    if ordered:
        return _in_order(fits) / most
    return _paired(fits, len(called)) / most


def normalised(value: Any, depth: int = 0) -> Any:
    """Equal for equal meaning: numbers by value, texts independent of their spelling, keys in any order.

    Raises ValueError if it is nested too deeply.
    """
    if depth > DEPTH_MAX:
        raise ValueError("nested too deeply")
    match value:
        case bool() | None:
            return value
        case int() | float():
            return float(value) if abs(value) < 2**53 else value
        case str():
            return " ".join(unicodedata.normalize("NFC", value).split())
        case Mapping():
            return {str(key): normalised(each, depth + 1) for key, each in value.items()}
        case list() | tuple():
            return [normalised(each, depth + 1) for each in value]
    return value


def _fits(expected: ExpectedCall, called: Called, defaults: Mapping[str, Any]) -> bool:
    if called.name != expected.name:
        return False
    try:
        arguments = orjson.loads(called.arguments or "{}")
        told = normalised(arguments)
        if not isinstance(told, dict) or told.keys() - expected.arguments.keys() - expected.also.keys() - {*defaults}:
            return False
        return all(
            _right(told, name, expected, defaults) for name in {*expected.arguments, *expected.also, *told.keys()}
        )
    except ValueError:
        return False


def _right(told: Mapping[str, Any], name: str, expected: ExpectedCall, defaults: Mapping[str, Any]) -> bool:
    accepted = [expected.arguments[name]] if name in expected.arguments else []
    accepted += expected.also.get(name, [])
    if not accepted:  # not expected: it may state the default explicitly
        accepted = [defaults[name]]
    wanted = [normalised(value) for value in accepted]
    if name in told:
        return any(_same(told[name], value) for value in wanted)
    return name in expected.optional or (name in defaults and normalised(defaults[name]) in wanted)


def _same(one: Any, other: Any) -> bool:
    """True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _defaults(tool: Tool) -> dict[str, Any]:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {
        name: schema["default"]
        for name, schema in properties.items()
        if isinstance(schema, Mapping) and "default" in schema
    }


def _in_order(fits: Sequence[Sequence[bool]]) -> int:
    """The longest subsequence of expected calls that were made in this order."""
    best = [0] * (len(fits[0]) + 1 if fits else 1)
    for row in fits:
        before = best.copy()
        for at, right in enumerate(row):
            best[at + 1] = max(best[at], before[at + 1], before[at] + right)
    return best[-1]


def _paired(fits: Sequence[Sequence[bool]], calls: int) -> int:
    """A maximum matching of expected calls and made calls that fit (augmenting paths: Kuhn 1955)."""
    partner: dict[int, int] = {}

    def augmented(row: int, seen: set[int]) -> bool:
        for at in range(calls):
            if fits[row][at] and at not in seen:
                seen.add(at)
                if at not in partner or augmented(partner[at], seen):
                    partner[at] = row
                    return True
        return False

    return sum(augmented(row, set()) for row in range(len(fits)))
