"""What the description of the API says of a route that its path and its handler's docstring do not tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel

Handler = TypeVar("Handler", bound=Callable[..., Any])
Schema: TypeAlias = dict[str, Any]

JSON, EVENTS, BYTES, PLAIN, HTML = (
    "application/json",
    "text/event-stream",
    "application/octet-stream",
    "text/plain",
    "text/html",
)


@dataclass(frozen=True, slots=True)
class RouteDocs:
    """Stands above a handler: `@RouteDocs(Model)`.

    `takes` is the model of a JSON body, `form` the fields of a multipart one, `query` the schemas of parameters,
    `tells` the media types of an answer with this `status`.
    """

    takes: type[BaseModel] | None = None
    form: Mapping[str, Schema] = field(default_factory=dict)
    query: Mapping[str, Schema] = field(default_factory=dict)
    tells: tuple[str, ...] = (JSON,)
    status: int = 200

    def __call__(self, handler: Handler) -> Handler:
        handler.described = self  # type: ignore[attr-defined]
        return handler


def docs_of(handler: Any) -> RouteDocs:
    """A handler that says nothing takes nothing and answers with JSON."""
    said: RouteDocs = getattr(handler, "described", RouteDocs())
    return said
