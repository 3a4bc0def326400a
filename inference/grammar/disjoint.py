"""Whether the branches of a union can be told apart: no value fits two of them. Errs on the side of no."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def apart(branches: Sequence[Any]) -> bool:
    return all(_differ(one, other) for one, other in combinations(branches, 2))


def _differ(one: Any, other: Any) -> bool:
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    mine, others = _constants(one), _constants(other)
    if mine is not None and others is not None:
        return not mine & others
    kinds, other_kinds = _kinds(one), _kinds(other)
    if kinds and other_kinds and not kinds & other_kinds:
        return True
    return kinds == other_kinds == {"object"} and any(
        _differ_in(name, one, other) for name in _required(one) & _required(other)
    )


def _differ_in(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    mine, others = (_constants(schema["properties"][name]) for schema in (one, other))
    return mine is not None and others is not None and not mine & others


def _constants(schema: Any) -> set[str] | None:
    """The values that a schema lets through, if it names them."""
    if isinstance(schema, Mapping) and "const" in schema:
        return {json.dumps(schema["const"], sort_keys=True)}
    if isinstance(schema, Mapping) and isinstance(schema.get("enum"), list):
        return {json.dumps(value, sort_keys=True) for value in schema["enum"]}
    return None


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Types; a whole number is a number."""
    said = schema.get("type")
    kinds = said if isinstance(said, list) else [said]
    return {"number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)}


def _required(schema: Mapping[str, Any]) -> set[str]:
    required = schema.get("required")
    properties = schema.get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    return (
        {name for name in required if isinstance(name, str) and name in named} if isinstance(required, list) else set()
    )
