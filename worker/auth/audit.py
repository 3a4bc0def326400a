"""The audit log: who did what to credentials, secrets and stored files, when and from where.

An entry is written in the transaction of the act, so that neither exists without the other. It contains no secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from migrations.pool import Connection, Database


class Act(StrEnum):
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    LINK_CREATED = "link.created"
    SESSION_CREATED = "session.created"
    SESSION_REVOKED = "session.revoked"
    SECRET_ROTATED = "secret.rotated"
    SECRET_DROPPED = "secret.dropped"
    STORE_DELETED = "vector_store.deleted"
    FILE_DELETED = "file.deleted"
    CONVERSATION_SHARED = "conversation.shared"
    CONVERSATION_UNSHARED = "conversation.unshared"
    CANARY_STARTED = "canary.started"
    CANARY_CHANGED = "canary.changed"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. `via` is the kind of credential (`api_key`, `jwt`, `session`, `link`, `oidc`), or `command` or
    `worker`; `subject` the id of a key or session, the subject of a token, or an account of this machine; `address`
    that of the client.
    """

    via: str
    subject: str
    address: str | None = None


WORKER = Actor("worker", "firsttoken")


@dataclass(frozen=True, slots=True)
class Note:
    position: int
    at: datetime
    actor: Actor
    act: str
    object: str
    detail: dict[str, Any]


async def note(connection: Connection, tenant_id: UUID, actor: Actor, act: Act, object: str, /, **detail: Any) -> None:
    """Record an act in its own transaction. `object` is the id of what was acted upon."""
    await connection.execute(
        "insert into audit_log (tenant_id, via, subject, address, act, object, detail) "
        "values ($1, $2, $3, $4, $5, $6, $7)",
        *(tenant_id, actor.via, actor.subject, actor.address, act, object, detail),
    )


class AuditLog:
    """The reader of the table audit_log, for one tenant at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, tenant_id: UUID, *, limit: int, before: int | None = None) -> list[Note]:
        """The newest first; with `before`, those that precede this position."""
        rows = await self._database.rows(
            tenant_id,
            "select position, at, via, subject, address, act, object, detail from audit_log "
            "where tenant_id = $1 and ($2::bigint is null or position < $2) order by position desc limit $3",
            *(before, limit),
        )
        return [_note(dict(row)) for row in rows]

    async def forget(self, days: float) -> None:
        """Remove older entries of all tenants; those of the last day are always kept."""
        await self._database.fetch("select forget_audit($1)", timedelta(days=days))


def _note(row: dict[str, Any]) -> Note:
    actor = Actor(row.pop("via"), row.pop("subject"), row.pop("address"))
    return Note(actor=actor, **row)
