"""The browser's session: a signed cookie, so that no table is read to know who clicks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit
from uuid import UUID

import orjson
from aiohttp import web

from worker.auth.keys import Grant
from worker.auth.principal import Principal
from worker.auth.secret import Secret
from worker.errors import ApiError

LIFETIME_S = 30 * 24 * 3600
PURPOSE = "session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Sessions:
    """Makes and reads session cookies.

    Cookies are shared by all ports of a host; the name carries a mark of the secret, so that two installations on one
    machine do not sign each other's browsers out.
    """

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self.cookie_name = f"firsttoken_{secret.digest('cookie-name', '')[:4].hex()}"

    def start(self, response: web.StreamResponse, grant: Grant, *, secure: bool) -> None:
        """Sign the browser in that gets this response."""
        expires_at = int(time.time()) + LIFETIME_S
        content = {"t": str(grant.tenant_id), "s": grant.id, "c": sorted(grant.scopes), "e": expires_at}
        signed = self._secret.sign(PURPOSE, orjson.dumps(content))
        response.set_cookie(
            self.cookie_name, signed, max_age=LIFETIME_S, path="/", httponly=True, samesite="Strict", secure=secure
        )

    def read(self, cookies: Mapping[str, str]) -> Principal | None:
        """Who the cookie says this is; None without a valid one."""
        payload = self._secret.verify(PURPOSE, cookies.get(self.cookie_name, ""))
        if payload is None:
            return None
        content = orjson.loads(payload)
        if content["e"] <= time.time():
            return None
        return Principal(UUID(content["t"]), content["s"], frozenset(content["c"]), "session")


def require_same_origin(method: str, headers: Mapping[str, str]) -> None:
    """A cookie comes along on its own, so what it may change must be asked for by our own page.

    Raises ApiError(403).
    """
    if method in SAFE_METHODS:
        return
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    from_here = site == "same-origin" if site is not None else urlsplit(origin or "").netloc == headers.get("Host")
    if not from_here:
        raise ApiError(
            403,
            "A browser session may only be used by this server's own page. Programs send an API key.",
            type="permission_error",
            code="cross_origin",
        )
