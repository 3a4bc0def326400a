"""Idempotency keys claimed by requests of this worker. Each is settled when its request has ended, or later."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from uuid import UUID

from migrations.pool import DATABASE_AWAY
from worker.runs.idempotency_store import IdempotencyStore

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
