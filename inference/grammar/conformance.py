"""Whether finished texts and values conform to a schema. Nothing is enforced here: that is what grammars do.

Patterns are matched by an automaton, in time linear in the text; lookaround and backreferences are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jsonschema_rs
import orjson

from inference.errors import SchemaUnmet
from inference.grammar.keywords import KEYWORDS, UNENFORCED, References, Target, as_list, asserted, base_of

AUTOMATON_BYTES_MAX = 4 * 2**20  # compiled: patterns of about a hundred characters take a few kilobytes
_LINEAR = jsonschema_rs.RegexOptions(size_limit=AUTOMATON_BYTES_MAX, dfa_size_limit=AUTOMATON_BYTES_MAX)


class Unusable(ValueError):
    """Not a schema, or a pattern that no automaton can match."""


class Checked:
    """A schema that the operator of this machine wrote, compiled once. Of clients' schemas, only keywords that concern
    a single value are used. Raises Unusable."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._validator = jsonschema_rs.Draft202012Validator(
                dict(schema), retriever=fetch_nothing, pattern_options=_LINEAR
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise Unusable(str(error).splitlines()[0]) from None

    def unmet(self, text: str) -> str | None:
        """What a JSON text violates, in a few words; None if it conforms."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return "not JSON"
        return self.broken(value)

    def broken(self, value: Any) -> str | None:
        """The same for a parsed value."""
        found = next(self._validator.iter_errors(value), None)
        return None if found is None else f"{found.schema_path[-1]} of {place_in(found.instance_path)}"

    def keyword(self, value: Any) -> str | None:
        """The keyword that a parsed value violates."""
        found = next(self._validator.iter_errors(value), None)
        return None if found is None else str(found.schema_path[-1])


class Pattern:
    """Matches anywhere in a text, unless it is anchored. Raises Unusable."""

    def __init__(self, pattern: str) -> None:
        try:
            self._checked = Checked({"type": "string", "pattern": pattern})
        except Unusable:
            raise Unusable("not a pattern that can be matched in linear time") from None

    def occurs_in(self, text: str) -> bool:
        return self._checked.broken(text) is None


def place_in(path: Sequence[str | int]) -> str:
    """The human-readable position of a value."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return place.lstrip(".") or "the whole"


def fetch_nothing(address: str) -> Any:
    raise ValueError(f"nothing is fetched: {address}")


CHECKS_MAX = 3_000  # of a value against a schema, at 10 µs each: arguments are checked on the event loop
ANSWER_CHECKS_MAX = 30_000  # in a thread; more than an answer of 10,000 tokens takes
# Keywords whose values are schemas, and `format`, which is an annotation.
WALKED = frozenset({"properties", "patternProperties", "additionalProperties", "propertyNames", "format"}) | frozenset(
    {"items", "prefixItems", "additionalItems"}
)
SINGLE = frozenset({"type", "enum", "const"}).union(*KEYWORDS.values()) - WALKED


class Breach(NamedTuple):
    keyword: str  # empty: no value is allowed there
    path: tuple[str | int, ...]

    def __str__(self) -> str:
        place = place_in(self.path)
        return f"{self.keyword} of {place}" if self.keyword else f"{place} is not allowed"


