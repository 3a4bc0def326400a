"""Idempotency keys that could not be given back are given back later, whoever else does it."""

from __future__ import annotations

import asyncio
from typing import cast
from uuid import UUID, uuid4

from migrations.pool import Database
from worker.runs.idempotency import Claim, IdempotencyKeys

SLOW, QUICK = (Claim(UUID(int=1), key, uuid4()) for key in ("slow", "quick"))


class Keys(IdempotencyKeys):
    """Away at first; then they take their time with SLOW."""

    away = True

    def __init__(self) -> None:
        super().__init__(cast(Database, None), 1)
        self.asked, self.going = asyncio.Event(), asyncio.Event()

    async def try_to_settle(self, claim: Claim, *, answered: bool) -> bool:
        if self.away:
            raise ConnectionError
        if claim == SLOW:
            self.asked.set()
            await self.going.wait()
        return True


async def test_what_its_own_request_settles_meanwhile_is_settled() -> None:
    keys = Keys()
    await keys.settle(SLOW, answered=True)
    await keys.settle(QUICK, answered=True)
    keys.away = False
    settling = asyncio.create_task(keys.settle_all())
    await keys.asked.wait()
    await keys.settle(QUICK, answered=True)
    keys.going.set()
    await settling
