"""API keys and one-time sign-in links: created here, shown once, stored as keyed hashes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from migrations.pool import Database
from worker.auth.audit import WORKER, Act, Actor, note
from worker.auth.principal import KeyLimits
from worker.auth.scope import USUAL, Scope, known
from worker.auth.secret import Secret

KEY_PREFIX = "ft_"
SECRET_BYTES = 32
HINT_CHARS = 8  # enough for people to tell keys apart, useless for guessing: 5 of 43 random characters
LINK_ID_BYTES = 8  # of a hash keyed by the secret
KEY, LINK = "api-key", "sign-in-link"  # purposes of the hashes
LOCAL_TENANT = "local"  # the tenant of the person who runs the worker
LINK_LIFETIME = timedelta(hours=12)  # printed at start, often followed much later


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is still known of a key after its creation."""

    id: str
    name: str
    hint: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    bounds: Mapping[str, float | str]

    @property
    def state(self) -> str:
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= datetime.now(UTC) else "active"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a valid credential grants."""

    id: str
    tenant_id: UUID
    scopes: frozenset[Scope]
    expires_at: datetime | None = None
    bounds: KeyLimits | None = None


def sign_in_link(url: str, token: str) -> str:
    """The link that signs a person in at the worker of this URL, with a token of `Keys.create_link`."""
    return f"{url}/?token={token}"


class Keys:
    """The owner of the tables api_keys and sign_in_links."""

    def __init__(self, database: Database, secret: Secret) -> None:
        self._database = database
        self._secret = secret

    async def tenant(self, name: str) -> UUID:
        """The tenant of that name, created if it is new."""
        async with self._database.anonymous() as connection:
            tenant_id: UUID = await connection.fetchval("select ensure_tenant($1)", name)
        return tenant_id

    async def known_tenant(self, name: str) -> UUID | None:
        """The tenant of that name, if there is one."""
        async with self._database.anonymous() as connection:
            tenant_id: UUID | None = await connection.fetchval("select known_tenant($1)", name)
        return tenant_id

    async def create(
        self,
        tenant_id: UUID,
        name: str,
        *,
        scopes: Iterable[Scope] = USUAL,
        expires_at: datetime | None = None,
        bounds: KeyLimits | None = None,
        by: Actor = WORKER,
    ) -> tuple[str, str]:
        """Create a key: (id, the key itself, which cannot be read again)."""
        told = bounds.model_dump(exclude_unset=True, by_alias=True) if bounds else {}
        key, id = KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES), f"key_{secrets.token_hex(12)}"
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute(
                "insert into api_keys (id, tenant_id, name, hash, hint, scopes, expires_at, bounds, secret_mark) "
                "values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                *(id, tenant_id, name, self._secret.digest(KEY, key), key[:HINT_CHARS]),
                *(sorted(scopes), expires_at, told, self._secret.marks[0]),
            )
            await note(connection, tenant_id, by, Act.KEY_CREATED, id, name=name, scopes=sorted(scopes))
        return id, key

    async def list(self, tenant_id: UUID) -> list[ApiKey]:
        """All keys of a tenant, newest first, including invalid ones."""
        rows = await self._database.rows(
            tenant_id,
            "select id, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at, bounds "
            "from api_keys where tenant_id = $1 order by created_at desc, id",
        )
        return [ApiKey(**{**row, "scopes": known(row["scopes"])}) for row in rows]

    async def revoke(self, tenant_id: UUID, id: str, *, by: Actor = WORKER) -> bool:
        """Whether the tenant had a key with that id. Workers notice at their next recheck of cached credentials."""
        async with self._database.tenant(tenant_id) as connection:
            name = await connection.fetchval(
                "update api_keys set revoked_at = coalesce(revoked_at, now()) where id = $1 returning name", id
            )
            if name is not None:
                await note(connection, tenant_id, by, Act.KEY_REVOKED, id, name=name)
        return name is not None

    async def authenticate(self, key: str) -> Grant | None:
        """What a key grants now; None for an unknown, expired or revoked one."""
        async with self._database.anonymous() as connection:
            row = await connection.fetchrow(
                "select * from authenticate_api_key($1, $2)", self._secret.digests(KEY, key), self._secret.marks[0]
            )
        if row is None:
            return None
        bounds = _bounds(row["bounds"])
        return Grant(row["key_id"], row["tenant_id"], known(row["scopes"]), row["expires_at"], bounds)

    async def grant(self, tenant_id: UUID, id: str) -> Grant | None:
        """What the key with this id grants now; None when it is unknown, expired or revoked."""
        row = await self._database.row(
            tenant_id,
            "select scopes, expires_at, bounds from api_keys where tenant_id = $1 and id = $2 and revoked_at is null "
            "and (expires_at is null or expires_at > now())",
            id,
        )
        if row is None:
            return None
        return Grant(id, tenant_id, known(row["scopes"]), row["expires_at"], _bounds(row["bounds"]))

    async def create_link(self, tenant_id: UUID, *, scopes: Iterable[Scope] = USUAL, by: Actor = WORKER) -> str:
        """A token that signs one browser in, once."""
        token = secrets.token_urlsafe(SECRET_BYTES)
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute("delete from sign_in_links where expires_at < now()")
            await connection.execute(
                "insert into sign_in_links (hash, tenant_id, scopes, expires_at) values ($1, $2, $3, now() + $4)",
                *(hashed := self._secret.digest(LINK, token), tenant_id, sorted(scopes), LINK_LIFETIME),
            )
            await note(connection, tenant_id, by, Act.LINK_CREATED, _link_id(hashed), scopes=sorted(scopes))
        return token

    async def redeem_link(self, token: str) -> Grant | None:
        """What the link grants; None when it is unknown, used or too old."""
        hashes = self._secret.digests(LINK, token)
        rows = await self._database.fetch("select hash, tenant_id, scopes from redeem_sign_in_link($1)", hashes)
        return next((Grant(_link_id(row["hash"]), row["tenant_id"], known(row["scopes"])) for row in rows), None)

    async def of_other_secrets(self) -> int:
        """The number of valid keys, of all tenants, that are not hashed with the secret that signs now."""
        async with self._database.anonymous() as connection:
            count: int = await connection.fetchval("select keys_of_other_secrets($1)", self._secret.marks[0])
        return count

    async def counting(self, ids: Iterable[str], used: Iterable[str]) -> set[str]:
        """Those of these keys and sessions, of any tenant, that are valid now. The `used` ones are marked as used."""
        rows = await self._database.fetch("select id from recheck_credentials($1, $2)", list(ids), list(used))
        return {row["id"] for row in rows}


def _link_id(hashed: bytes) -> str:
    """The id of a link in the audit log: the same at its creation and its use."""
    return f"link_{hashed[:LINK_ID_BYTES].hex()}"


def _bounds(stored: Mapping[str, float | str]) -> KeyLimits | None:
    return KeyLimits.model_validate(stored) if stored else None
