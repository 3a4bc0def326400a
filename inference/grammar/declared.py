"""What a reference in a JSON schema leads to: by pointer, by anchor, or by the URI of a schema in the document; and
what a schema declares about a value.

Only the document itself is searched, and nothing is ever fetched. Indexing it is linear in its size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urljoin

from inference.grammar.keywords import KEYWORDS, asserted, kind_of

URI_CHARS_MAX = 500  # without the fragment: each schema with an `$id` gets a URI of its own
# Keywords whose value is not a schema, nor a list of schemas: schemas by name, and plain data.
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
DATA = frozenset({"const", "enum", "default", "examples", "example"})
SCALARS = (str, int, float, type(None))


@dataclass(frozen=True, slots=True)
class Target:
    """`base`: the URI to which the `$id` of the schema is relative, or its references if it has none."""

    schema: Any
    base: str


class References:
    """Those of one document, of which the whole is a schema."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def find(self, reference: str, base: str) -> Target | None:
        """`base`: the URI of the schema that contains the reference. None if it leads nowhere."""
        try:
            uri, fragment = _joined(base, reference)
        except ValueError:
            return None
        if not fragment or fragment.startswith("/"):
            return _walked(self._index.get((uri, "")), fragment)
        return self._index.get((uri, fragment))

    @cached_property
    def _index(self) -> dict[tuple[str, str], Target]:
        """Schemas by their URI and their anchor, which is empty for those with an `$id`, and the document."""
        index: dict[tuple[str, str], Target] = {}
        for schema, outer, base in self._schemas():
            if base != outer or schema is self._document:
                index.setdefault((base, ""), Target(schema, outer))
            for anchor in _anchors(schema):
                index.setdefault((base, anchor), Target(schema, outer))
        return index

    @cached_property
    def targets(self) -> frozenset[int]:
        """The identities of all schemas that references lead to."""
        named = ((schema["$ref"], base) for schema, _, base in self._schemas() if "$ref" in schema)
        found = (self.find(reference, base) for reference, base in named if isinstance(reference, str))
        return frozenset(id(target.schema) for target in found if target is not None)

    def _schemas(self) -> Iterator[tuple[Mapping[str, Any], str, str]]:
        """Each with the URI around it, and the one inside it; without recursion."""
        pending: list[tuple[Any, str, bool]] = [(self._document, "", False)]
        while pending:
            value, outer, is_by_name = pending.pop()
            if isinstance(value, list):
                pending += [(each, outer, False) for each in value]
            elif isinstance(value, Mapping) and is_by_name:
                pending += [(each, outer, False) for each in value.values()]
            elif isinstance(value, Mapping):
                base = base_of(value, outer)
                yield value, outer, base
                inner = ((key, each) for key, each in value.items() if not isinstance(each, SCALARS))
                pending += [(each, base, key in BY_NAME) for key, each in inner if key not in DATA]


def base_of(schema: Any, outer: str) -> str:
    """The URI to which the references in a schema are relative. An `$id` that is no URI has no effect."""
    own = schema.get("$id") if isinstance(schema, Mapping) else None
    try:
        return _joined(outer, own)[0] if isinstance(own, str) else outer
    except ValueError:
        return outer


def _joined(base: str, reference: str) -> tuple[str, str]:
    """The URI and the decoded fragment. Raises ValueError."""
    address, _, fragment = reference.partition("#")
    uri = urljoin(base, address) if address else base
    if len(uri) > URI_CHARS_MAX:
        raise ValueError("too long")
    return uri, unquote(fragment)


def _anchors(schema: Mapping[str, Any]) -> list[str]:
    """Before draft 2019-09, an `$id` of a fragment alone was an anchor."""
    own = schema.get("$id")
    found = [schema.get("$anchor"), own[1:] if isinstance(own, str) and own.startswith("#") else None]
    return [anchor for anchor in found if isinstance(anchor, str) and anchor]


def _walked(start: Target | None, pointer: str) -> Target | None:
    """RFC 6901."""
    for step in pointer.split("/")[1:]:
        if start is None:
            return None
        start = _member(start, step.replace("~1", "/").replace("~0", "~"))
    return start


def _member(of: Target, key: str) -> Target | None:
    base = base_of(of.schema, of.base)
    if isinstance(of.schema, Mapping):
        return Target(of.schema[key], base) if key in of.schema else None
    if isinstance(of.schema, list) and key.isascii() and key.isdigit() and len(key) <= len(str(len(of.schema))):
        return Target(of.schema[int(key)], base) if int(key) < len(of.schema) else None
    return None


