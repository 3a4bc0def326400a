"""Whether finished texts and values conform to a schema. Nothing is enforced here: that is what grammars do.

Patterns are matched by an automaton, in time linear in the text; lookaround and backreferences are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs
import orjson

from inference.errors import InvalidSchema, SchemaUnmet
from inference.grammar.declared import References, Target, as_list, base_of
from inference.grammar.keywords import KEYWORDS, UNENFORCED, asserted, is_a, kind_of

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
# Keywords whose values are schemas, and `format`, which is an annotation.
WALKED = frozenset({"properties", "patternProperties", "additionalProperties", "propertyNames", "format"}) | frozenset(
    {"items", "prefixItems", "additionalItems"}
)
SINGLE = frozenset({"type", "enum", "const"}).union(*KEYWORDS.values()) - WALKED


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
        for part in as_list(schema.get("allOf")):
            yield from self._broken(Target(part, base), value, path)
        for keyword in ("anyOf", "oneOf"):
            branches = [Target(each, base) for each in as_list(schema.get(keyword))]
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
        places, items = as_list(schema.get("prefixItems")), schema.get("items", True)
        if isinstance(items, list):  # tuples before draft 2019-09
            places, items = items, schema.get("additionalItems", True)
        yield from ((at, places[at] if at < len(places) else items, each) for at, each in enumerate(value))


# Keywords of a schema that no grammar enforces, such as `uniqueItems`: the finished text is validated against a schema
# of only these, of which no two parts apply to the same value, so the time is linear in the text, whatever the schema.
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
        named = {name: rest for name, schema in node.get("properties", {}).items() if (rest := self.rest(schema))}
        others = self._others(node)
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
                return frozenset("number" if is_a("number", value) else kind_of(value) for value in values)
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


def _twice() -> InvalidSchema:
    reason = (
        "uniqueItems, and counts of named properties, are not supported in one of several schemas of the same value"
    )
    return InvalidSchema(reason)
