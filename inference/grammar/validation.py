"""Whether a finished text keeps a schema or a pattern that the owner of this machine wrote down.

Nothing is held here and no client's schema is looked at: those are for grammars (see `schema`). Patterns are matched by
an automaton, in time that is linear in the text; what needs to look around or back is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema_rs
import orjson

AUTOMATON_BYTES_MAX = 4 * 2**20  # compiled: patterns of some hundred characters take some kilobytes
_LINEAR = jsonschema_rs.RegexOptions(size_limit=AUTOMATON_BYTES_MAX, dfa_size_limit=AUTOMATON_BYTES_MAX)


class Unusable(ValueError):
    """No schema, or a pattern that no automaton matches."""


class Checked:
    """A schema that was read once. Raises Unusable."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._validator = jsonschema_rs.Draft202012Validator(
                dict(schema), retriever=fetch_nothing, pattern_options=_LINEAR
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise Unusable(str(error).splitlines()[0]) from None

    def unmet(self, text: str) -> str | None:
        """What a JSON text does not keep, in a few words; None where it keeps everything."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return "not JSON"
        return self.broken(value)

    def broken(self, value: Any) -> str | None:
        """The same of a value."""
        found = next(self._validator.iter_errors(value), None)
        return None if found is None else f"{found.schema_path[-1]} of {place_in(found.instance_path)}"


class Pattern:
    """Found anywhere in a text, unless it is anchored. Raises Unusable."""

    def __init__(self, pattern: str) -> None:
        try:
            self._checked = Checked({"type": "string", "pattern": pattern})
        except Unusable:
            raise Unusable("not a pattern that can be matched in linear time") from None

    def occurs_in(self, text: str) -> bool:
        return self._checked.broken(text) is None


def place_in(path: Sequence[str | int]) -> str:
    """Of a value, for people."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return place.lstrip(".") or "the whole"


def fetch_nothing(address: str) -> Any:
    raise ValueError(f"nothing is fetched: {address}")
