"""JSON schemas of clients: limits on their size, and whether a grammar can enforce them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from inference.errors import InvalidSchema
from inference.grammar.schema import restated
from inference.grammar.unenforced_keywords import unenforced
from worker.wire import limits


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for a schema that is too large for a prompt."""
    level: list[Any] = [schema]
    for _ in range(limits.SCHEMA_DEPTH_MAX):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
    if level:
        raise ValueError(f"a schema may be nested at most {limits.SCHEMA_DEPTH_MAX} levels deep")
    if len(orjson.dumps(schema)) > limits.SCHEMA_BYTES_MAX:
        raise ValueError(f"a schema may be at most {limits.SCHEMA_BYTES_MAX} bytes long")
    return schema


def fits(schema: Mapping[str, Any]) -> bool:
    """Whether it is small enough for a prompt."""
    try:
        bounded(dict(schema))
    except ValueError:
        return False
    return True


def constrainable(schema: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Raises ValueError for a schema that no grammar can enforce, naming the place that prevents it.

    The check is linear in the schema. A schema that passes is compiled later, off the request path, and may be rejected
    then.
    """
    try:
        unenforced(restated(schema))
    except InvalidSchema as error:
        path = ".".join(part for part in (where, error.path) if part)
        raise ValueError(f"{path}: {error.reason}" if path else error.reason) from None
    return schema
