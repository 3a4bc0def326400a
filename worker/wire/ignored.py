"""What a request asked for that this server does not act on, where the answer means the same without it.

Everything else that is not acted on is refused. The answer names what was ignored in a header.
"""

from __future__ import annotations

from typing import Any

from pydantic import AfterValidator, ValidationInfo

HEADER = "X-Firsttoken-Ignored"


class Ignored:
    """Names of parameters as the caller wrote them, each once, in the order in which they were met."""

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
    """Say that a part of the request is ignored; outside of requests, such as in the queue, nobody is told."""
    if isinstance(info.context, Ignored):
        info.context.add(name)


def without_effect(name: str, *neutral: object) -> AfterValidator:
    """A parameter that passes without being acted on. `name` is its whole path in the body; `neutral` values ask for
    what happens anyway."""

    def told(value: Any, info: ValidationInfo) -> Any:
        if value is not None and value not in neutral:
            note(info, name)
        return value

    return AfterValidator(told)
