"""The keywords of a JSON schema: which are known, and whether their values are what they must be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.numbers import LARGEST

# What says nothing about the value.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"}
    | {"$schema", "$id", "$comment", "$anchor", "$defs", "definitions"}
)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "format", "pattern"}),
    "number": frozenset(BOUNDS),
    "integer": frozenset(BOUNDS),
    "boolean": frozenset(),
    "null": frozenset(),
}


def types_of(said: Mapping[str, Any], path: str) -> list[str]:
    """The types of a schema, guessed from its keywords where it names none; empty: anything."""
    kinds = said.get("type")
    if kinds is None:
        return [kind for kind in ("object", "array", "string", "number") if KEYWORDS[kind] & said.keys()][:1]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not kinds or not all(isinstance(kind, str) and kind in KEYWORDS for kind in kinds):
        raise InvalidSchema(f"types are {', '.join(KEYWORDS)}", at(path, "type"))
    return list(dict.fromkeys(kinds))


def is_a(kind: str, value: Any) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    types = {"object": Mapping, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])


def only(said: Mapping[str, Any], keyword: str, path: str) -> Any:
    """The value of a keyword that stands alone."""
    refuse_beyond({keyword}, said, path)
    return said[keyword]


def single(schemas: Any, path: str) -> Any:
    if not isinstance(schemas, list) or len(schemas) != 1:
        raise InvalidSchema("allOf is supported with one schema", at(path, "allOf"))
    return schemas[0]


def refuse_beyond(known: Iterable[str], said: Mapping[str, Any], path: str) -> None:
    if unknown := sorted(said.keys() - set(known)):
        raise InvalidSchema("this keyword is not supported here", at(path, unknown[0]))


def refuse_empty(least: int, most: int | None, path: str) -> None:
    if most is not None and least > most:
        raise InvalidSchema("the smallest length is above the largest", path)


def length_of(said: Mapping[str, Any], keyword: str, path: str) -> int | None:
    value = said.get(keyword)
    if value is not None and (not is_a("integer", value) or value < 0):
        raise InvalidSchema("a length is a whole number from 0", at(path, keyword))
    return value


def bound_of(said: Mapping[str, Any], keyword: str, *, whole: bool, path: str) -> float | None:
    value = said.get(keyword)
    if value is None:
        return None
    if not is_a("number", value) or abs(value) > LARGEST:
        raise InvalidSchema(f"a bound is a number of at most {LARGEST}", at(path, keyword))
    if whole and value != int(value):
        raise InvalidSchema("bounds of numbers are supported where they are whole", at(path, keyword))
    return float(value)


def tightest(inclusive: float | None, exclusive: float | None, choose: Any) -> tuple[float | None, bool]:
    """The bound that counts, and whether it is itself outside."""
    if inclusive is None or exclusive is None:
        return (exclusive, True) if inclusive is None and exclusive is not None else (inclusive, False)
    return (exclusive, True) if choose(inclusive, exclusive) == exclusive else (inclusive, False)


def at(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
