"""Reading a response that another worker makes, or that was made earlier: from the store, and on as it grows.

No database connection is held while waiting: the board tells when there is more, and a slow poll covers for what the
board did not hear.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

from worker.errors import ApiError
from worker.runs.manager import Runs
from worker.runs.running_store import Chapter
from worker.wire import events as wire
from worker.wire.events import WireEvent
from worker.wire.narrator import TERMINAL

POLL_S = 2.0


async def follow(runs: Runs, tenant_id: UUID, response_id: str, after: int) -> AsyncGenerator[list[WireEvent], None]:
    """The events after this number as they come, [] while there are none. Ends with the response.

    Raises NotFound, and ApiError 404 when the events are not kept any more.
    """
    with runs.presence.watching(response_id) as news:
        chapter = await runs.store.read(tenant_id, response_id, after)
        if chapter.sealed and chapter.last_type is None:
            message = "The events of this response are not kept any more. Read it without 'stream'."
            raise ApiError(404, message, type="not_found_error", param="stream", code="events_expired")
        while True:
            yield list(chapter.events)
            after = chapter.events[-1]["sequence_number"] if chapter.events else after
            if chapter.sealed:
                break
            try:
                async with asyncio.timeout(POLL_S):
                    await news.wait()
            except TimeoutError:
                pass
            news.clear()
            chapter = await runs.store.read(tenant_id, response_id, after)
        if end := _missing_end(chapter, after):
            yield [end]


def _missing_end(chapter: Chapter, after: int) -> WireEvent | None:
    """The terminal event of a response whose worker could not tell it; one that was cancelled has none."""
    status = chapter.body["status"]
    if f"response.{status}" not in TERMINAL or chapter.last_type in TERMINAL:
        return None
    return wire.response(status, chapter.body) | {"sequence_number": after + 1}
