"""What a route declares where it is registered: who may call it, which is checked before the body is read, and what the
OpenAPI description needs besides its path and the docstring of its handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

from aiohttp import web
from pydantic import BaseModel

from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.errors import ApiError

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
class Access:
    """Any one of the `scopes` grants access. Without scopes the route is public: for visitors, who may be signed in, or
    for everybody alike.
    """

    scopes: frozenset[Scope] = frozenset()
    visitors: bool = False

    @classmethod
    def of(cls, granted: Granted) -> Access:
        """For callers with one of the scopes."""
        if isinstance(granted, Access):
            return granted
        return cls(frozenset([granted] if isinstance(granted, Scope) else granted))

    def check(self, principal: Principal) -> None:
        """Raises ApiError 403 naming the missing scope."""
        if not self.scopes or self.scopes & principal.scopes:
            return
        names = " or ".join(scope for scope in Scope if scope in self.scopes)
        message = f"This needs the scope {names}, which these credentials do not have."
        raise ApiError(403, message, code="missing_scope")


EVERYBODY, VISITORS = Access(), Access(visitors=True)
Granted: TypeAlias = Access | Scope | Iterable[Scope]


def access_of(handler: Any) -> Access | None:
    """The access that the route of a handler declares; None if it declares none, which denies everybody."""
    access: Access | None = getattr(handler, "access", None)
    return access


@dataclass(frozen=True, slots=True)
class RouteDocs:
    """`takes` is the model of a JSON body, `form` the fields of a multipart one, `query` the schemas of parameters,
    `tells` the media types of a response with this `status`.
    """

    takes: type[BaseModel] | None = None
    form: Mapping[str, Schema] = field(default_factory=dict)
    query: Mapping[str, Schema] = field(default_factory=dict)
    tells: tuple[str, ...] = (JSON,)
    status: int = 200


class Routes(list[web.RouteDef]):
    """Those of a resource. Its methods decorate handlers: `@routes.post("/v1/things", Scope.CHAT, takes=Model)`, as
    RouteDocs says. A handler may have several paths.
    """

    def get(self, path: str, access: Granted, *, allow_head: bool = True, **docs: Any) -> Callable[[Handler], Handler]:
        return self._declared(partial(web.get, path, allow_head=allow_head), access, RouteDocs(**docs))

    def post(self, path: str, access: Granted, **docs: Any) -> Callable[[Handler], Handler]:
        return self._declared(partial(web.post, path), access, RouteDocs(**docs))

    def delete(self, path: str, access: Granted) -> Callable[[Handler], Handler]:
        return self._declared(partial(web.delete, path), access, RouteDocs())

    def _declared(
        self, route: Callable[[Handler], web.RouteDef], access: Granted, docs: RouteDocs
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            handler.access, handler.described = Access.of(access), docs  # type: ignore[attr-defined]
            self.append(route(handler))
            return handler

        return declare
