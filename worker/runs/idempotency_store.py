"""Requests that name themselves, so that a repetition is known: which one came first, and what it is answered with."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from migrations.pool import DATABASE_AWAY, Database

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
        self, tenant_id: UUID, key: str, fingerprint: bytes, response_id: str | None, worker: int, claim: UUID
    ) -> Earlier | None:
        """None when this request is the first of its key; otherwise the one that was. Doing it again does nothing.

        A first one whose worker died before anything of it was stored counts no more.
        """
        async with self._database.tenant(tenant_id) as connection:
            first = await connection.fetchval(
                """insert into idempotency_keys as k (tenant_id, key, fingerprint, response_id, worker, claim)
                   values ($1, $2, $3, $4, $5, $7)
                   on conflict (tenant_id, key) do update
                      set fingerprint = excluded.fingerprint, response_id = excluded.response_id,
                          worker = excluded.worker, claim = excluded.claim, answered = false, created_at = now()
                    where k.claim = excluded.claim
                       or k.created_at < now() - $6::interval
                       or not k.answered and not worker_lives(k.worker)
                          and not exists (select from responses r where r.tenant_id = $1 and r.id = k.response_id)
                   returning true""",
                tenant_id,
                key,
                fingerprint,
                response_id,
                worker,
                REMEMBERED,
                claim,
            )
            if first:
                return None
            row = await connection.fetchrow(
                "select fingerprint, response_id, answered from idempotency_keys where tenant_id = $1 and key = $2",
                tenant_id,
                key,
            )
        return Earlier(row["fingerprint"], row["response_id"], row["answered"]) if row else None

    async def settle(self, tenant_id: UUID, key: str, claim: UUID, *, answered: bool) -> bool:
        """The request of a claim has ended: it was answered and nothing of that is stored, or nothing came of it and
        the next one is the first again. Whether that is done: not while a response is stored that nobody makes.

        Waits for a claim whose COMMIT is still under way: of a client that left while the database stood still, it may
        be carried out after this was asked for, and the key would stay in use.
        """
        async with self._database.tenant(tenant_id) as connection:
            if not answered:
                await connection.execute(
                    """insert into idempotency_keys (tenant_id, key, fingerprint, worker, claim)
                       values ($1, $2, '', 0, $3) on conflict do nothing""",
                    tenant_id,
                    key,
                    claim,
                )
            await connection.execute(
                """update idempotency_keys set answered = true where tenant_id = $1 and key = $2 and claim = $3"""
                if answered
                else """delete from idempotency_keys k where tenant_id = $1 and key = $2 and claim = $3
                        and not exists (select from responses r where r.tenant_id = $1 and r.id = k.response_id)""",
                tenant_id,
                key,
                claim,
            )
            left = await connection.fetchval(  # also where a response went away behind the first look at it
                """select true from idempotency_keys k
                   left join responses r on r.tenant_id = k.tenant_id and r.id = k.response_id
                   where k.tenant_id = $1 and k.key = $2 and k.claim = $3 and not k.answered
                     and (r.id is null or r.worker is not null and r.completed_at is null)""",
                tenant_id,
                key,
                claim,
            )
        return not left

    async def forget(self) -> None:
        async with self._database.anonymous() as connection:
            await connection.execute("select forget_idempotency_keys($1)", REMEMBERED)


log = logging.getLogger("firsttoken.runs")

SETTLE_S = 2.0  # how long a request waits for that; the janitor tries again later
UNSETTLED_MAX = 10_000  # beyond, the oldest stay in use until this worker ends or the key expires


class IdempotencyClaims:
    """A claim identifies the attempt of one request to be the first with its key."""

    def __init__(self, store: IdempotencyStore) -> None:
        self._store = store
        self._unsettled: dict[UUID, tuple[UUID, str, bool]] = {}

    async def settle(self, tenant_id: UUID, key: str, claim: UUID, *, answered: bool) -> None:
        """The request has ended. `answered`: its key stays used; otherwise there is no answer, and the next request
        with the key counts as the first. Never raises: it may not be known whether the key was claimed at all.
        """
        if len(self._unsettled) >= UNSETTLED_MAX:
            self._unsettled.pop(next(iter(self._unsettled)))
            log.error("an idempotency key could not be released in time and stays in use")
        self._unsettled[claim] = tenant_id, key, answered
        with suppress(*DATABASE_AWAY):
            async with asyncio.timeout(SETTLE_S):
                await self._settle(claim)

    async def settle_all(self) -> None:
        """Try again. Raises what the database raises."""
        for claim in tuple(self._unsettled):
            if claim in self._unsettled:  # not settled meanwhile by its own request
                await self._settle(claim)

    async def _settle(self, claim: UUID) -> None:
        tenant_id, key, answered = self._unsettled[claim]
        if await self._store.settle(tenant_id, key, claim, answered=answered):
            self._unsettled.pop(claim, None)
