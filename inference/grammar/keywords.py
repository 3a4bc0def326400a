"""The keywords of a JSON schema: which ones are known, whether their values are valid, and what a reference leads to.

Only the document itself is searched for that, and nothing is ever fetched. Indexing it is linear in its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from inference.errors import InvalidSchema

# String formats: what these expressions match is valid, not only well-formed (no 30th of February). Every text is
# bounded and of a common form: models would write others only by accident.
_YEAR = "[1-9][0-9]{3}"
_LEAP = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_HOUR, _SIXTY = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = rf"{_HOUR}:{_SIXTY}:{_SIXTY}(?:\.[0-9]{{1,6}})?(?:Z|[-+]{_HOUR}:{_SIXTY})"
_HEX = "[0-9a-f]"
_UUID = f"{_HEX}{{{{8}}}}-{_HEX}{{{{4}}}}-{{version}}{_HEX}{{{{3}}}}-[89ab]{_HEX}{{{{3}}}}-{_HEX}{{{{12}}}}"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-f]{1,4}"
_CLOCK = "T(?:[0-9]{1,4}H(?:[0-9]{1,4}M)?(?:[0-9]{1,4}S)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAYS = "(?:[0-9]{1,4}Y(?:[0-9]{1,4}M)?(?:[0-9]{1,4}D)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
_PATH = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})*"
_QUERY = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,4}}W)",
    "uuid": _UUID.format(version="[1-8]"),
    **{f"uuid{version}": _UUID.format(version=version) for version in range(1, 9)},  # the names that pydantic uses
    "email": rf"[a-z0-9]{{1,20}}(?:[._-][a-z0-9]{{1,20}}){{0,3}}@(?:{_LABEL}\.){{1,3}}[a-z]{{2,10}}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": f"(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}:(?:{_GROUP})?|::(?:{_GROUP})?",
    "uri": f"[a-z][a-z0-9+]{{1,10}}://{_HOST}(?::[1-9][0-9]{{1,3}})?(?:/{_PATH})?(?:[?]{_QUERY})?(?:#{_QUERY})?",
}


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
# Keywords that no grammar enforces: the finished text is validated against them. Of an object without named properties,
# grammars can count.
UNENFORCED = frozenset({"uniqueItems", "minProperties", "maxProperties"})
# Formats that say how wide an integer is: their readers take no wider one. 64 bits are more than LARGEST.
WIDTHS = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
}
WHOLE, LISTED = ("integer", ["integer", "null"]), ("const", "enum")
LENGTH_MAX = 20_000  # of anything counted: each position is a state of its own


def asserted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that constrain the value, as the newest draft writes them. A `format` that is not among `FORMATS`
    says what a value means, not which ones fit; but integers have the bounds of their width where none are stated.
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
    width = WIDTHS.get(str(schema.get("format")))
    if width and said.get("type") in WHOLE and said.keys().isdisjoint(LISTED):
        for sides, bound in zip((LOWER, UPPER), width, strict=True):
            said |= {} if said.keys() & set(sides) else {sides[0]: bound}
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


def kind_of(value: Any) -> str:
    """The type of a JSON value; an integer is not only a number."""
    return next(kind for kind in ("integer", *KEYWORDS) if is_a(kind, value))


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


# Bounds of numbers are limited to what every JSON parser represents exactly.
LARGEST = 2**53 - 1  # integers up to here are exact in every parser; zod uses the same bound
DIGITS_MAX = 9  # decimal places of a bounded number: models may never stop writing threes
NEAR = 1e-6  # distance to an exclusive bound
STEPS_MAX = 1_000_000  # each remainder is a state of its own
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def integer(said: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Raises InvalidSchema."""
    bounds = _bounds(said, path)
    low = max(math.ceil(bounds.get("minimum", -LARGEST)), math.floor(bounds.get("exclusiveMinimum", -LARGEST - 1)) + 1)
    high = min(math.floor(bounds.get("maximum", LARGEST)), math.ceil(bounds.get("exclusiveMaximum", LARGEST + 1)) - 1)
    if low > high:
        raise InvalidSchema("no number lies between the bounds", path)
    return {"type": "integer", "minimum": low, "maximum": high, **_multiples(said, path)}


