"""The sample store: the documentation of this project, or the folder of `--docs`, which is brought up to date beside
the first requests. To embed the documentation takes ten seconds of the processor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from inference.errors import InferenceError
from retrieval.errors import RetrievalError
from retrieval.ingest import Progress, ingest
from worker.auth.keys import LOCAL_TENANT
from worker.config import PROJECT
from worker.lifecycle.supervisor import Healthy
from worker.services import Services

SAMPLE_STORE = "docs"
# Pages of our own documentation that would outrank those written for users.
NOT_FOR_USERS = (
    "ARCHITECTURE.md",
    "changing.md",
    "clients.md",
    "HISTORY.md",
    "LOG.md",
    "RELIABILITY.md",
    "scale.md",
    "several-models.md",
    "SECURITY.md",
)

NOTE_S = 1.0  # between notes of how many files are left

log = logging.getLogger("firsttoken.samples")


@asynccontextmanager
async def reading_samples(services: Services) -> AsyncIterator[None]:
    """From the first request on, the store is there and says that it is being read. What is not read at the end of this
    worker is read after the next start."""
    folder = services.config.docs
    if folder is None or not folder.is_dir():
        yield
        return
    tenant_id, embedder = await services.authenticator.keys.tenant(LOCAL_TENANT), services.embedders.default
    store = await services.passages.open(
        tenant_id, SAMPLE_STORE, embedding_model=embedder.name, dimensions=embedder.dimensions
    )
    await services.passages.note_unread(tenant_id, store.id, services.presence.worker, 1)  # at least, until it is read
    task = services.supervisor.start("samples", partial(_read, services, folder, tenant_id, store.id), ends=True)
    try:
        yield
    finally:
        await task.stop()


async def _read(services: Services, folder: Path, tenant_id: UUID, store_id: str, healthy: Healthy) -> None:
    """Unchanged files cost nothing."""
    left = 1

    def count_left(progress: Progress) -> None:
        nonlocal left
        left = max(1, progress.files_total - progress.files_done)
        healthy()

    note = partial(services.passages.note_unread, tenant_id, store_id, services.presence.worker)
    reading = asyncio.create_task(_ingest(services, folder, tenant_id, count_left))
    try:
        while not reading.done():
            await note(left)
            await asyncio.wait([reading], timeout=NOTE_S)
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    await reading
    await note(0)


async def _ingest(services: Services, folder: Path, tenant_id: UUID, progress: Callable[[Progress], None]) -> None:
    try:
        report = await ingest(
            [folder],
            exclude=NOT_FOR_USERS if folder == PROJECT / "docs" else (),
            store_name=SAMPLE_STORE,
            stored_below=SAMPLE_STORE,  # a later version may be in another folder
            tenant_id=tenant_id,
            store=services.passages,
            embedders=services.embedders,
            progress=progress,
            loaders=services.loaders,
            chatting=services.chatting,
        )
    except (RetrievalError, InferenceError) as error:  # its model is not available: all other stores may be fine
        log.warning("the sample store is not up to date: %s", error)
        return
    for unread in report.errors:
        log.warning("not in the sample store: %s %s", unread.path, unread.reason)
    log.info("the sample store is up to date: %d files read in %.1f s", report.written, report.seconds)
