"""Whether a finished text conforms to a schema or a pattern that the operator of this machine wrote.

Nothing is enforced here. Of clients' schemas, only keywords that concern a single value are used (see `conformance`).
Patterns are matched by an automaton, in time linear in the text; lookaround and backreferences are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema_rs
import orjson

AUTOMATON_BYTES_MAX = 4 * 2**20  # compiled: patterns of about a hundred characters take a few kilobytes
_LINEAR = jsonschema_rs.RegexOptions(size_limit=AUTOMATON_BYTES_MAX, dfa_size_limit=AUTOMATON_BYTES_MAX)


class Unusable(ValueError):
    """Not a schema, or a pattern that no automaton can match."""


class Checked:
    """A schema that is compiled once. Raises Unusable."""

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
