"""Ingest of files: read, split, embed, store. For unchanged files, only their bytes are read and hashed.

Each file is written in one transaction, so an interrupted ingest, or two concurrent ones, leave complete files of
either version and nothing in between; running it again finishes the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from inference.embedding.registry import Embedders
from retrieval.chunking import Chunk, fitted
from retrieval.embedding import check_model, embedded, writer_of
from retrieval.errors import OtherEmbeddingModel, UnreadableFile
from retrieval.filter import Attributes
from retrieval.loaders import formats
from retrieval.loaders.document import Document
from retrieval.loaders.job import Limits
from retrieval.loaders.pool import LoaderPool
from retrieval.records import CountedStore, NewFile, VectorStore
from retrieval.sources import Content, FileError, Listing, Source, WebSource, walk
from retrieval.store import PassageStore

LIMITS = Limits(wall_s=120, cpu_s=60, niceness=10)  # no client waits for it, and concurrent chats need the cores


@dataclass(slots=True)
class Progress:
    files_done: int
    files_total: int
    bytes_done: int  # of files; sizes on the web are not known in advance
    bytes_total: int
    chunks: int  # embedded so far
    seconds: float

    @property
    def left_s(self) -> float | None:
        """Extrapolated from what is done; None before anything is."""
        done = self.bytes_done / self.bytes_total if self.bytes_total else self.files_done / max(self.files_total, 1)
        return self.seconds * (1 - done) / done if done else None


@dataclass(frozen=True, slots=True)
class IngestReport:
    store: CountedStore
    written: int  # files, new or changed
    unchanged: int
    removed: int  # files deleted from a named folder
    skipped: int  # files in such folders that no loader reads
    chunks: int  # embedded
    seconds: float
    errors: tuple[FileError, ...]


async def ingest(
    paths: Sequence[Path],
    *,
    store_name: str,
    tenant_id: UUID,
    store: PassageStore,
    embedders: Embedders,
    embedding_model: str | None = None,
    urls: Sequence[str] = (),
    allow_private: bool = False,
    attributes: Attributes | None = None,
    exclude: Collection[str] = (),
    stored_below: str | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    loaders: LoaderPool | None = None,
    chatting: Callable[[], bool] = lambda: False,
) -> IngestReport:
    """Bring a vector store (created if needed) up to date with these files, folders and URLs.

    `embedding_model` applies to a new store, with the default model if None; an existing store keeps its own.
    Files with a name in `exclude` are left out of folders, and removed from the store if they are there.
    With `stored_below`, the files of one folder are stored under that name and their path in the folder: the same
    folder in another place replaces them, and does not add a second copy.
    `attributes` replace those of all the files; None leaves those of unchanged files alone.
    Addresses of this machine and its networks are refused unless `allow_private`.
    Files are parsed in the processes of `loaders`; without it, processes are started and end with this ingest. Short
    files come first, so that most can be found soon. `chatting` is that of `embedded`.
    A file that cannot be read is reported and does not stop the rest; its previous version stays.
    Raises UnknownEmbedder, OtherEmbeddingModel, EmbeddingModelMissing, EmbeddingModelChanged, EmbedderNotLoaded,
    ReadersUnavailable.
    """
    model = embedding_model or embedders.default.name
    opened = await store.open(tenant_id, store_name, embedding_model=model, dimensions=embedders.dimensions(model))
    if embedding_model and embedding_model != opened.embedding_model:
        raise OtherEmbeddingModel(store_name, opened.embedding_model, embedding_model)
    check_model(opened, embedders)
    listing = await asyncio.to_thread(walk, paths, exclude=exclude, stored_below=stored_below)
    known = await store.sources(tenant_id, opened.id)
    files: list[Source] = [*listing.sources, *(WebSource(url, url, allow_private) for url in dict.fromkeys(urls))]
    sizes = await asyncio.to_thread(lambda: {source: source.size for source in files})
    so_far = Progress(0, len(files), 0, sum(sizes.values()), 0, 0.0)
    with nullcontext(loaders) if loaders else closing(LoaderPool()) as pool:
        run = _Run(tenant_id, opened, store, embedders, pool, listing, attributes, progress, chatting, so_far)
        for source in sorted(files, key=lambda source: sizes[source]):
            await run.take(source, known.get(source.place))
            run.step(sizes[source])
    if attributes is not None:
        await store.describe(tenant_id, opened.id, [source.place for source in files], attributes)
    gone = listing.deleted(list(known))
    if gone:
        await store.remove(tenant_id, opened.id, gone)
    return IngestReport(
        store=await store.counted(tenant_id, opened.id),
        written=run.written,
        unchanged=run.unchanged,
        removed=len(gone),
        skipped=listing.skipped,
        chunks=run.so_far.chunks,
        seconds=run.seconds,
        errors=tuple(listing.errors),
    )


@dataclass(slots=True)
class _Run:
    """One ingest in progress, and its counts so far."""

    tenant_id: UUID
    opened: VectorStore
    store: PassageStore
    embedders: Embedders
    loaders: LoaderPool
    listing: Listing
    attributes: Attributes | None
    progress: Callable[[Progress], None]
    chatting: Callable[[], bool]
    so_far: Progress
    started: float = field(default_factory=time.monotonic)
    written: int = 0
    unchanged: int = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    async def take(self, source: Source, known_sha256: bytes | None) -> None:
        try:
            content, sha256 = await asyncio.to_thread(_hashed, source)
            if sha256 == known_sha256 or not await self._write(source, content, sha256):
                self.unchanged += 1
            else:
                self.written += 1
        except UnreadableFile as error:
            self.listing.errors.append(FileError(source.place, str(error)))

    def step(self, size: int) -> None:
        self.so_far.files_done += 1
        self.so_far.bytes_done += size
        self._report()

    async def _write(self, source: Source, content: Content, sha256: bytes) -> bool:
        embedder = await writer_of(self.tenant_id, self.opened, self.store, self.embedders)
        document, chunks = await read_document(self.loaders, content, embedder.count, owner="ingest")
        passages = await embedded(embedder, document.title, chunks, chatting=self.chatting, progress=self._embedded)
        file = NewFile(
            path=source.place,
            filename=source.name,
            title=document.title,
            media_type=document.media_type,
            size=len(content.data),
            sha256=sha256,
            content=document.text,
            chunks=passages,
            attributes=self.attributes or {},
        )
        return await self.store.put(self.tenant_id, self.opened.id, file)

    def _embedded(self, chunks: int) -> None:
        self.so_far.chunks += chunks
        self._report()

    def _report(self) -> None:
        self.progress(replace(self.so_far, seconds=self.seconds))


async def read_document(
    loaders: LoaderPool, content: Content, count: Callable[[str], int], *, owner: Hashable
) -> tuple[Document, list[Chunk]]:
    """A file as a document and its passages. Raises UnreadableFile, ReadersUnavailable."""
    document, pieces = await loaders.read(content.path, content.data, LIMITS, owner=owner, split=True)
    if not pieces:
        raise UnreadableFile("contains no words")
    return document, await asyncio.to_thread(fitted, document, pieces, count)


def _hashed(source: Source) -> tuple[Content, bytes]:
    """Blocks. Raises UnreadableFile."""
    content = source.read()
    return content, formats.digest(*content)
