"""JSON schema to grammar rules.

Every keyword is either obeyed, known to say nothing about the value, or refused with its place in the schema. What the
rules let through fits the schema. The reverse does not hold: properties come in the order of the schema, without ones
that it does not name, and numbers have at most 15 digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.formats import FORMATS
from inference.grammar.numbers import LARGEST, decimals, integers
from inference.grammar.rules import SPACE, Rules, either, literal

DEPTH_MAX = 32  # beyond it neither models nor people follow
BRANCHES_MAX = 32  # of one union: each may have to be followed at once

ANNOTATIONS = frozenset(
    "title description default examples example deprecated readOnly writeOnly discriminator "
    "$schema $id $comment $defs definitions $anchor".split()
)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "format"}),
    "number": frozenset(BOUNDS),
    "integer": frozenset(BOUNDS),
    "boolean": frozenset(),
    "null": frozenset(),
}


class SchemaConverter:
    """Writes the rules of one schema, and of what it refers to, into `rules`. Raises InvalidSchema."""

    def __init__(self, schema: Any, rules: Rules) -> None:
        self._schema = schema
        self._rules = rules
        self._referred: dict[str, str] = {}  # reference -> rule

    def root(self) -> str:
        """The expression that stands for a whole value."""
        return self._convert(self._schema, "", 0)

    def _convert(self, schema: Any, path: str, depth: int) -> str:
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"a schema may nest {DEPTH_MAX} levels deep", path)
        if schema is True:
            return self._rules.shared("value")
        if not isinstance(schema, Mapping):
            raise InvalidSchema("a schema is an object", path)
        said = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        if "$ref" in said:
            return self._reference(_only(said, "$ref", path), path, depth)
        if "allOf" in said:
            return self._convert(_single(_only(said, "allOf", path), path), _at(path, "allOf[0]"), depth + 1)
        if "anyOf" in said:
            return self._union(_only(said, "anyOf", path), path, depth)
        if "const" in said or "enum" in said:
            return self._constants(said, path)
        return self._typed(said, path, depth)

    def _reference(self, reference: Any, path: str, depth: int) -> str:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise InvalidSchema("references lead to places in the same schema, such as '#/$defs/name'", _at(path, "$ref"))
        if reference not in self._referred:
            target = self._find(reference, path)
            rule = self._referred[reference] = self._rules.reserve()
            self._rules.fill(rule, self._convert(target, reference, depth + 1))
        return self._referred[reference]

    def _find(self, reference: str, path: str) -> Any:
        found = self._schema
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                raise InvalidSchema(f"there is nothing at '{reference}'", _at(path, "$ref"))
            found = found[key]
        return found

    def _union(self, branches: Any, path: str, depth: int) -> str:
        if not isinstance(branches, list) or not 1 <= len(branches) <= BRANCHES_MAX:
            raise InvalidSchema(f"anyOf is a list of 1 to {BRANCHES_MAX} schemas", _at(path, "anyOf"))
        parts = [self._convert(branch, _at(path, f"anyOf[{i}]"), depth + 1) for i, branch in enumerate(branches)]
        return either(list(dict.fromkeys(parts)))

    def _constants(self, said: Mapping[str, Any], path: str) -> str:
        _refuse_beyond({"const", "enum", "type"}, said, path)
        values = said["enum"] if "enum" in said else [said["const"]]
        if not isinstance(values, list):
            raise InvalidSchema("enum is a list of values", _at(path, "enum"))
        kinds = _kinds(said, path) if "type" in said else None
        fitting = [v for v in values if kinds is None or any(_is(kind, v) for kind in kinds)]
        if "const" in said:
            fitting = [value for value in fitting if json.dumps(value) == json.dumps(said["const"])]
        if not fitting:
            raise InvalidSchema("no value fits", path)
        return either([literal(json.dumps(value, ensure_ascii=False)) for value in fitting])

    def _typed(self, said: Mapping[str, Any], path: str, depth: int) -> str:
        kinds = _kinds(said, path)
        _refuse_beyond({"type"}.union(*(KEYWORDS[kind] for kind in kinds)), said, path)
        if not kinds:
            return self._rules.shared("value")
        return either([self._kind(kind, said, path, depth) for kind in kinds])

    def _kind(self, kind: str, said: Mapping[str, Any], path: str, depth: int) -> str:
        match kind:
            case "object":
                return self._object(said, path, depth)
            case "array":
                return self._array(said, path, depth)
            case "string":
                return self._string(said, path)
            case "number" | "integer" if any(bound in said for bound in BOUNDS):
                return self._bounded(kind, said, path)
        return self._rules.shared(kind)

    def _object(self, said: Mapping[str, Any], path: str, depth: int) -> str:
        if "properties" not in said and "required" not in said:
            return self._map(said.get("additionalProperties", True), path, depth)
        properties = said.get("properties", {})
        required = said.get("required", [])
        if not isinstance(properties, Mapping):
            raise InvalidSchema("properties is an object of schemas", _at(path, "properties"))
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise InvalidSchema("required is a list of names", _at(path, "required"))
        if not isinstance(said.get("additionalProperties", True), bool | Mapping):
            raise InvalidSchema("additionalProperties is a boolean or a schema", _at(path, "additionalProperties"))
        unnamed = {name: said.get("additionalProperties", True) for name in required if name not in properties}
        if False in unnamed.values():
            raise InvalidSchema(f"'{next(iter(unnamed))}' is required and not allowed", _at(path, "required"))
        pairs = [
            (self._pair(name, schema, _at(path, f"properties.{name}"), depth), name in required)
            for name, schema in {**properties, **unnamed}.items()
        ]
        return f'"{{" {self._members(pairs)} "}}"'

    def _pair(self, name: str, schema: Any, path: str, depth: int) -> str:
        value = self._convert(schema, path, depth + 1)
        return self._rules.add(f'{literal(json.dumps(name, ensure_ascii=False))} ":" {SPACE} {value}')

    def _members(self, pairs: list[tuple[str, bool]]) -> str:
        """Pairs in order with commas between those that are there; built from the last one, so it stays linear."""
        first, later = '""', '""'
        for pair, required in reversed(pairs):
            alone, following = f"{pair} {later}", f'"," {SPACE} {pair}'
            first = alone if required else f"({alone} | {first})"
            later = f"{following} {later}" if required else f"({following})? {later}"
            first, later = self._rules.add(first), self._rules.add(later)
        return first

    def _map(self, values: Any, path: str, depth: int) -> str:
        if values is False:
            return '"{}"'
        if values is True or values == {}:
            return self._rules.shared("object")
        value = self._convert(values, _at(path, "additionalProperties"), depth + 1)
        pair = self._rules.add(f'{self._rules.shared("string")} ":" {SPACE} {value}')
        return f'"{{" ({pair} ("," {SPACE} {pair})*)? "}}"'

    def _array(self, said: Mapping[str, Any], path: str, depth: int) -> str:
        least, most = _length(said, "minItems", path) or 0, _length(said, "maxItems", path)
        _refuse_empty(least, most, path)
        item = self._rules.add(self._convert(said.get("items", True), _at(path, "items"), depth + 1))
        if most == 0:
            return '"[]"'
        more = self._rules.repeat(
            f'("," {SPACE} {item})', max(0, least - 1), None if most is None else most - 1, _at(path, "maxItems")
        )
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _string(self, said: Mapping[str, Any], path: str) -> str:
        least, most = _length(said, "minLength", path) or 0, _length(said, "maxLength", path)
        if "format" in said:
            if said["format"] not in FORMATS or least or most is not None:
                known = ", ".join(FORMATS)
                raise InvalidSchema(f"supported are {known}, without lengths", _at(path, "format"))
            return f'"\\"" {FORMATS[said["format"]]} "\\""'
        if not least and most is None:
            return self._rules.shared("string")
        _refuse_empty(least, most, path)
        characters = self._rules.repeat(self._rules.shared("character"), least, most, _at(path, "maxLength"))
        return f'"\\"" {characters} "\\""'

    def _bounded(self, kind: str, said: Mapping[str, Any], path: str) -> str:
        bounds = {name: _bound(said, name, whole=kind == "number", path=path) for name in BOUNDS}
        least, above = _tightest(bounds["minimum"], bounds["exclusiveMinimum"], max)
        most, below = _tightest(bounds["maximum"], bounds["exclusiveMaximum"], min)
        low, high = -LARGEST if least is None else least, LARGEST if most is None else most
        if kind == "integer":
            first = math.floor(low) + 1 if above else math.ceil(low)
            last = math.ceil(high) - 1 if below else math.floor(high)
            if first > last:
                raise InvalidSchema("no number lies between the bounds", path)
            return integers(first, last)
        if low > high or (low == high and (above or below)):
            raise InvalidSchema("no number lies between the bounds", path)
        return decimals(int(low), int(high), above=above, below=below)


def _kinds(said: Mapping[str, Any], path: str) -> list[str]:
    """The types of a schema, guessed from its keywords where it names none; empty: anything."""
    kinds = said.get("type")
    if kinds is None:
        return [kind for kind in ("object", "array", "string", "number") if KEYWORDS[kind] & said.keys()][:1]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not kinds or not all(isinstance(kind, str) and kind in KEYWORDS for kind in kinds):
        raise InvalidSchema(f"types are {', '.join(KEYWORDS)}", _at(path, "type"))
    return list(dict.fromkeys(kinds))


def _is(kind: str, value: Any) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    types = {"object": Mapping, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])


def _only(said: Mapping[str, Any], keyword: str, path: str) -> Any:
    """The value of a keyword that stands alone."""
    _refuse_beyond({keyword}, said, path)
    return said[keyword]


def _single(schemas: Any, path: str) -> Any:
    if not isinstance(schemas, list) or len(schemas) != 1:
        raise InvalidSchema("allOf is supported with one schema", _at(path, "allOf"))
    return schemas[0]


def _refuse_beyond(known: Iterable[str], said: Mapping[str, Any], path: str) -> None:
    if unknown := sorted(said.keys() - set(known)):
        raise InvalidSchema("this keyword is not supported here", _at(path, unknown[0]))


def _refuse_empty(least: int, most: int | None, path: str) -> None:
    if most is not None and least > most:
        raise InvalidSchema("the smallest length is above the largest", path)


def _length(said: Mapping[str, Any], keyword: str, path: str) -> int | None:
    value = said.get(keyword)
    if value is not None and (not _is("integer", value) or value < 0):
        raise InvalidSchema("a length is a whole number from 0", _at(path, keyword))
    return value


def _bound(said: Mapping[str, Any], keyword: str, *, whole: bool, path: str) -> float | None:
    value = said.get(keyword)
    if value is None:
        return None
    if not _is("number", value) or abs(value) > LARGEST:
        raise InvalidSchema(f"a bound is a number of at most {LARGEST}", _at(path, keyword))
    if whole and value != int(value):
        raise InvalidSchema("bounds of numbers are supported where they are whole", _at(path, keyword))
    return float(value)


def _tightest(inclusive: float | None, exclusive: float | None, choose: Any) -> tuple[float | None, bool]:
    """The bound that counts, and whether it is itself outside."""
    if inclusive is None or exclusive is None:
        return (exclusive, True) if inclusive is None and exclusive is not None else (inclusive, False)
    return (exclusive, True) if choose(inclusive, exclusive) == exclusive else (inclusive, False)


def _at(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
