"""Requests that name themselves, so that a repetition is known: which one came first, and what it is answered with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from migrations.pool import Database

REMEMBERED = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The request that had the key first. Without `response_id` its answer is not stored."""

    fingerprint: bytes
    response_id: str | None
    answered: bool


class IdempotencyStore:
    """Every method sees the keys of `tenant_id` only, except `forget`, which is for all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, tenant_id: UUID, key: str, fingerprint: bytes, response_id: str | None, worker: int
    ) -> Earlier | None:
        """None when this request is the first of its key; otherwise the one that was.

        A first one whose worker died before anything of it was stored counts no more.
        """
        async with self._database.tenant(tenant_id) as connection:
            first = await connection.fetchval(
                """insert into idempotency_keys as k (tenant_id, key, fingerprint, response_id, worker)
                   values ($1, $2, $3, $4, $5)
                   on conflict (tenant_id, key) do update
                      set fingerprint = excluded.fingerprint, response_id = excluded.response_id,
                          worker = excluded.worker, answered = false, created_at = now()
                    where k.created_at < now() - $6::interval
                       or not k.answered and not worker_lives(k.worker)
                          and not exists (select from responses r where r.tenant_id = $1 and r.id = k.response_id)
                   returning true""",
                tenant_id,
                key,
                fingerprint,
                response_id,
                worker,
                REMEMBERED,
            )
            if first:
                return None
            row = await connection.fetchrow(
                "select fingerprint, response_id, answered from idempotency_keys where tenant_id = $1 and key = $2",
                tenant_id,
                key,
            )
        return Earlier(row["fingerprint"], row["response_id"], row["answered"]) if row else None

    async def release(self, tenant_id: UUID, key: str) -> None:
        """Nothing came of the request: the next one with this key is the first again."""
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute("delete from idempotency_keys where tenant_id = $1 and key = $2", tenant_id, key)

    async def answer(self, tenant_id: UUID, key: str) -> None:
        """The request was answered, and nothing of the answer is stored."""
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute(
                "update idempotency_keys set answered = true where tenant_id = $1 and key = $2", tenant_id, key
            )

    async def forget(self) -> None:
        async with self._database.anonymous() as connection:
            await connection.execute("select forget_idempotency_keys($1)", REMEMBERED)
