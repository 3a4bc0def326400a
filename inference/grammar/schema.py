"""JSON schema to grammar rules.

Every keyword is either obeyed, known to say nothing about the value, or refused with its place in the schema. What the
rules let through fits the schema. The reverse does not hold: properties come in the order of the schema, without ones
that it does not name, and numbers have at most 15 digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.disjoint import apart
from inference.grammar.formats import FORMATS
from inference.grammar.keywords import (
    ANNOTATIONS,
    BOUNDS,
    KEYWORDS,
    at,
    bound_of,
    is_a,
    length_of,
    only,
    refuse_beyond,
    refuse_empty,
    single,
    tightest,
    types_of,
)
from inference.grammar.numbers import LARGEST, decimals, integers
from inference.grammar.pattern import PatternConverter
from inference.grammar.rules import SPACE, Rules, either, literal

DEPTH_MAX = 32  # beyond it neither models nor people follow
BRANCHES_MAX = 32  # of one union: each may have to be followed at once


class SchemaConverter:
    """Writes the rules of one schema, and of what it refers to, into `rules`. Raises InvalidSchema."""

    def __init__(self, schema: Any, rules: Rules) -> None:
        self._schema = schema
        self._rules = rules
        self._referred: dict[str, str] = {}  # reference -> rule
        self._leading: tuple[str, ...] = ()  # references followed since the last character of the text

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
            return self._reference(only(said, "$ref", path), path, depth)
        if "allOf" in said:
            return self._convert(single(only(said, "allOf", path), path), at(path, "allOf[0]"), depth + 1)
        for union in ("anyOf", "oneOf"):
            if union in said:
                return self._union(union, only(said, union, path), path, depth)
        if "const" in said or "enum" in said:
            return self._constants(said, path)
        return self._typed(said, path, depth)

    def _reference(self, reference: Any, path: str, depth: int) -> str:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise InvalidSchema("a reference leads into the same schema: '#/$defs/name'", at(path, "$ref"))
        if reference in self._leading:
            raise InvalidSchema(f"'{reference}' leads to itself", at(path, "$ref"))
        if reference not in self._referred:
            target = self._find(reference, path)
            rule = self._referred[reference] = self._rules.reserve()
            leading, self._leading = self._leading, (*self._leading, reference)
            self._rules.fill(rule, self._convert(target, reference, depth + 1))
            self._leading = leading
        return self._referred[reference]

    def _resolved(self, schema: Any, path: str) -> Any:
        """What a schema says by reference, one step deep."""
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        return self._find(reference, path) if isinstance(reference, str) else schema

    def _inside(self, schema: Any, path: str, depth: int) -> str:
        """A schema within an object or an array: something stands before its text."""
        leading, self._leading = self._leading, ()
        converted = self._convert(schema, path, depth + 1)
        self._leading = leading
        return converted

    def _find(self, reference: str, path: str) -> Any:
        found = self._schema
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                raise InvalidSchema(f"there is nothing at '{reference}'", at(path, "$ref"))
            found = found[key]
        return found

    def _union(self, union: str, branches: Any, path: str, depth: int) -> str:
        if not isinstance(branches, list) or not 1 <= len(branches) <= BRANCHES_MAX:
            raise InvalidSchema(f"{union} is a list of 1 to {BRANCHES_MAX} schemas", at(path, union))
        if union == "oneOf" and not apart([self._resolved(branch, path) for branch in branches]):
            reason = "the branches of oneOf must differ in their type, or in a required property with a constant"
            raise InvalidSchema(reason, at(path, union))
        parts = [self._convert(branch, at(path, f"{union}[{i}]"), depth + 1) for i, branch in enumerate(branches)]
        return either(list(dict.fromkeys(parts)))

    def _constants(self, said: Mapping[str, Any], path: str) -> str:
        refuse_beyond({"const", "enum", "type"}, said, path)
        values = said["enum"] if "enum" in said else [said["const"]]
        if not isinstance(values, list):
            raise InvalidSchema("enum is a list of values", at(path, "enum"))
        kinds = types_of(said, path) if "type" in said else None
        fitting = [v for v in values if kinds is None or any(is_a(kind, v) for kind in kinds)]
        if "const" in said:
            fitting = [value for value in fitting if json.dumps(value) == json.dumps(said["const"])]
        if not fitting:
            raise InvalidSchema("no value fits", path)
        return either([literal(json.dumps(value, ensure_ascii=False)) for value in fitting])

    def _typed(self, said: Mapping[str, Any], path: str, depth: int) -> str:
        kinds = types_of(said, path)
        refuse_beyond({"type"}.union(*(KEYWORDS[kind] for kind in kinds)), said, path)
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
            raise InvalidSchema("properties is an object of schemas", at(path, "properties"))
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise InvalidSchema("required is a list of names", at(path, "required"))
        if not isinstance(said.get("additionalProperties", True), bool | Mapping):
            raise InvalidSchema("additionalProperties is a boolean or a schema", at(path, "additionalProperties"))
        unnamed = {name: said.get("additionalProperties", True) for name in required if name not in properties}
        if False in unnamed.values():
            raise InvalidSchema(f"'{next(iter(unnamed))}' is required and not allowed", at(path, "required"))
        pairs = [
            (self._pair(name, schema, at(path, f"properties.{name}"), depth), name in required)
            for name, schema in {**properties, **unnamed}.items()
        ]
        return f'"{{" {self._members(pairs)} "}}"'

    def _pair(self, name: str, schema: Any, path: str, depth: int) -> str:
        value = self._inside(schema, path, depth)
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
        value = self._inside(values, at(path, "additionalProperties"), depth)
        pair = self._rules.add(f'{self._rules.shared("string")} ":" {SPACE} {value}')
        return f'"{{" ({pair} ("," {SPACE} {pair})*)? "}}"'

    def _array(self, said: Mapping[str, Any], path: str, depth: int) -> str:
        least, most = length_of(said, "minItems", path) or 0, length_of(said, "maxItems", path)
        refuse_empty(least, most, path)
        if "prefixItems" in said:
            return self._tuple(said, least, most, path, depth)
        item = self._rules.add(self._inside(said.get("items", True), at(path, "items"), depth))
        if most == 0:
            return '"[]"'
        more = self._rules.repeat(
            f'("," {SPACE} {item})', max(0, least - 1), None if most is None else most - 1, at(path, "maxItems")
        )
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _tuple(self, said: Mapping[str, Any], least: int, most: int | None, path: str, depth: int) -> str:
        """Items with a schema for each place. Places that are not demanded may be left out, the last ones first."""
        places = said["prefixItems"]
        if not isinstance(places, list) or not 1 <= len(places) <= BRANCHES_MAX:
            raise InvalidSchema(f"prefixItems is a list of 1 to {BRANCHES_MAX} schemas", at(path, "prefixItems"))
        if least > len(places) or (said.get("items", True) is not False and most not in range(1, len(places) + 1)):
            raise InvalidSchema("an array with prefixItems ends with them: items is false, or maxItems", path)
        following = '""'
        for i, schema in reversed(list(enumerate(places[:most]))):
            item = f"{self._inside(schema, at(path, f'prefixItems[{i}]'), depth)} {following}"
            following = self._rules.add(f'"," {SPACE} {item}' if i else item)
            following = following if i < least else f"{following}?"
        return f'"[" {following} "]"'

    def _string(self, said: Mapping[str, Any], path: str) -> str:
        least, most = length_of(said, "minLength", path) or 0, length_of(said, "maxLength", path)
        if "pattern" in said:
            if not isinstance(said["pattern"], str) or "format" in said or least or most is not None:
                raise InvalidSchema("a pattern is a text, and stands without a format and lengths", at(path, "pattern"))
            return f'"\\"" {PatternConverter(said["pattern"], self._rules, at(path, "pattern")).root()} "\\""'
        if "format" in said:
            if said["format"] not in FORMATS or least or most is not None:
                known = ", ".join(FORMATS)
                raise InvalidSchema(f"supported are {known}, without lengths", at(path, "format"))
            return f'"\\"" {FORMATS[said["format"]]} "\\""'
        if not least and most is None:
            return self._rules.shared("string")
        refuse_empty(least, most, path)
        characters = self._rules.repeat(self._rules.shared("character"), least, most, at(path, "maxLength"))
        return f'"\\"" {characters} "\\""'

    def _bounded(self, kind: str, said: Mapping[str, Any], path: str) -> str:
        bounds = {name: bound_of(said, name, whole=kind == "number", path=path) for name in BOUNDS}
        least, above = tightest(bounds["minimum"], bounds["exclusiveMinimum"], max)
        most, below = tightest(bounds["maximum"], bounds["exclusiveMaximum"], min)
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
