"""Who may call a route: declared where the route is registered, checked before the body is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from aiohttp import web

from worker.auth.principal import Principal
from worker.auth.scope import Scope
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
