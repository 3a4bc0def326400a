"""The keywords of a JSON schema: which ones are known, and whether their values are valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.formats import FORMATS

# Keywords that do not constrain the value. Neither does anything that starts with x-.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"}
    | {"$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "contentEncoding", "contentMediaType"}
    | {"components", "externalDocs", "xml"}  # of OpenAPI
    | {"markdownDescription", "enumDescriptions", "enumNames"}  # of editors and forms
)
KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset(
        {"properties", "required", "additionalProperties", "propertyNames", "patternProperties"}
        | {"minProperties", "maxProperties"}
    ),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "format", "pattern"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
EMPTY: dict[str, object] = {"uniqueItems": False, "propertyNames": {"type": "string"}}  # values without effect
# Holds the keywords that no grammar enforces, for the validation of the finished text: see `unenforced`.
UNENFORCED = "x-unheld"
LENGTH_MAX = 20_000  # of anything counted: each position is a state of its own


def asserted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that constrain the value, as the newest draft writes them. A `format` that is not among `FORMATS`,
    such as int32, says what a value means, not which ones fit.
    """
    said = {key: value for key, value in schema.items() if key not in ANNOTATIONS and not key.startswith("x-")}
    said = {key: value for key, value in said.items() if EMPTY.get(key, said) != value}
    if isinstance(format := said.get("format"), str) and format not in FORMATS:
        del said["format"]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(said.get(exclusive), bool):  # draft 4, and OpenAPI 3.0
            is_exclusive = said.pop(exclusive)
            if is_exclusive and bound in said:
                said[exclusive] = said.pop(bound)
    if said.pop("nullable", None) is True and "type" in said:  # OpenAPI 3.0
        kinds = said["type"]
        said["type"] = [*(kinds if isinstance(kinds, list) else [kinds]), "null"]
    return said


def types_of(said: Mapping[str, Any], path: str) -> list[str]:
    """The types of a schema, inferred from its keywords if it names none; empty: any."""
    kinds = said.get("type")
    if kinds is None:
        return [kind for kind in ("object", "array", "string", "number") if KEYWORDS[kind] & said.keys()][:1]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not kinds or not all(isinstance(kind, str) and kind in KEYWORDS for kind in kinds):
        raise InvalidSchema(f"the types are {', '.join(KEYWORDS)}", at(path, "type"))
    return list(dict.fromkeys(kinds))


def is_a(kind: str, value: Any) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    types = {"object": Mapping, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])


def refuse_beyond(known: Iterable[str], said: Mapping[str, Any], path: str) -> None:
    if unknown := sorted(said.keys() - set(known)):
        raise InvalidSchema("this keyword is not supported here", at(path, unknown[0]))


def lengths(said: Mapping[str, Any], least: str, most: str, path: str) -> dict[str, int]:
    """The two keywords for a length, as far as present."""
    found: dict[str, int] = {}
    for keyword in (least, most):
        value = said.get(keyword)
        if value is None:
            continue
        if not is_a("integer", value) or value < 0:
            raise InvalidSchema("a length must be a whole number, 0 or more", at(path, keyword))
        if value > LENGTH_MAX:
            raise InvalidSchema(f"a length must be at most {LENGTH_MAX}", at(path, keyword))
        found[keyword] = value
    if found.get(least, 0) > found.get(most, LENGTH_MAX):
        raise InvalidSchema("the minimum length is above the maximum", path)
    return found


def at(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
