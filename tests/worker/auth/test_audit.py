"""An act and its note stand or fall together, and nobody who serves can change what was noted."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import pytest

from migrations.pool import Database
from retrieval.store import PassageStore
from tests.worker.harness import SECRET
from worker.auth import keys as keys_module
from worker.auth.audit import Act, Actor, AuditLog, note
from worker.auth.keys import Keys

ADMIN = Actor("api_key", "key_admin", "192.0.2.7")


async def test_a_note_says_who_did_what_when_and_from_where(database: Database, tenant_id: UUID) -> None:
    keys = Keys(database, SECRET)
    id, key = await keys.create(tenant_id, "laptop", by=ADMIN)
    await keys.revoke(tenant_id, id, by=ADMIN)
    revoked, created = await AuditLog(database).list(tenant_id, limit=10)
    assert (created.act, created.object, created.actor) == (Act.KEY_CREATED, id, ADMIN)
    assert created.detail == {"name": "laptop", "scopes": ["chat", "ingest"]}
    assert (revoked.act, revoked.object) == (Act.KEY_REVOKED, id)
    assert created.at <= revoked.at
    assert key not in repr((created, revoked))


async def test_an_act_that_cannot_be_noted_is_not_done(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(keys_module, "note", full)
    keys = Keys(database, SECRET)
    with pytest.raises(OSError, match="no space"):
        await keys.create(tenant_id, "laptop")
    assert await keys.list(tenant_id) == []


async def test_a_store_that_is_deleted_is_noted_with_its_end(database: Database, tenant_id: UUID) -> None:
    passages, audit = PassageStore(database), AuditLog(database)
    store = await passages.create(tenant_id, "docs", {}, embedding_model="any", dimensions=3)

    async def refuse(connection: object) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        await passages.delete(tenant_id, store.id, also=refuse)
    assert (await passages.get(tenant_id, "docs")).id == store.id
    await passages.delete(
        tenant_id, store.id, also=lambda connection: note(connection, tenant_id, ADMIN, Act.STORE_DELETED, store.id)
    )
    [noted] = await audit.list(tenant_id, limit=10)
    assert (noted.act, noted.object) == (Act.STORE_DELETED, store.id)


@pytest.mark.parametrize("statement", ["delete from audit_log", "update audit_log set subject = 'somebody else'"])
async def test_the_worker_can_neither_change_nor_remove_a_note(
    database: Database, tenant_id: UUID, statement: str
) -> None:
    await Keys(database, SECRET).create(tenant_id, "laptop")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.tenant(tenant_id) as connection:
            await connection.execute(statement)


async def test_notes_are_kept_by_their_age_and_a_day_in_any_case(
    database: Database, tenant_id: UUID, owner_dsn: str
) -> None:
    keys, audit = Keys(database, SECRET), AuditLog(database)
    for name in ("old", "new"):
        await keys.create(tenant_id, name)
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute(
        "update audit_log set at = at - interval '40 days' where tenant_id = $1 and detail->>'name' = 'old'", tenant_id
    )
    await connection.close()
    await audit.forget(50)
    assert len(await audit.list(tenant_id, limit=10)) == 2
    await audit.forget(0)
    assert [each.detail["name"] for each in await audit.list(tenant_id, limit=10)] == ["new"]
