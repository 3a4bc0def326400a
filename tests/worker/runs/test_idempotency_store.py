"""Idempotency keys that could not be given back are given back later, whoever else does it."""

from __future__ import annotations

import asyncio
from typing import cast
from uuid import UUID, uuid4

from worker.runs.idempotency import IdempotencyClaims, IdempotencyStore

TENANT = UUID(int=1)


class Store:
    """Away at first; then it takes its time with the key `slow`."""

    def __init__(self) -> None:
        self.away = True
        self.asked, self.going = asyncio.Event(), asyncio.Event()

    async def settle(self, tenant_id: UUID, key: str, claim: UUID, *, answered: bool) -> bool:
        if self.away:
            raise ConnectionError
        if key == "slow":
            self.asked.set()
            await self.going.wait()
        return True


async def test_what_its_own_request_settles_meanwhile_is_settled() -> None:
    store, claim = Store(), uuid4()
    claims = IdempotencyClaims(cast(IdempotencyStore, store), 1)
    await claims.settle(TENANT, "slow", uuid4(), answered=True)
    await claims.settle(TENANT, "quick", claim, answered=True)
    store.away = False
    settling = asyncio.create_task(claims.settle_all())
    await store.asked.wait()
    await claims.settle(TENANT, "quick", claim, answered=True)
    store.going.set()
    await settling
