"""What a route declares where it is registered: who may call it, which is checked before the body is read, and what the
OpenAPI description needs besides its path and the docstring of its handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from aiohttp import web
from pydantic import BaseModel

from worker.auth.principal import Principal, Scope
from worker.errors import ApiError


@dataclass(frozen=True, slots=True)
class Access:
    """Any one of the `scopes` grants access. Without scopes the route is public: for visitors, who may be signed in, or
    for everybody alike.
    """

    scopes: frozenset[Scope] = frozenset()
    visitors: bool = False

    def check(self, principal: Principal) -> None:
        """Raises ApiError 403 naming the missing scope."""
        if not self.scopes or self.scopes & principal.scopes:
            return
        names = " or ".join(scope for scope in Scope if scope in self.scopes)
        message = f"This needs the scope {names}, which these credentials do not have."
        raise ApiError(403, message, code="missing_scope")


EVERYBODY, VISITORS = Access(), Access(visitors=True)


def needs(scopes: Scope | Iterable[Scope], *routes: web.RouteDef) -> list[web.RouteDef]:
    """The routes, restricted to callers with one of the scopes."""
    return declare(Access(frozenset([scopes] if isinstance(scopes, Scope) else scopes)), *routes)


def declare(access: Access, *routes: web.RouteDef) -> list[web.RouteDef]:
    """The routes, with the declaration that `access_of` returns."""
    return [web.RouteDef(route.method, route.path, _declared(route.handler, access), route.kwargs) for route in routes]


def access_of(request: web.Request) -> Access | None:
    """The access that a request's route declares; None if it declares none, which denies everybody."""
    access: Access | None = getattr(request.match_info.handler, "access", None)
    return access


def _declared(handler: Any, access: Access) -> Any:
    @wraps(handler)
    async def declared(request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        return response

    declared.access = access  # type: ignore[attr-defined]
    return declared


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
