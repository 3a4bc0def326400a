"""Whether the branches of a union are disjoint: no value fits two of them. When in doubt, they are not.

Each branch and each constant is visited once per candidate property, because schemas are untrusted input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TELLING_MAX = 8  # required properties that are tried; discriminators are among the first


def are_disjoint(branches: Sequence[Any]) -> bool:
    """By type; and branches that are objects or list their values, by constants."""
    if not all(isinstance(branch, Mapping) for branch in branches):
        return False
    constants = [_constants(branch) for branch in branches]
    named = [values for values in constants if values is not None]
    others = [branch for branch, values in zip(branches, constants, strict=True) if values is None]
    objects = [branch for branch in others if _kinds(branch) == {"object"}]
    kinds = [_kinds(branch) for branch in others if _kinds(branch) != {"object"}]
    kinds += [{"object"}] if objects else []
    kinds += [{_kind_of(text) for values in named for text in values}] if named else []
    return _distinct(kinds) and _distinct(named) and _told_apart(objects)


def _told_apart(objects: Sequence[Mapping[str, Any]]) -> bool:
    if len(objects) < 2:
        return True
    required = [_required(branch) for branch in objects]
    common = [name for name in required[0] if all(name in names for names in required[1:])]
    return any(
        _distinct([_constants(branch["properties"][name]) for branch in objects]) for name in common[:TELLING_MAX]
    )


def _distinct(sets: Sequence[set[str] | None]) -> bool:
    """Whether the sets are pairwise disjoint; None and an empty set stand for any value."""
    seen: set[str] = set()
    for each in sets:
        if not each or not seen.isdisjoint(each):
            return False
        seen |= each
    return True


def _constants(schema: Any) -> set[str] | None:
    """The values that a schema allows, if it lists them."""
    if isinstance(schema, Mapping) and "const" in schema:
        return {json.dumps(schema["const"], sort_keys=True)}
    if isinstance(schema, Mapping) and isinstance(schema.get("enum"), list):
        return {json.dumps(value, sort_keys=True) for value in schema["enum"]}
    return None


def _kind_of(text: str) -> str:
    return {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}.get(
        text[0], "number"
    )


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types of a schema; an integer counts as a number."""
    said = schema.get("type")
    kinds = said if isinstance(said, list) else [said]
    return {"number" if kind == "integer" else kind for kind in kinds if isinstance(kind, str)}


def _required(schema: Mapping[str, Any]) -> dict[str, None]:
    """Names of required properties, in the order of the schema."""
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, Mapping):
        return {}
    return {name: None for name in properties if name in set(filter(_is_text, required))}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
