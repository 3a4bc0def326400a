"""Who may call a route: declared where it is registered, checked before its body is read."""

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
    """Any one of the `scopes` opens the route. Without scopes it is open: to visitors, who may be signed in, or to
    everybody alike.
    """

    scopes: frozenset[Scope] = frozenset()
    visitors: bool = False

    def check(self, principal: Principal) -> None:
        """Raises ApiError 403 naming what is missing."""
        if not self.scopes or self.scopes & principal.scopes:
            return
        names = " or ".join(scope for scope in Scope if scope in self.scopes)
        raise ApiError(
            403,
            f"This needs the scope {names}, which these credentials do not have.",
            type="permission_error",
            code="missing_scope",
        )


EVERYBODY, VISITORS = Access(), Access(visitors=True)


def needs(scopes: Scope | Iterable[Scope], *routes: web.RouteDef) -> list[web.RouteDef]:
    """The routes, open to who has one of the scopes."""
    return declare(Access(frozenset([scopes] if isinstance(scopes, Scope) else scopes)), *routes)


def declare(access: Access, *routes: web.RouteDef) -> list[web.RouteDef]:
    """The routes, with what `access_of` tells of them."""
    return [web.RouteDef(route.method, route.path, _declared(route.handler, access), route.kwargs) for route in routes]


def access_of(request: web.Request) -> Access | None:
    """What the route of a request asks for; None where nobody declared it, which is open to no one."""
    access: Access | None = getattr(request.match_info.handler, "access", None)
    return access


def _declared(handler: Any, access: Access) -> Any:
    @wraps(handler)
    async def declared(request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        return response

    declared.access = access  # type: ignore[attr-defined]
    return declared
