"""What a JSON schema declares about a value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from inference.grammar.keywords import KEYWORDS, References, Target, as_list, asserted, base_of, kind_of

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
