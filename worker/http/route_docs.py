"""What the OpenAPI description needs of a route besides its path and the docstring of its handler."""

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
    """Decorates a handler: `@RouteDocs(Model)`.

    `takes` is the model of a JSON body, `form` the fields of a multipart one, `query` the schemas of parameters,
    `tells` the media types of a response with this `status`.
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
    """The default: no body, and a JSON response."""
    said: RouteDocs = getattr(handler, "described", RouteDocs())
    return said
