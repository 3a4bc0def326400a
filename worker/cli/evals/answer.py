"""The answer of one target to one case, with its times and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Called:
    """`arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that the model was given, or that a search returned. The n-th is cited as [n]."""

    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Milliseconds and tokens; `engine_ms` and `cost` as a worker of this project reports them. None: not known."""

    first_ms: float | None = None
    total_ms: float | None = None
    input_tokens: float | None = None
    cached_tokens: float | None = None
    output_tokens: float | None = None
    engine_ms: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`error` says in one line why there is none. `spans` are those of its trace, from a worker of this project."""

    text: str = ""
    calls: tuple[Called, ...] = ()
    found: tuple[Found, ...] = ()
    took: Usage = field(default_factory=Usage)
    error: str | None = None
    spans: Sequence[Mapping[str, Any]] = ()

    @property
    def shown(self) -> dict[str, Any]:
        """For reports."""
        if self.error:
            return {"error": self.error}
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
        return {"text": self.text, **({"calls": calls} if calls else {})}