def decimal(said: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Without bounds it may have an exponent; with bounds, up to DIGITS_MAX decimal places. Raises InvalidSchema."""
    bounds, multiples = _bounds(said, path), _multiples(said, path)
    if not bounds:
        return {"type": "number", **multiples}
    if bounds.keys().isdisjoint(LOWER):
        bounds["minimum"] = -LARGEST
    if bounds.keys().isdisjoint(UPPER):
        bounds["maximum"] = LARGEST
    low = max(bounds[name] for name in LOWER if name in bounds)
    high = min(bounds[name] for name in UPPER if name in bounds)
    if low > high or (low == high and not _is_inside(low, bounds)):
        raise InvalidSchema("no number lies between the bounds", path)
    if not multiples and low < high and all(round(bound, DIGITS_MAX) == bound for bound in bounds.values()):
        multiples = {"multipleOf": 10**-DIGITS_MAX}
    apart = _apart(bounds, low, high)
    held = {"type": "number", **apart, **multiples}
    shorter = [
        v for v in sorted({each for bound in apart.values() for each in _shorter(bound)}) if _is_inside(v, bounds)
    ]
    return {"anyOf": [held, {"enum": shorter}]} if shorter and "multipleOf" not in said else held


def _apart(bounds: Mapping[str, float], low: float, high: float) -> dict[str, float]:
    """llguidance allows an integral exclusive bound if the other bound is less than one away."""
    apart = dict(bounds)
    if high - low < 1:
        if bounds.get("exclusiveMinimum") == low and low % 1 == 0:
            apart["minimum"] = apart.pop("exclusiveMinimum") + NEAR
        if bounds.get("exclusiveMaximum") == high and high % 1 == 0:
            apart["maximum"] = apart.pop("exclusiveMaximum") - NEAR
    return apart


def _shorter(bound: float) -> list[float]:
    """The bound and its prefixes: 0.75, 0.7 and 0. llguidance may require more digits of such numbers."""
    text = format(bound, f".{DIGITS_MAX}f").rstrip("0")
    return [float(text[:end]) for end in range(text.index("."), len(text) + 1)]


def _is_inside(value: float, bounds: Mapping[str, float]) -> bool:
    return bounds.get("minimum", value) <= value <= bounds.get("maximum", value) and bounds.get(
        "exclusiveMinimum", value - 1
    ) < value < bounds.get("exclusiveMaximum", value + 1)


def _bounds(said: Mapping[str, Any], path: str) -> dict[str, float]:
    """The bounds that are present, clipped to LARGEST."""
    bounds: dict[str, float] = {}
    for keyword in (*LOWER, *UPPER):
        value = said.get(keyword)
        if value is None:
            continue
        if not is_a("number", value) or not math.isfinite(value):
            raise InvalidSchema("a bound must be a finite number", at(path, keyword))
        bounds[keyword] = max(value, -LARGEST) if keyword in LOWER else min(value, LARGEST)
    return bounds


def _multiples(said: Mapping[str, Any], path: str) -> dict[str, float]:
    """llguidance scales the number by ten until it is integral, also in floating point."""
    value = said.get("multipleOf")
    if value is None:
        return {}
    if not is_a("number", value) or not 0 < value <= STEPS_MAX:
        raise InvalidSchema(f"multipleOf must be above 0 and at most {STEPS_MAX}", at(path, "multipleOf"))
    whole = float(value)
    while whole % 1 and whole <= STEPS_MAX:
        whole *= 10
    if whole > STEPS_MAX:
        raise InvalidSchema("this number has too many digits", at(path, "multipleOf"))
    return {"multipleOf": value}


URI_CHARS_MAX = 500  # without the fragment: each schema with an `$id` gets a URI of its own
# Keywords whose value is not a schema, nor a list of schemas: schemas by name, and plain data.
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
DATA = frozenset({"const", "enum", "default", "examples", "example"})
SCALARS = (str, int, float, type(None))


class Target(NamedTuple):
    """`base`: the URI to which the `$id` of the schema is relative, or its references if it has none."""

    schema: Any
    base: str


class References:
    """By pointer, by anchor, or by the URI of a schema: those of one document, of which the whole is a schema."""

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


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
