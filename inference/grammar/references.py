"""Finds what a reference in a JSON schema leads to: by pointer, by anchor, or by the URI of a schema in the document.

Only the document itself is searched, and nothing is ever fetched. Indexing it is linear in its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urljoin

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
