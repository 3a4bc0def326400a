"""Small writes of a tenant that come together are done together: the first at once, and what comes while that is under
way with the next.

A thousand answers that begin in one moment would each wait for a connection, and most of them in vain; and those of one
tenant would keep all others from theirs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

from migrations.pool import DATABASE_AWAY

BATCH_MAX = 128  # of some kilobytes each: one transaction of a few milliseconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place(Generic[T]):
    item: T
    told: asyncio.Future[bool]


class GroupCommit(Generic[T]):
    """`do` does all that it is given, or nothing, and says of each whether it is done. For the event loop only."""

    def __init__(self, do: Callable[[UUID, Sequence[T]], Awaitable[Sequence[bool]]]) -> None:
        self._do = do
        self._waiting: dict[UUID, deque[_Place[T]]] = {}
        self._under_way: dict[UUID, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<GroupCommit {sum(map(len, self._waiting.values()))} wait | {len(self._under_way)} tenants>"

    async def put(self, tenant_id: UUID, item: T) -> bool:
        """Whether it was done. Raises what `do` raises. Of somebody who leaves meanwhile it is done or not."""
        place = _Place(item, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant_id, deque()).append(place)
        self._go_on(tenant_id)
        return await place.told

    async def settled(self, tenant_id: UUID) -> None:
        """Return when nothing is under way that was put before: what somebody has left and still waits is not done."""
        if task := self._under_way.get(tenant_id):
            await asyncio.wait([task])

    def _go_on(self, tenant_id: UUID) -> None:
        """One transaction at a time: a tenant has the others' connections only while they do not need them."""
        if tenant_id in self._under_way:
            return
        waiting, taken = self._waiting[tenant_id], list[_Place[T]]()
        while waiting and len(taken) < BATCH_MAX:
            if not waiting[0].told.done():
                taken.append(waiting[0])
            waiting.popleft()
        if not taken:
            del self._waiting[tenant_id]
            return
        task = self._under_way[tenant_id] = asyncio.create_task(self._do_all(tenant_id, taken), name="gathered")
        task.add_done_callback(lambda _: self._done(tenant_id))
        for place in taken:
            place.told.add_done_callback(lambda _: _wanted(taken) or task.cancel())

    def _done(self, tenant_id: UUID) -> None:
        del self._under_way[tenant_id]
        self._go_on(tenant_id)

    async def _do_all(self, tenant_id: UUID, taken: Sequence[_Place[T]]) -> None:
        try:
            done = await self._do(tenant_id, [place.item for place in taken])
        except DATABASE_AWAY as error:
            _fail(taken, error)
        except Exception as error:  # the boundary: one that is refused refuses no other
            if len(taken) == 1:
                _fail(taken, error)
            else:
                for place in taken:
                    await self._do_all(tenant_id, [place])
        except BaseException:
            for place in taken:
                place.told.cancel()
            raise
        else:
            for place, is_done in zip(taken, done, strict=True):
                if not place.told.done():
                    place.told.set_result(is_done)


def _wanted(taken: Sequence[_Place[T]]) -> bool:
    """Whether anybody waits for it, or knows what became of it."""
    return not all(place.told.cancelled() for place in taken)


def _fail(taken: Sequence[_Place[T]], error: Exception) -> None:
    for place in taken:
        if not place.told.done():
            place.told.set_exception(error)
