"""Whether a value fits the schema that a client insists on, whatever wrote it: not every dialect of tool calls can be
held to a schema by a grammar, and no grammar enforces every keyword.

Clients write these schemas, and a union of references to itself would take a validator exponential time. So the schema
is walked here, within a limit, and only the keywords of a single value are left to the validator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inference.grammar.keywords import KEYWORDS, asserted
from inference.grammar.references import References, Target, base_of
from inference.grammar.validation import Checked, Unusable, place_in

CHECKS_MAX = 3_000  # of a value against a schema, at 10 µs each: arguments are checked on the event loop
# Keywords whose values are schemas, and `format`, which is an annotation.
WALKED = frozenset({"properties", "patternProperties", "additionalProperties", "propertyNames", "format"}) | frozenset(
    {"items", "prefixItems", "additionalItems"}
)
SINGLE = frozenset({"type", "enum", "const"}).union(*KEYWORDS.values()) - WALKED


class Conformance:
    """The check of one schema. What cannot be checked counts as met."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._whole = Target(schema, "")
        self._references = References(schema)
        self._single: dict[int, Checked | None] = {}  # by the identity of the schema
        self._left = 0

    def broken(self, value: Any) -> str | None:
        """What the value violates, such as "type of days"; None if nothing, or if that would take too long to find."""
        self._left = CHECKS_MAX
        try:
            return next(self._broken(self._whole, value, ()), None)
        except (TooMuch, RecursionError):
            return None

    def _broken(self, target: Target, value: Any, path: tuple[str | int, ...]) -> Iterator[str]:
        self._left -= 1
        if self._left < 0:
            raise TooMuch
        schema = target.schema
        if schema is False:
            yield f"{place_in(path)} is not allowed"
        if not isinstance(schema, Mapping):
            return
        base = base_of(schema, target.base)
        checked = self._checked(schema)
        if checked is not None and (keyword := checked.keyword(value)):
            yield f"{keyword} of {place_in(path)}"
        reference = schema.get("$ref")
        if isinstance(reference, str) and (found := self._references.find(reference, base)):
            yield from self._broken(found, value, path)
        for part in _list(schema.get("allOf")):
            yield from self._broken(Target(part, base), value, path)
        for keyword in ("anyOf", "oneOf"):
            branches = [Target(each, base) for each in _list(schema.get(keyword))]
            fitting = (each for each in branches if next(self._broken(each, value, path), None) is None)
            if branches and (next(fitting, None) is None or (keyword == "oneOf" and next(fitting, None) is not None)):
                yield f"{keyword} of {place_in(path)}"
        for step, part, each in _inside(schema, value):
            yield from self._broken(Target(part, base), each, (*path, step))

    def _checked(self, schema: Mapping[str, Any]) -> Checked | None:
        if id(schema) not in self._single:
            said = asserted(schema)
            single = {keyword: said[keyword] for keyword in SINGLE & said.keys()}
            try:
                self._single[id(schema)] = Checked(single) if single else None
            except Unusable:  # a pattern that only backtracking could match, for example
                self._single[id(schema)] = None
        return self._single[id(schema)]


class TooMuch(Exception):
    """The limit of checks is reached."""


def _inside(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """The members of an object or a list, each with its place and its schema. Patterns of names are not matched."""
    if isinstance(value, Mapping):
        named, others = schema.get("properties"), schema.get("additionalProperties", True)
        named, others = named if isinstance(named, Mapping) else {}, True if schema.get("patternProperties") else others
        yield from ((name, named.get(name, others), each) for name, each in value.items())
    elif isinstance(value, list):
        places, items = _list(schema.get("prefixItems")), schema.get("items", True)
        if isinstance(items, list):  # tuples before draft 2019-09
            places, items = items, schema.get("additionalItems", True)
        yield from ((at, places[at] if at < len(places) else items, each) for at, each in enumerate(value))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
