"""Keywords of a schema that no grammar enforces, such as `uniqueItems`: the finished text is validated instead.

It is validated against a schema of only these keywords, of which no two parts apply to the same value, so the time is
linear in the text, whatever the schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import orjson

from inference.errors import InvalidSchema, SchemaUnmet
from inference.grammar.keywords import UNENFORCED
from inference.grammar.validation import fetch_nothing, place_in

DEFINITION = "#/$defs/"


def check(document: Mapping[str, Any], text: str) -> None:
    """Validate a finished text against the keywords of a converted schema that its grammar does not enforce. The time
    grows with the length of the text, so call it off the event loop. Raises SchemaUnmet.
    """
    try:
        schema = unenforced(document)
    except InvalidSchema:  # of a schema that nobody insists on
        return
    if schema is None:
        return
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # cut off by a stop string of the client: otherwise the grammar ensures valid JSON
        return
    broken = next(jsonschema_rs.Draft202012Validator(schema, retriever=fetch_nothing).iter_errors(value), None)
    if broken is not None:
        raise SchemaUnmet(str(broken.schema_path[-1]), place_in(broken.instance_path))


def unenforced(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of the unenforced keywords of a converted one; None if there are none. Raises InvalidSchema if such a
    keyword is in one of several parts that may apply to the same value.
    """
    definitions: Mapping[str, Any] = document.get("$defs", {})
    if not any(UNENFORCED in node for node in _nodes(document)):
        return None
    reading = _Reading(definitions, _noting(definitions))
    held = {name: reading.rest(definitions[name]) for name in reading.noting}
    left = reading.rest(document)
    return {**left, "$defs": held} if left else None


class _Reading:
    def __init__(self, definitions: Mapping[str, Any], noting: frozenset[str]) -> None:
        self._definitions = definitions
        self._kinds: dict[str, frozenset[str] | None] = {}  # of definitions
        self.noting = noting  # names of definitions that contain such keywords, or refer to ones that do

    def rest(self, node: Any) -> dict[str, Any]:
        """A schema without what the grammar enforces; empty if nothing is left."""
        if not isinstance(node, Mapping):
            return {}
        if "$ref" in node:
            return {"$ref": node["$ref"]} if _target(node) in self.noting else {}
        for keyword in ("allOf", "anyOf"):
            if keyword in node:
                return self._one_of(node[keyword], apart=keyword == "anyOf")
        left: dict[str, Any] = dict(node.get(UNENFORCED, {}))
        named, others = self._each(node.get("properties", {})), self._others(node)
        if named or others:  # additionalProperties depends on which properties are listed
            left["properties"] = {name: named.get(name, {}) for name in node.get("properties", {})}
            left["additionalProperties"] = others
        if inside := self.rest(node.get("items")):
            left["items"] = inside
        places = [self.rest(schema) for schema in node.get("prefixItems", ())]
        if any(places) or ("items" in left and places):
            left["prefixItems"] = places
        return left

    def _others(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """For unlisted properties. The grammar enforces their patterns, which are not matched again here."""
        schemas = [*node.get("patternProperties", {}).values(), node.get("additionalProperties", False)]
        sorts = [schema for schema in schemas if schema is not False]
        rests = [rest for schema in sorts if (rest := self.rest(schema))]
        if rests and len(sorts) > 1:
            raise _twice()
        return rests[0] if rests else {}

    def _each(self, schemas: Mapping[str, Any]) -> dict[str, Any]:
        return {name: rest for name, schema in schemas.items() if (rest := self.rest(schema))}

    def _one_of(self, branches: list[Any], *, apart: bool) -> dict[str, Any]:
        """Branches of different types can be combined, as each is vacuous for values of other types."""
        left = [self.rest(branch) for branch in branches]
        rests = [rest for rest in left if rest]
        if not rests:
            return {}
        if not apart and len(rests) > 1:
            raise _twice()
        kinds = [self._types(branch) for branch in branches]
        often = Counter(kind for each in kinds for kind in each or ())
        own = [kind for each, rest in zip(kinds, left, strict=True) if rest for kind in each or ()]
        if apart and (None in kinds or any(often[kind] > 1 for kind in own)):
            raise _twice()
        return rests[0] if len(rests) == 1 else {"allOf": rests}

    def _types(self, node: Any) -> frozenset[str] | None:
        """The types of the values of a schema; None: any."""
        match node:
            case {"$ref": _}:
                name = _target(node)
                if name not in self._kinds:
                    self._kinds[name] = None  # in case it refers to itself
                    self._kinds[name] = self._types(self._definitions[name])
                return self._kinds[name]
            case {"type": str(kind)}:
                return frozenset([kind])
            case {"enum": [*values]}:
                return frozenset(map(_type_of, values))
            case {"allOf": [*parts]}:
                return next((kinds for part in parts if (kinds := self._types(part))), None)
            case {"anyOf": [*branches]}:
                found = [self._types(branch) for branch in branches]
                return frozenset(kind for each in found for kind in each or ()) if None not in found else None
        return None


def _noting(definitions: Mapping[str, Any]) -> frozenset[str]:
    """Names of definitions with unenforced keywords, and of those that refer to one."""
    leading: dict[str, set[str]] = {}
    found: list[str] = []
    for name, definition in definitions.items():
        nodes = list(_nodes(definition))
        if any(UNENFORCED in node for node in nodes):
            found.append(name)
        for target in {_target(node) for node in nodes if "$ref" in node}:
            leading.setdefault(target, set()).add(name)
    reached = set(found)
    while found:
        new = leading.get(found.pop(), set()) - reached
        reached |= new
        found += new
    return frozenset(reached)


def _nodes(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in the document, without recursion; including those in constants, which are few."""
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _target(node: Mapping[str, Any]) -> str:
    return str(node["$ref"]).removeprefix(DEFINITION)


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case Mapping():
            return "object"
    return "number"


def _twice() -> InvalidSchema:
    reason = (
        "uniqueItems, and counts of named properties, are not supported in one of several schemas of the same value"
    )
    return InvalidSchema(reason)