class Conformance:
    """The check of the schema that a client insists on, whatever wrote the value: not every dialect of tool calls can
    be held to a schema by a grammar, and no grammar enforces every keyword.

    Clients write these schemas, and a union of references to itself would take a validator exponential time. So the
    schema is walked here, within a limit, and only the keywords of a single value are left to the validator. What
    cannot be checked counts as met.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._whole = Target(schema, "")
        self._references = References(schema)
        self._single: dict[int, Checked | None] = {}  # by the identity of the schema
        self._patterns: dict[str, Pattern | None] = {}
        self._left = 0

    def broken(self, value: Any) -> str | None:
        """What the value violates, such as "type of days"; None if nothing, or if that would take too long to find."""
        found = next(self.breaches(value), None)
        return None if found is None else str(found)

    def breaches(self, value: Any, checks_max: int = CHECKS_MAX) -> Iterator[Breach]:
        """All that is found within so many checks."""
        self._left = checks_max
        with suppress(TooMuch, RecursionError):
            yield from self._broken(self._whole, value, ())

    def _broken(self, target: Target, value: Any, path: tuple[str | int, ...]) -> Iterator[Breach]:
        self._spend()
        schema = target.schema
        if schema is False:
            yield Breach("", path)
        if not isinstance(schema, Mapping):
            return
        base = base_of(schema, target.base)
        checked = self._checked(schema)
        if checked is not None and (keyword := checked.keyword(value)):
            yield Breach(keyword, path)
        reference = schema.get("$ref")
        if isinstance(reference, str) and (found := self._references.find(reference, base)):
            yield from self._broken(found, value, path)
        for part in as_list(schema.get("allOf")):
            yield from self._broken(Target(part, base), value, path)
        for keyword in ("anyOf", "oneOf"):
            branches = [Target(each, base) for each in as_list(schema.get(keyword))]
            yield from self._of_union(keyword, branches, value, path)
        for step, part, each in self._inside(schema, value):
            yield from self._broken(Target(part, base), each, (*path, step))

    def _of_union(
        self, keyword: str, branches: Sequence[Target], value: Any, path: tuple[str | int, ...]
    ) -> Iterator[Breach]:
        """Where no branch fits, what no grammar enforces is told first: one held the value to the rest of a branch."""
        breaches: list[Breach | None] = []
        for each in branches:
            breaches.append(next(self._broken(each, value, path), None))
            if breaches[-1] is None and keyword == "anyOf":
                return
        fitting = breaches.count(None)
        if breaches and not fitting:
            beyond = (breach for breach in breaches if breach and breach.keyword in UNENFORCED)
            yield next(beyond, Breach(keyword, path))
        elif fitting > 1:
            yield Breach(keyword, path)

    def _checked(self, schema: Mapping[str, Any]) -> Checked | None:
        if id(schema) not in self._single:
            said = asserted(schema)
            single = {keyword: said[keyword] for keyword in SINGLE & said.keys()}
            try:
                self._single[id(schema)] = Checked(single) if single else None
            except Unusable:  # a pattern that only backtracking could match, for example
                self._single[id(schema)] = None
        return self._single[id(schema)]

    def _inside(self, schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str | int, Any, Any]]:
        """The members of an object or a list, each with its place and its schema."""
        if isinstance(value, Mapping):
            named, patterns = (_mapping(schema.get(keyword)) for keyword in ("properties", "patternProperties"))
            for name, each in value.items():
                parts = [named[name]] if name in named else []
                parts += self._by_pattern(name, patterns)
                yield from ((name, part, each) for part in parts or [schema.get("additionalProperties", True)])
        elif isinstance(value, list):
            places, items = as_list(schema.get("prefixItems")), schema.get("items", True)
            if isinstance(items, list):  # tuples before draft 2019-09
                places, items = items, schema.get("additionalItems", True)
            yield from ((at, places[at] if at < len(places) else items, each) for at, each in enumerate(value))

    def _by_pattern(self, name: str, patterns: Mapping[str, Any]) -> Iterator[Any]:
        """The schemas of the patterns that a name has; of one that cannot be matched, that of any value."""
        for pattern, part in patterns.items():
            self._spend()
            if pattern not in self._patterns:
                try:
                    self._patterns[pattern] = Pattern(pattern)
                except Unusable:
                    self._patterns[pattern] = None
            if (known := self._patterns[pattern]) is None:
                yield True
            elif known.occurs_in(name):
                yield part

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooMuch


class TooMuch(Exception):
    """The limit of checks is reached."""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def is_enforceable(schema: Mapping[str, Any]) -> bool:
    """Whether grammars enforce all keywords of a schema that they take."""
    text = str(schema)
    return not any(keyword in text for keyword in UNENFORCED)


def check(schema: Mapping[str, Any], text: str) -> None:
    """Validate a text that was written under the grammar of a schema against the keywords that no grammar enforces. The
    time grows with the length of the text, so call it off the event loop. Raises SchemaUnmet.
    """
    if is_enforceable(schema):
        return
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # cut off by a stop string of the client: otherwise the grammar ensures valid JSON
        return
    found = Conformance(schema).breaches(value, ANSWER_CHECKS_MAX)
    if broken := next((breach for breach in found if breach.keyword in UNENFORCED), None):
        raise SchemaUnmet(broken.keyword, place_in(broken.path))
