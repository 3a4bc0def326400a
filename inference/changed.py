"""Copies of frozen dataclasses with other values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its arguments are checked by a plugin that knows this name
    from dataclasses import replace as changed
else:

    def changed(instance: Any, **values: Any) -> Any:
        """`dataclasses.replace` in a third of the time, which a request takes a dozen times: 3 µs instead of 8 with 17
        fields. Raises KeyError for a name that is no argument of the class."""
        values_of, places = _fields(type(instance))
        given = list(values_of(instance))
        for name, value in values.items():
            given[places[name]] = value
        return type(instance)(*given)


@cache
def _fields(kind: type) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, int]]:
    """All arguments that made an instance, and the place of each by its name. `kind` takes two or more."""
    names = [field.name for field in fields(kind) if field.init]
    return attrgetter(*names), {name: place for place, name in enumerate(names)}


__all__ = ["changed"]
