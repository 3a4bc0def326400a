"""Ingests the files that clients put into vector stores: one at a time, beside the chats, whichever worker received
them. When no file waits, it brings the words of old chunks to those of this version.

The queue is in Postgres: if a worker dies while reading a file, another one reads it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from inference.embedding.registry import Embedders
from inference.errors import EmbedderNotLoaded, EngineStopped
from migrations.pool import DATABASE_AWAY
from retrieval.embedding import REST_SHARE, embedded, writer_of
from retrieval.errors import EmbeddingModelChanged, EmbeddingModelMissing, FileNotFound, StoreNotFound, UnreadableFile
from retrieval.ingest import read_document
from retrieval.loaders import formats
from retrieval.loaders.pool import LoaderPool
from retrieval.loaders.source import checked
from retrieval.sources import Content
from retrieval.store import Claim, FileQueue, PassageStore, UploadStore

log = logging.getLogger("firsttoken.intake")

REFRESH_CHUNKS = 32  # whose words are rewritten at a time: a tenth of a second, most of it in the index of vectors
ATTEMPTS_MAX = 5  # to read one file: workers and databases stop for other reasons too, but not every time
FILE_S_MAX = 3600.0  # per file: 20,000 chunks beside chats take half of it
GIVE_BACK_S = 1.0  # to release the file in the database when the worker stops
POLL_S = 5.0  # files that another worker received and nobody reads are noticed within this time


class IngestWorker:
    """`worker` is the number of the advisory lock that shows other workers that this one is alive; `chatting` returns
    whether a client is waiting for tokens and would notice the use of a core.
    """

    def __init__(
        self,
        file_queue: FileQueue,
        uploads: UploadStore,
        passages: PassageStore,
        embedders: Embedders,
        loaders: LoaderPool,
        worker: int,
        chatting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file_queue = file_queue
        self._uploads = uploads
        self._passages = passages
        self._embedders = embedders
        self._loaders = loaders
        self._worker = worker
        self._chatting = chatting
        self._arrived = asyncio.Event()

    def wake(self) -> None:
        """Signal that the queue has a new file."""
        self._arrived.set()

    async def run(self, healthy: Callable[[], None]) -> None:
        """Process the queue for ever; `healthy` is called each time the queue was read. Raises the database's errors,
        and can then be run again. If it is cancelled, the file being read stays queued.
        """
        while True:
            self._arrived.clear()
            while (claim := await self._file_queue.claim(self._worker)) is not None:
                await self._take(claim)
                healthy()
            healthy()
            if await self._refresh():
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._arrived.wait()

    async def _refresh(self) -> bool:
        """Whether there were chunks whose words an older version wrote; some of them are rewritten."""
        began = time.monotonic()
        refreshed = await self._passages.refresh_lexemes(REFRESH_CHUNKS)
        if refreshed and self._chatting():
            await asyncio.sleep(REST_SHARE * (time.monotonic() - began))
        return refreshed > 0

    async def _take(self, claim: Claim) -> None:
        """Read one file; any error in it becomes the file's status."""
        limit = asyncio.timeout(FILE_S_MAX)
        try:
            async with limit:
                await self._read(claim)
        except asyncio.CancelledError:
            await self._give_back(claim)
            raise
        except UnreadableFile as error:
            await self._file_queue.fail(claim, "invalid_file", f"The file {error}.")
        except TimeoutError:
            if not limit.expired():
                raise
            reason = f"takes longer than {FILE_S_MAX / 60:.0f} minutes to read and embed; split it into smaller files"
            await self._file_queue.fail(claim, "invalid_file", f"The file {reason}.")
        except (EmbeddingModelMissing, EmbeddingModelChanged, EmbedderNotLoaded) as error:
            await self._file_queue.fail(claim, "server_error", f"{error}.")
        except (FileNotFound, StoreNotFound, EngineStopped):
            pass  # deleted meanwhile, or the worker is shutting down
        except DATABASE_AWAY:
            raise
        except Exception:  # isolation: one odd file must not block the others for ever
            log.exception("reading file %s failed", claim.file_id)
            await self._file_queue.fail(claim, "server_error", "The file could not be read.")

    async def _give_back(self, claim: Claim) -> None:
        with suppress(TimeoutError, *DATABASE_AWAY):  # on failure it counts as an attempt
            async with asyncio.timeout(GIVE_BACK_S):
                await self._file_queue.give_back(claim)

    async def _read(self, claim: Claim) -> None:
        tenant_id, store_id, file_id = claim
        if await self._file_queue.begin(claim) > ATTEMPTS_MAX:
            raise UnreadableFile(
                f"was started {ATTEMPTS_MAX} times, and each time the worker stopped before it was read; "
                "save it again, or split it into smaller files"
            )
        store = await self._passages.get(tenant_id, store_id)
        embedder = await writer_of(tenant_id, store, self._passages, self._embedders)
        upload = await self._uploads.get(tenant_id, file_id)
        path = Path(upload.filename)
        data = checked(await self._uploads.read(tenant_id, file_id), formats.bytes_max(path))
        document, chunks = await read_document(self._loaders, Content(path, data), embedder.count, owner="intake")
        passages = await embedded(embedder, document.title, chunks, chatting=self._chatting)
        await self._file_queue.fill(claim, document, passages)
