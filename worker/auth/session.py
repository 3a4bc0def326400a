"""Browser sessions: a signed cookie that names a row, so that a forged one never reaches the database and a real one
can be revoked.

A session ends after LIFETIME_S, however much it is used: a stolen cookie cannot be kept alive.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import UUID

import orjson
from aiohttp import web

from migrations.pool import Database
from worker.auth.audit import Act, Actor, note
from worker.auth.keys import Grant
from worker.auth.scope import Scope, known
from worker.auth.secret import Secret
from worker.errors import ApiError

LIFETIME_S = 30 * 24 * 3600
PURPOSE = "session"
ID_BYTES = 16
AGENT_CHARS_MAX = 200
LISTED_MAX = 1000  # of a tenant; with more, some must be ended to see the rest
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Session:
    """`address` and `agent` are those of the browser when it signed in; `last_used_at` is up to a minute old. `person`
    is the user that the identity provider named; None for sign-in links.
    """

    id: str
    person: str | None
    scopes: frozenset[Scope]
    address: str | None
    agent: str | None
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a cookie that we signed; whether the session is still valid is in its row."""

    tenant_id: UUID
    id: str
    expires_at: float  # Unix seconds


class Sessions:
    """The owner of the table browser_sessions, and of the cookies that name its rows.

    Cookies are shared by all ports of a host; the cookie's name contains an identifier of the secret, so that two
    installations on one machine do not sign each other's browsers out.
    """

    def __init__(self, database: Database, secret: Secret) -> None:
        self._database = database
        self._secret = secret

    @property
    def cookie_name(self) -> str:
        return self._cookie_names()[0]

    async def start(
        self,
        response: web.StreamResponse,
        grant: Grant,
        browser: Actor,
        agent: str,
        *,
        secure: bool,
        lifetime_s: int = LIFETIME_S,
        person: str | None = None,
    ) -> None:
        """Sign the browser in that receives this response. `agent` is its user agent."""
        id, expires_at = f"sess_{secrets.token_hex(ID_BYTES)}", int(time.time()) + lifetime_s
        async with self._database.tenant(grant.tenant_id) as connection:
            await connection.execute(
                "insert into browser_sessions (tenant_id, id, scopes, address, agent, expires_at, person) "
                "values ($1, $2, $3, $4, $5, $6, $7)",
                *(grant.tenant_id, id, sorted(grant.scopes), browser.address, agent[:AGENT_CHARS_MAX]),
                datetime.fromtimestamp(expires_at, UTC),
                person,
            )
            await note(connection, grant.tenant_id, browser, Act.SESSION_CREATED, id, scopes=sorted(grant.scopes))
        signed = self._secret.sign(PURPOSE, orjson.dumps({"t": str(grant.tenant_id), "s": id, "e": expires_at}))
        response.set_cookie(
            self.cookie_name, signed, max_age=lifetime_s, path="/", httponly=True, samesite="Strict", secure=secure
        )

    def forget(self, response: web.StreamResponse) -> None:
        """Remove the cookie from the browser that receives this response."""
        for name in self._cookie_names():
            response.del_cookie(name, path="/", httponly=True, samesite="Strict")

    def cookie(self, cookies: Mapping[str, str]) -> str | None:
        """The cookie of this installation, if the request has one."""
        return next((cookies[name] for name in self._cookie_names() if name in cookies), None)

    def read(self, cookie: str) -> Claim | None:
        """The content of the cookie; None if it is not ours, or has expired."""
        payload = self._secret.verify(PURPOSE, cookie)
        if payload is None:
            return None
        content = orjson.loads(payload)
        return Claim(UUID(content["t"]), content["s"], content["e"]) if content["e"] > time.time() else None

    async def scopes(self, tenant_id: UUID, id: str) -> frozenset[Scope] | None:
        """What the session grants now; None when it has ended."""
        scopes = await self._database.value(
            tenant_id,
            "select scopes from browser_sessions "
            "where tenant_id = $1 and id = $2 and revoked_at is null and expires_at > now()",
            id,
        )
        return None if scopes is None else known(scopes)

    async def list(self, tenant_id: UUID) -> list[Session]:
        """The valid sessions, newest first."""
        rows = await self._database.rows(
            tenant_id,
            "select id, person, scopes, address, agent, created_at, last_used_at, expires_at from browser_sessions "
            "where tenant_id = $1 and revoked_at is null and expires_at > now() order by created_at desc, id limit $2",
            LISTED_MAX,
        )
        return [Session(**{**row, "scopes": known(row["scopes"])}) for row in rows]

    async def revoke(self, tenant_id: UUID, *ids: str, by: Actor) -> Sequence[str]:
        """The ids among these that were valid sessions of this tenant."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
                "update browser_sessions set revoked_at = now() "
                "where id = any ($1) and revoked_at is null returning id",
                ids,
            )
            for row in rows:
                await note(connection, tenant_id, by, Act.SESSION_REVOKED, row["id"])
        return [row["id"] for row in rows]

    async def tidy(self) -> None:
        """Remove the expired sessions of all tenants."""
        await self._database.fetch("select forget_sessions()")

    def _cookie_names(self) -> Sequence[str]:
        return [f"firsttoken_{mark}" for mark in self._secret.marks]


def require_same_origin(method: str, headers: Mapping[str, str]) -> None:
    """Browsers attach cookies automatically, so a request that changes something must come from our own page.

    Raises ApiError(403).
    """
    if method in SAFE_METHODS:
        return
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    from_here = site == "same-origin" if site is not None else urlsplit(origin or "").netloc == headers.get("Host")
    if not from_here:
        message = (
            "A browser session may only be used by this server's own page. Programs send an API key, and proxies pass "
            "the header Host on."
        )
        raise ApiError(403, message, code="cross_origin")
