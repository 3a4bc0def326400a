"""Converts a JSON schema to the form that llguidance compiles to a grammar.

Every keyword is either enforced, known not to constrain the value, left for the validation of the finished text
(`UNENFORCED`), or refused with its position in the schema; anything that would take unbounded work or memory is refused
as well. What the resulting grammar allows fits the schema except for what is left. The converse does not hold:
properties come in the order of the schema, without unlisted ones, and texts of a format are of its common form.

Where nobody insists on the schema, what would be refused is left out instead, and only that: the value becomes any of
its type, and everything around it stays.

The walk is linear in the size of the schema, and stops before llguidance would exhaust a thread's stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from inference.errors import InvalidSchema
from inference.grammar.keywords import (
    FORMATS,
    KEYWORDS,
    References,
    Target,
    asserted,
    at,
    base_of,
    decimal,
    integer,
    is_a,
    kind_of,
    lengths,
    refuse_beyond,
    types_of,
)
from inference.grammar.lark import ReasoningMarks, grammar, value_of
from inference.grammar.pattern import translated

# Nesting of schemas, references included: llguidance recurses, with 8 kB of its thread's stack per level, and so do we,
# with up to nine calls. OpenAI allows ten objects within each other.
DEPTH_MAX = 64
BRANCHES_MAX = 256  # of one union: all may have to be followed at once
# OpenAI's limit, of all objects together: llguidance takes 50 µs for each that is required.
PROPERTIES_MAX = 5_000
OPTIONAL_MAX = 1_000  # of one object: each may follow any of those before it, and a thousand take llguidance 60 ms
TOLD_CHARS_MAX = 100  # of a name or a reference, in the reason for a refusal
COUNTS = ("minProperties", "maxProperties")
ANY_AT_ALL = r"[\s\S]"
IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")  # they apply to the same value
# The keywords that are left of a schema that cannot be held, until one of these sets can.
OUTLINE = ("type", "enum", "const", "properties", "required", "items", "prefixItems")
LOOSER = (OUTLINE, ("type", "properties", "items"), ("properties",), ("type",))
_NUMBERED = re.compile(r"\x7f|(?<!\\)(?:\\\\)*\\u")  # characters that JSON writes as numeric escapes, in JSON
# One space where models write one. No line breaks and no indentation: at temperature 1 they might never end. And no
# numeric escapes: U+0000 cannot be stored, and half a surrogate pair is not text.
STYLE = {
    "whitespace_flexible": False,
    "key_separator": ": ?",
    "item_separator": ", ?",
    "json_allowed_escapes": 'nrtbf\\"',
}


def json_grammar(schema: object, thought: ReasoningMarks | None = None) -> str:
    """A grammar of the JSON values that fit a schema. Raises InvalidSchema with the position in the schema."""
    return grammar("value", {"value": value_of(restated(schema))}, thought)


def restated(schema: Any, *, loose: bool = False, outline: bool = False) -> dict[str, Any]:
    """The schema as a document of its own, with its definitions and the style of its JSON.

    `loose`: what no grammar can hold is left out. `outline`: so is everything but names, types and enums, which costs
    less to compile. Raises InvalidSchema if it is neither.
    """
    return _Restating(schema, loose=loose or outline, outline=outline).document()


class _Restating:
    def __init__(self, schema: Any, *, loose: bool, outline: bool) -> None:
        self._schema = schema
        self._loose = loose
        self._outline = outline
        self._references = References(schema)
        self._base = ""  # to which references are relative at the moment
        self._definitions: dict[str, Any] = {}
        self._names: dict[Hashable, str] = {}  # of definitions, by what they are made of
        self._leading: tuple[int, ...] = ()  # what references have led to since the last character of text
        self._nested: dict[tuple[int, str], dict[str, Any]] = {}  # what was converted, by the identity of its origin
        self._properties = 0

    def document(self) -> dict[str, Any]:
        root = self._convert(self._schema, "", 0, open=False)
        return {**root, "$defs": self._definitions, "x-guidance": STYLE}

    def _convert(self, schema: Any, path: str, depth: int, *, open: bool) -> dict[str, Any]:
        """`open`: another schema applies to the same object, so it may have properties that this one does not list."""
        if depth > DEPTH_MAX or not (schema is True or isinstance(schema, Mapping)):
            if self._loose:
                return {}
            reason = f"a schema may be nested at most {DEPTH_MAX} levels deep"
            raise InvalidSchema(reason if depth > DEPTH_MAX else "a schema must be an object", path)
        if schema is True:
            return {}
        outer, self._base = self._base, base_of(schema, self._base)
        said = asserted(schema)
        if self._outline:
            said = {keyword: value for keyword, value in said.items() if keyword in OUTLINE or keyword in IN_PLACE}
        applied = [keyword for keyword in IN_PLACE if keyword in said]
        rest = {keyword: value for keyword, value in said.items() if keyword not in applied}
        together = open or len(applied) + bool(rest) > 1
        own = self._loosened if self._loose else self._own
        parts = [own(rest, path, depth, open=together)] if rest or not applied else []
        for keyword in applied:
            try:
                parts.append(self._applied(keyword, said[keyword], path, depth, open=together))
            except InvalidSchema:
                if not self._loose:
                    raise
        self._base = outer
        return parts[0] if len(parts) == 1 else {"allOf": parts} if parts else {}

    def _applied(self, keyword: str, value: Any, path: str, depth: int, *, open: bool) -> dict[str, Any]:
        if keyword == "$ref":
            return self._reference(value, path, depth, open=open)
        if not isinstance(value, list) or not 1 <= len(value) <= BRANCHES_MAX:
            raise InvalidSchema(f"{keyword} must be a list of 1 to {BRANCHES_MAX} schemas", at(path, keyword))
        possible = {i: each for i, each in enumerate(value) if keyword == "allOf" or not _is_never(each)}
        if not possible:
            raise InvalidSchema("no value fits", at(path, keyword))
        exclusive = keyword == "oneOf" and not self._loose
        if exclusive and not are_disjoint([self._resolved(branch, path) for branch in possible.values()]):
            reason = "the branches of oneOf must differ in their type, or in a required property with a constant"
            raise InvalidSchema(reason, at(path, keyword))
        open = open or (keyword == "allOf" and len(value) > 1)
        parts = [self._part(each, at(path, f"{keyword}[{i}]"), depth, open=open) for i, each in possible.items()]
        return parts[0] if len(parts) == 1 else {"allOf" if keyword == "allOf" else "anyOf": parts}

    def _reference(self, reference: Any, path: str, depth: int, *, open: bool) -> dict[str, Any]:
        target = self._find(reference, path)
        if id(target.schema) in self._leading:
            raise InvalidSchema(f"'{reference[:TOLD_CHARS_MAX]}' leads to itself", at(path, "$ref"))
        return self._definition(target, reference, depth, open=open)

    def _part(self, schema: Any, path: str, depth: int, *, open: bool) -> dict[str, Any]:
        """A schema within another. If references lead to it, it is a definition here too: otherwise each schema around
        it to which references lead as well would repeat it."""
        if id(schema) not in self._references.targets:
            return self._convert(schema, path, depth + 1, open=open)
        if id(schema) in self._leading:
            raise InvalidSchema("this leads to itself", path)
        return self._definition(Target(schema, self._base), path, depth, open=open)

    def _definition(self, target: Target, path: str, depth: int, *, open: bool) -> dict[str, Any]:
        """A reference to the definition that all references to this schema share."""
        place = id(target.schema)
        origin = (place, target.base, open)
        if origin not in self._names:
            name = self._define(origin, {})
            base, self._base = self._base, target.base
            leading, self._leading = self._leading, (*self._leading, place)
            self._definitions[name] = self._convert(target.schema, path, depth + 1, open=open)
            self._leading, self._base = leading, base
        return {"$ref": f"#/$defs/{self._names[origin]}"}

    def _define(self, origin: Hashable, schema: dict[str, Any]) -> str:
        name = self._names[origin] = str(len(self._definitions))
        self._definitions[name] = schema
        return name

    def _shared(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A definition shared by all places with the same schema, so that llguidance does the work only once."""
        origin = json.dumps(schema)
        name = self._names.get(origin) or self._define(origin, schema)
        return {"$ref": f"#/$defs/{name}"}

    def _resolved(self, schema: Any, path: str) -> Any:
        """The schema, or the target of its reference, followed once."""
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        return self._find(reference, path).schema if isinstance(reference, str) else schema

    def _find(self, reference: Any, path: str) -> Target:
        if not isinstance(reference, str):
            raise InvalidSchema("a reference must be a string", at(path, "$ref"))
        found = self._references.find(reference, self._base)
        if found is None:
            reason = f"there is nothing at '{reference[:TOLD_CHARS_MAX]}' in this schema, and no other one is read"
            raise InvalidSchema(reason, at(path, "$ref"))
        return found

    def _inside(self, schema: Any, path: str, depth: int) -> dict[str, Any]:
        """A schema nested in an object or an array, so that some text precedes its own."""
        origin = (id(schema), self._base)
        if origin not in self._nested:
            leading, self._leading = self._leading, ()
            self._nested[origin] = self._part(schema, path, depth, open=False)
            self._leading = leading
        return self._nested[origin]

    def _own(self, said: Mapping[str, Any], path: str, depth: int, *, open: bool) -> dict[str, Any]:
        """The schema's own keywords, without those that apply other schemas."""
        if "const" in said or "enum" in said:
            return self._constants(said, path)
        kinds = types_of(said, path)
        refuse_beyond({"type", "format"}.union(*(KEYWORDS[kind] for kind in kinds)), said, path)
        parts = [self._typed(kind, said, path, depth, open=open) for kind in kinds]
        return parts[0] if len(parts) == 1 else {"anyOf": parts} if parts else {}

    def _loosened(self, said: Mapping[str, Any], path: str, depth: int, *, open: bool) -> dict[str, Any]:
        """As many of them as can be held. Whatever is nested in them was converted by the first attempt."""
        for kept in (said.keys(), *LOOSER):
            with suppress(InvalidSchema):
                return self._own({name: said[name] for name in said if name in kept}, path, depth, open=open)
        return {}

    def _constants(self, said: Mapping[str, Any], path: str) -> dict[str, Any]:
        refuse_beyond({"const", "enum", "type", "format"}, said, path)
        values = said["enum"] if "enum" in said else [said["const"]]
        if not isinstance(values, list):
            raise InvalidSchema("enum must be a list of values", at(path, "enum"))
        kinds = types_of(said, path) if "type" in said else None
        fitting = [value for value in values if kinds is None or any(is_a(kind, value) for kind in kinds)]
        if "const" in said:
            fitting = [value for value in fitting if json.dumps(value) == json.dumps(said["const"])]
        if not fitting:
            raise InvalidSchema("no value fits", path)
        if any(_NUMBERED.search(json.dumps(value, ensure_ascii=False)) for value in fitting):
            raise InvalidSchema("control characters cannot be written here", path)
        return {"enum": fitting}

    def _typed(self, kind: str, said: Mapping[str, Any], path: str, depth: int, *, open: bool) -> dict[str, Any]:
        match kind:
            case "object":
                return self._object(said, path, depth, open=open)
            case "array":
                return self._array(said, path, depth)
            case "string":
                return self._string(said, path)
            case "integer":
                return self._shared(integer(said, path))
            case "number":
                return self._shared(decimal(said, path))
        return {"type": kind}

    def _object(self, said: Mapping[str, Any], path: str, depth: int, *, open: bool) -> dict[str, Any]:
        properties, required = said.get("properties", {}), said.get("required", [])
        others = said.get("additionalProperties", True)
        if not isinstance(properties, Mapping):
            raise InvalidSchema("properties must be an object of schemas", at(path, "properties"))
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise InvalidSchema("required must be a list of names", at(path, "required"))
        if not isinstance(others, bool | Mapping):
            raise InvalidSchema("additionalProperties must be a boolean or a schema", at(path, "additionalProperties"))
        if "properties" not in said and not required:
            return self._map(said, others, path, depth)
        if "properties" not in said and isinstance(said.get("propertyNames"), Mapping):
            match asserted(said["propertyNames"]):
                case {"enum": [*listed]} if all(isinstance(name, str) for name in listed):
                    properties, others = dict.fromkeys(listed, others), False
                    said = {keyword: value for keyword, value in said.items() if keyword != "propertyNames"}
        refuse_beyond({"type", "properties", "required", "additionalProperties", *COUNTS}, said, path)
        if open and isinstance(others, Mapping):
            raise InvalidSchema("this is not supported together with other schemas", at(path, "additionalProperties"))
        unnamed = {name: others for name in required if name not in properties and not (open and others)}
        needed, held = set(required), dict[str, Any]()
        for name, schema in {**properties, **unnamed}.items():
            if not _is_never(schema):
                held[name] = self._inside(schema, at(path, f"properties.{name}"), depth)
            elif name in needed:
                raise InvalidSchema(f"'{name[:TOLD_CHARS_MAX]}' is required and not allowed", at(path, "required"))
        self._properties += len(held)
        if len(held.keys() - needed) > OPTIONAL_MAX or self._properties > PROPERTIES_MAX:
            reason = f"there may be {PROPERTIES_MAX} properties in all, and {OPTIONAL_MAX} optional ones in one object"
            raise InvalidSchema(reason, at(path, "properties"))
        closed = {} if open and others else {"additionalProperties": False}
        lengths(said, *COUNTS, path)
        return {"type": "object", "properties": held, "required": required, **closed}

    def _map(self, said: Mapping[str, Any], others: Any, path: str, depth: int) -> dict[str, Any]:
        """An object without listed properties: all values are of one kind, and so are all names."""
        counts = lengths(said, *COUNTS, path)
        if "patternProperties" in said:
            refuse_beyond(said.keys() - {"propertyNames"}, said, path)
            return {"type": "object", **counts, **self._patterns(said, others, path, depth)}
        values = others if others is False else self._inside(others, at(path, "additionalProperties"), depth)
        names = self._names_of(said, values, path)
        return {"type": "object", **names, **({} if "properties" in names else counts)}

    def _patterns(self, said: Mapping[str, Any], others: Any, path: str, depth: int) -> dict[str, Any]:
        patterns, place = said["patternProperties"], at(path, "patternProperties")
        if not isinstance(patterns, Mapping):
            raise InvalidSchema("patternProperties must be an object of schemas", place)
        held = {
            translated(pattern, place): self._inside(schema, at(place, pattern), depth)
            for pattern, schema in patterns.items()
        }
        closed = "additionalProperties" not in said or others is False
        values = False if closed else self._inside(others, at(path, "additionalProperties"), depth)
        return {"patternProperties": held, "additionalProperties": values}

    def _names_of(self, said: Mapping[str, Any], values: Any, path: str) -> dict[str, Any]:
        """The properties of a map with these values, if its names are constrained."""
        place = at(path, "propertyNames")
        names = self._resolved(said.get("propertyNames", {}), place)
        asked = asserted(names) if isinstance(names, Mapping) else {"type": None}
        if asked.pop("type", "string") == "string":
            match asked:
                case {"enum": [*listed], **rest} if not rest and all(isinstance(name, str) for name in listed):
                    return {"properties": dict.fromkeys(listed, values), "additionalProperties": False}
                case {"const": str(name), **rest} if not rest:
                    return {"properties": {name: values}, "additionalProperties": False}
                case {"format": str(format), **rest} if format in FORMATS and rest.keys() <= {"pattern"}:
                    return _named(f"^(?:{FORMATS[format]})$", values)
                case {"pattern": str(pattern), **rest} if not rest:
                    return _named(translated(pattern, at(place, "pattern")), values)
            if not asked:
                return {"additionalProperties": values}
            if asked.keys() <= {"minLength", "maxLength"}:
                counts = lengths(asked, "minLength", "maxLength", place)
                return _named(f"^{ANY_AT_ALL}{{{counts.get('minLength', 0)},{counts.get('maxLength', '')}}}$", values)
        raise InvalidSchema("property names can only be limited by a list, a pattern, a format or a length", place)

    def _array(self, said: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
        held: dict[str, Any] = {"type": "array", **lengths(said, "minItems", "maxItems", path)}
        if not isinstance(said.get("uniqueItems", False), bool):
            raise InvalidSchema("uniqueItems must be a boolean", at(path, "uniqueItems"))
        if isinstance(said.get("items"), list):  # tuples before draft 2019-09, and still in draft 7
            rest = {"items": said["additionalItems"]} if "additionalItems" in said else {}
            said = {"prefixItems": said["items"], **rest}
        items = said.get("items", True)
        if "prefixItems" not in said:
            if items is not True:
                held["items"] = self._inside(items, at(path, "items"), depth)
            return held
        places = said["prefixItems"]
        if not isinstance(places, list) or not 1 <= len(places) <= BRANCHES_MAX:
            raise InvalidSchema(f"prefixItems must be a list of 1 to {BRANCHES_MAX} schemas", at(path, "prefixItems"))
        held["prefixItems"] = []
        for i, schema in enumerate(places):
            held["prefixItems"].append(self._inside(schema, at(path, f"prefixItems[{i}]"), depth))
        if "items" not in said:  # more items are not mentioned: such schemas mean exactly these, no more and no fewer
            items = False
            held.setdefault("minItems", min(len(places), held.get("maxItems", len(places))))
        if items is False and held.get("minItems", 0) > len(places):
            raise InvalidSchema("minItems exceeds the number of items that are possible", path)
        held["items"] = False if items is False else self._inside(items, at(path, "items"), depth)
        return held

    def _string(self, said: Mapping[str, Any], path: str) -> dict[str, Any]:
        """A pattern beside a known format often repeats it, for validators that do not know the format, but may add to
        it: that a time is in UTC. If the pattern needs lookaround, it cannot be enforced, and only the format is.
        """
        held: dict[str, Any] = {"type": "string", **lengths(said, "minLength", "maxLength", path)}
        format, pattern = said.get("format"), said.get("pattern")
        if pattern is not None and not isinstance(pattern, str):
            raise InvalidSchema("a pattern must be a string", at(path, "pattern"))
        if format is not None and not isinstance(format, str):
            raise InvalidSchema("a format must be a string", at(path, "format"))
        if format is not None:
            formatted = held | {"pattern": f"^(?:{FORMATS[format]})$"}
            also = None if pattern is None else _translated_or_none(pattern)
            return self._shared({"allOf": [formatted, {"type": "string", "pattern": also}]} if also else formatted)
        if pattern is not None:
            return self._shared(held | {"pattern": translated(pattern, at(path, "pattern"))})
        return held


def _translated_or_none(pattern: str) -> str | None:
    try:
        return translated(pattern, "")
    except InvalidSchema:
        return None


def _named(pattern: str, values: Any) -> dict[str, Any]:
    return {"patternProperties": {pattern: values}, "additionalProperties": False}


def _is_never(schema: Any) -> bool:
    """Whether no value fits, as zod and TypeBox write what is undefined."""
    if not isinstance(schema, Mapping):
        return schema is False
    return "not" in schema and asserted(schema) in ({"not": {}}, {"not": True})


# Whether the branches of a union are disjoint: no value fits two of them. When in doubt, they are not. Each branch and
# each constant is visited once per candidate property, because schemas are untrusted input.
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
    constant = (json.loads(text) for values in named for text in values)
    kinds += [{"number" if is_a("number", value) else kind_of(value) for value in constant}] if named else []
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
    names = {name for name in required if isinstance(name, str)}
    return {name: None for name in properties if name in names}
