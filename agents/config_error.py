"""Messages for errors that pydantic finds in configuration files, for operators. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


def describe_error(problem: Mapping[str, Any], known: Iterable[str]) -> str:
    """`problem` is one of a ValidationError's errors; `known` are the keys that exist, wherever they are allowed."""
    told = problem["msg"].removeprefix("Value error, ")
    context = problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            written = str(problem["loc"][-1])
            return f"there is no such key{did_you_mean(written, known)}"
        case "missing":
            return "is missing"
        case "union_tag_invalid":
            key, written = context["discriminator"].strip("'"), context["tag"]
            tags = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
            return f"{key} must be one of {', '.join(tags)}, not '{written}'{did_you_mean(written, tags)}"
    return str(told)


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """`; did you mean tools?`, or nothing without a similar key."""
    found = nearest(written, known)
    return f"; did you mean {found}?" if found else ""


def nearest(written: str, known: Iterable[str]) -> str | None:
    """The most similar of these names, if one is similar at all."""
    return next(iter(get_close_matches(written, sorted(set(known) - {written}), n=1)), None)


def keys_of(schema: Any) -> set[str]:
    """The keys of all objects in a JSON Schema."""
    if isinstance(schema, list):
        return set().union(*map(keys_of, schema))
    if not isinstance(schema, dict):
        return set()
    named = schema.get("properties", {})
    return set(named).union(*map(keys_of, schema.values()))
