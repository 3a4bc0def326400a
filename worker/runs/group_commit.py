"""Group commit: small writes of one tenant that arrive together share a transaction. The first is written immediately;
those that arrive meanwhile form the next transaction.

Otherwise a thousand responses that start at once would each wait for a connection, most of them in vain, and one tenant
would take the connections of all others.
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
    """`do` commits all items that it is given, or none, and returns for each whether it was written. For the event loop
    only."""

    def __init__(self, do: Callable[[UUID, Sequence[T]], Awaitable[Sequence[bool]]]) -> None:
        self._do = do
        self._waiting: dict[UUID, deque[_Place[T]]] = {}
        self._in_progress: dict[UUID, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<GroupCommit {sum(map(len, self._waiting.values()))} wait | {len(self._in_progress)} tenants>"

    async def put(self, tenant_id: UUID, item: T) -> bool:
        """Whether the item was written. Raises what `do` raises. A caller that is cancelled may find it written or
        not."""
        place = _Place(item, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant_id, deque()).append(place)
        self._go_on(tenant_id)
        return await place.told

    async def settled(self, tenant_id: UUID) -> None:
        """Return when no transaction that was started before is in progress. Waiting items of cancelled callers are not
        written."""
        if task := self._in_progress.get(tenant_id):
            await asyncio.wait([task])

    def _go_on(self, tenant_id: UUID) -> None:
        """One transaction per tenant at a time: a tenant must not take the connections that others need."""
        if tenant_id in self._in_progress:
            return
        waiting, taken = self._waiting[tenant_id], list[_Place[T]]()
        while waiting and len(taken) < BATCH_MAX:
            if not waiting[0].told.done():
                taken.append(waiting[0])
            waiting.popleft()
        if not taken:
            del self._waiting[tenant_id]
            return
        task = self._in_progress[tenant_id] = asyncio.create_task(self._do_all(tenant_id, taken), name="group commit")
        task.add_done_callback(lambda _: self._done(tenant_id))
        for place in taken:
            place.told.add_done_callback(lambda _: _wanted(taken) or task.cancel())

    def _done(self, tenant_id: UUID) -> None:
        del self._in_progress[tenant_id]
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
    """Whether a caller still waits for the result, or already has it."""
    return not all(place.told.cancelled() for place in taken)


def _fail(taken: Sequence[_Place[T]], error: Exception) -> None:
    for place in taken:
        if not place.told.done():
            place.told.set_exception(error)
