"""Parameters without effect, if the answer means the same without them.

Every other unsupported parameter is rejected. A response header names what was ignored.
"""

from __future__ import annotations

from typing import Any

from pydantic import AfterValidator, ValidationInfo

HEADER = "X-Firsttoken-Ignored"


class Ignored:
    """Names of parameters as the client wrote them, without duplicates, in order of occurrence."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, *names: str) -> None:
        self._names.update(dict.fromkeys(names))

    @property
    def header(self) -> str:
        return ",".join(self._names)


def note(info: ValidationInfo, name: str) -> None:
    """Record that a part of the request is ignored; outside of a request, such as in the queue, there is nobody to
    tell.
    """
    if isinstance(info.context, Ignored):
        info.context.add(name)


def without_effect(name: str, *neutral: object) -> AfterValidator:
    """A parameter that is accepted without effect. `name` is its full path in the body; `neutral` values request what
    happens anyway, so they are not reported."""

    def told(value: Any, info: ValidationInfo) -> Any:
        if value is not None and value not in neutral:
            note(info, name)
        return value

    return AfterValidator(told)