ANY = frozenset(KEYWORDS)
DEPTH_MAX = 64  # of references and unions that are followed: far below Python's limit
# What templates make of Python's values.
WORDS = {"True": "true", "False": "false", "None": "null"}
BRANCHES = ("allOf", "anyOf", "oneOf")


class Declared:
    """A schema within its document, for dialects of tool calls that write values without quotes: whether `77812` is a
    text or a number. References are followed, and unions and lists of types understood. Anything that is no schema
    declares nothing."""

    def __init__(self, schema: Any, references: References | None = None, base: str = "") -> None:
        self.schema = schema
        self._references = references or References(schema)
        self._base = base
        self.kinds = self._kinds_of(Target(schema, base), {}, 0)

    @property
    def texts(self) -> frozenset[str]:
        """Of a value that must be one of some constants, or that may be: those that are texts."""
        listed = (each for schema, _ in self._applied() for each in _constants(schema) or ())
        return frozenset(each for each in listed if isinstance(each, str))

    @property
    def options(self) -> list[str]:
        """All texts that the value may be, if the schema itself lists them."""
        listed = _constants(self.schema) if isinstance(self.schema, Mapping) else None
        return [each for each in listed or () if isinstance(each, str)]

    def json_of(self, bare: str) -> str:
        """The value that was written without quotes, as JSON text. One that does not fit stays a text."""
        if self.kinds == {"string"} or bare in self.texts:
            return json.dumps(bare, ensure_ascii=False)
        plain = bare.strip()
        try:
            value = json.loads(WORDS.get(plain, plain))
            if "string" not in self.kinds or kind_of(value) in self.kinds:
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
        return json.dumps(bare, ensure_ascii=False)

    @property
    def member_names(self) -> list[str]:
        """All properties that are declared for this object."""
        return list(dict.fromkeys(name for schema, _ in self._applied() for name in _properties(schema)))

    def member(self, name: str) -> Declared:
        """What is declared about a property of this object."""
        return self._part(lambda schema: _properties(schema).get(name, schema.get("additionalProperties")))

    @property
    def item(self) -> Declared:
        """What is declared about the items of this list."""
        return self._part(lambda schema: schema.get("items"))

    def _part(self, of: Callable[[Mapping[str, Any]], Any]) -> Declared:
        """If several are declared, the value may fit any of them."""
        found = [(part, base) for schema, base in self._applied() if isinstance(part := of(schema), Mapping)]
        part = found[0][0] if len(found) == 1 else {"anyOf": [part for part, _ in found]}
        return Declared(part, self._references, found[0][1]) if found else Declared({})

    def _applied(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        """The schema and all that apply to the same value, or may, each once."""
        pending, seen = [Target(self.schema, self._base)], set[int]()
        while pending:
            schema, outer = (target := pending.pop()).schema, target.base
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            base = base_of(schema, outer)
            yield schema, base
            pending += [Target(each, base) for keyword in BRANCHES for each in as_list(schema.get(keyword))]
            pending += self._referred(schema, base)

    def _referred(self, schema: Mapping[str, Any], base: str) -> list[Target]:
        reference = schema.get("$ref")
        found = self._references.find(reference, base) if isinstance(reference, str) else None
        return [] if found is None else [found]

    def _kinds_of(self, target: Target, known: dict[int, frozenset[str]], depth: int) -> frozenset[str]:
        """The types of its values."""
        schema = target.schema
        if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
            return ANY
        if id(schema) in known:
            return known[id(schema)]
        known[id(schema)] = ANY  # in case it refers to itself
        base = base_of(schema, target.base)
        kinds = ANY
        said = asserted(schema).get("type")
        if types := [each for each in as_list(said) or [said] if isinstance(each, str)]:
            kinds &= {*types, *(["integer"] if "number" in types else [])}
        if (constants := _constants(schema)) is not None:
            kinds &= set(map(kind_of, constants))
        for each in [*self._referred(schema, base), *(Target(each, base) for each in as_list(schema.get("allOf")))]:
            kinds &= self._kinds_of(each, known, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if branches := [Target(each, base) for each in as_list(schema.get(keyword))]:
                kinds &= frozenset().union(*(self._kinds_of(each, known, depth + 1) for each in branches))
        known[id(schema)] = kinds
        return kinds


def _constants(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return as_list(schema["enum"]) if "enum" in schema else None


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    listed = schema.get("properties")
    return listed if isinstance(listed, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
