"""The queue of files that are to be read: nothing is read twice, and nothing is lost with a worker."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from inference.embedding.registry import Embedders
from migrations.pool import Database
from retrieval import ingest
from retrieval import ingest_worker as module
from retrieval.embedding import REST_SHARE
from retrieval.errors import BatchNotFound, FileNotFound
from retrieval.ingest_worker import ATTEMPTS_MAX
from retrieval.loaders.job import Limits
from retrieval.loaders.pool import LoaderPool
from retrieval.records import StoreFile
from retrieval.store import Claim, FileQueue, PassageStore, UploadStore
from tests.retrieval.intake import Intake
from tests.retrieval.loaders.hostile import ENDLESS

TEXT = b"# Harbour\n\nShips enter the harbour at high tide.\n"
DEAD, ALIVE = 4711, 4712  # numbers of workers


@pytest.fixture
def shelf(database: Database) -> FileQueue:
    return FileQueue(database)


@pytest.fixture
def uploads(database: Database) -> UploadStore:
    return UploadStore(database, tenant_bytes_max=2**20)


@pytest.fixture
async def store_id(store: PassageStore, embedders: Embedders, tenant_id: UUID) -> str:
    made = await store.create(
        tenant_id, None, {}, embedding_model=embedders.default.name, dimensions=embedders.default.dimensions
    )
    return made.id


@pytest.fixture
async def queued(shelf: FileQueue, uploads: UploadStore, tenant_id: UUID, store_id: str) -> Claim:
    """A file that waits, alone in the queue."""
    while (old := await shelf.claim(DEAD)) is not None:
        await shelf.fail(old, "server_error", "of another test")
    file = await uploads.create(tenant_id, "harbour.md", "assistants", len(TEXT), io.BytesIO(TEXT))
    await shelf.add(tenant_id, store_id, {file.id: {"year": 2024}})
    return Claim(tenant_id, store_id, file.id)


@pytest.fixture
async def intake(
    shelf: FileQueue, uploads: UploadStore, store: PassageStore, embedders: Embedders, loaders: LoaderPool
) -> AsyncIterator[Intake]:
    intake = Intake(shelf, uploads, store, embedders, loaders, ALIVE)
    yield intake
    await intake.close()


async def ended(shelf: FileQueue, claim: Claim) -> StoreFile:
    async with asyncio.timeout(60):
        while (file := await shelf.get(*claim)).status == "in_progress":  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0.02)
    return file


async def test_a_queued_file_is_read_and_keeps_its_attributes(shelf: FileQueue, intake: Intake, queued: Claim) -> None:
    intake.start()
    file = await ended(shelf, queued)
    assert (file.status, file.attributes, file.error) == ("completed", {"year": 2024}, None)


async def test_a_file_is_claimed_by_one_worker(shelf: FileQueue, owner_dsn: str, queued: Claim) -> None:
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("select pg_advisory_lock($1)", ALIVE)  # as a worker does for as long as it lives
    assert await shelf.claim(ALIVE) == queued
    assert await shelf.claim(DEAD) is None
    await connection.close()


async def test_a_file_of_a_dead_worker_is_read_by_the_next(shelf: FileQueue, intake: Intake, queued: Claim) -> None:
    assert await shelf.claim(DEAD) == queued
    intake.start()
    assert (await ended(shelf, queued)).status == "completed"


async def queue(
    shelf: FileQueue, uploads: UploadStore, tenant_id: UUID, store_id: str, name: str, content: bytes = TEXT
) -> Claim:
    file = await uploads.create(tenant_id, name, "assistants", len(content), io.BytesIO(content))
    await shelf.add(tenant_id, store_id, {file.id: {}})
    return Claim(tenant_id, store_id, file.id)


async def test_a_file_that_keeps_its_reader_busy_fails_and_the_next_is_read(
    database: Database,
    shelf: FileQueue,
    store: PassageStore,
    embedders: Embedders,
    loaders: LoaderPool,
    queued: Claim,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingest, "LIMITS", Limits(wall_s=60, cpu_s=1))
    uploads = UploadStore(database, tenant_bytes_max=2**24)
    hostile = await queue(shelf, uploads, queued.tenant_id, queued.store_id, ENDLESS[0].name, ENDLESS[1])
    last = await queue(shelf, uploads, queued.tenant_id, queued.store_id, "last.md")
    intake = Intake(shelf, uploads, store, embedders, loaders, ALIVE)
    intake.start()
    file = await ended(shelf, hostile)
    assert file.status == "failed"
    assert file.error is not None
    assert file.error["code"] == "invalid_file"
    assert "takes far more work to read than files of its size do; save it again" in file.error["message"]
    assert [(await ended(shelf, claim)).status for claim in (queued, last)] == ["completed"] * 2
    await intake.close()


async def test_a_file_that_ends_every_worker_is_given_up(shelf: FileQueue, intake: Intake, queued: Claim) -> None:
    """Workers come and go with it; the next one starts as usual, and says what became of it."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        assert await shelf.claim(DEAD + 10 * attempt) == queued
        assert await shelf.begin(queued) == attempt
    intake.start()
    file = await ended(shelf, queued)
    assert file.status == "failed"
    assert file.error is not None
    assert f"was started {ATTEMPTS_MAX} times" in file.error["message"]
    await shelf.add(queued.tenant_id, queued.store_id, {queued.file_id: {}})
    intake.wake()
    assert (await ended(shelf, queued)).status == "completed"  # who sends it again means it


async def test_an_attempt_that_the_worker_broke_off_does_not_count(
    shelf: FileQueue, intake: Intake, queued: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.Event()

    async def read_for_ever(*_: object, **__: object) -> None:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "read_document", read_for_ever)
    intake.start()
    async with asyncio.timeout(60):
        await reading.wait()
    await intake.close()
    assert await shelf.claim(DEAD) == queued
    assert await shelf.begin(queued) == 1


async def test_a_file_that_takes_too_long_to_embed_fails(
    shelf: FileQueue, intake: Intake, queued: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_S_MAX", 0.01)
    intake.start()
    file = await ended(shelf, queued)
    assert file.error is not None
    assert "minutes to read and embed; split it" in file.error["message"]


async def test_tenants_take_turns(
    shelf: FileQueue,
    uploads: UploadStore,
    store: PassageStore,
    embedders: Embedders,
    other_tenant_id: UUID,
    queued: Claim,
) -> None:
    """However many files one has in the queue, and however early."""
    mine = [queued, *[await queue(shelf, uploads, queued.tenant_id, queued.store_id, f"{n}.md") for n in range(3)]]
    made = await store.create(
        other_tenant_id, None, {}, embedding_model=embedders.default.name, dimensions=embedders.default.dimensions
    )
    theirs = [await queue(shelf, uploads, other_tenant_id, made.id, f"{n}.md") for n in range(2)]
    taken = []
    while (claim := await shelf.claim(ALIVE)) is not None:
        await shelf.begin(claim)
        await shelf.fail(claim, "server_error", "of this test")
        taken.append(claim)
    assert taken == [mine[0], theirs[0], mine[1], theirs[1], mine[2], mine[3]]


async def test_reading_a_file_again_replaces_its_passages(
    shelf: FileQueue, intake: Intake, store: PassageStore, queued: Claim
) -> None:
    intake.start()
    await ended(shelf, queued)
    before = (await store.get(queued.tenant_id, queued.store_id)).chunks
    await shelf.add(queued.tenant_id, queued.store_id, {queued.file_id: {}})
    intake.wake()
    await ended(shelf, queued)
    assert (await store.get(queued.tenant_id, queued.store_id)).chunks == before > 0


async def test_each_batch_of_a_file_knows_how_it_ended_there(
    shelf: FileQueue, intake: Intake, queued: Claim, store: PassageStore
) -> None:
    tenant_id, store_id, file_id = queued

    async def added() -> str:
        return str(await shelf.add(tenant_id, store_id, {file_id: {}}, batch=True))

    async def counts(batch_id: str) -> dict[str, int]:
        return dict((await shelf.batch(tenant_id, store_id, batch_id)).files)

    first, second = await added(), await added()
    await shelf.cancel(tenant_id, store_id, second)
    assert (await shelf.get(*queued)).status == "in_progress"  # the first batch waits for it
    assert (await counts(first), await counts(second)) == ({"in_progress": 1}, {"cancelled": 1})
    await shelf.cancel(tenant_id, store_id, first)
    assert (await shelf.get(*queued)).status == "cancelled"

    third = await added()
    await shelf.add(tenant_id, store_id, {file_id: {}})  # once more, alone
    await shelf.cancel(tenant_id, store_id, third)
    assert (await shelf.get(*queued)).status == "in_progress"

    fourth, claim = await added(), await shelf.claim(ALIVE)
    assert claim == queued
    await shelf.fail(claim, "invalid_file", "of this test")
    fifth = await added()
    intake.start()
    await ended(shelf, queued)
    assert (await counts(third), await counts(fourth), await counts(fifth)) == (
        {"cancelled": 1},
        {"failed": 1},
        {"completed": 1},
    )
    (listed,) = await shelf.list_batch(tenant_id, store_id, fourth)
    assert (listed.id, listed.status, listed.error) == (file_id, "failed", None)
    await shelf.delete_file(tenant_id, file_id)
    assert await counts(fifth) == {"completed": 1}
    await store.delete(tenant_id, store_id)
    with pytest.raises(BatchNotFound):
        await counts(fifth)


async def test_a_file_that_was_deleted_meanwhile_is_let_go(
    shelf: FileQueue, intake: Intake, uploads: UploadStore, queued: Claim
) -> None:
    assert await shelf.claim(ALIVE) == queued
    await shelf.delete_file(queued.tenant_id, queued.file_id)
    await intake._take(queued)
    with pytest.raises(FileNotFound):
        await uploads.get(queued.tenant_id, queued.file_id)


async def test_a_file_of_another_tenant_cannot_be_queued(
    shelf: FileQueue, store: PassageStore, embedders: Embedders, other_tenant_id: UUID, queued: Claim
) -> None:
    theirs = await store.create(
        other_tenant_id, None, {}, embedding_model=embedders.default.name, dimensions=embedders.default.dimensions
    )
    with pytest.raises(FileNotFound):
        await shelf.add(other_tenant_id, theirs.id, {queued.file_id: {}})


async def test_while_somebody_waits_for_tokens_the_embedder_rests(
    shelf: FileQueue,
    uploads: UploadStore,
    store: PassageStore,
    embedders: Embedders,
    loaders: LoaderPool,
    queued: Claim,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []
    at_once = asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await at_once(0)

    monkeypatch.setattr(asyncio, "sleep", rest)
    intake = Intake(shelf, uploads, store, embedders, loaders, ALIVE, lambda: True)
    began = time.monotonic()
    await intake._take(queued)
    assert (await shelf.get(*queued)).status == "completed"
    assert 0 < sum(rests) <= REST_SHARE * (time.monotonic() - began)


async def test_when_no_file_waits_the_words_of_old_chunks_are_rewritten_in_bites(
    store: PassageStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, bites = [70], []

    async def refresh(chunks_max: int) -> int:
        bites.append(min(chunks_max, left[0]))
        left[0] -= bites[-1]
        return bites[-1]

    monkeypatch.setattr(store, "refresh_lexemes", refresh)
    intake.start()
    async with asyncio.timeout(60):
        while bites[-1:] != [0]:  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0.01)
    assert bites == [module.REFRESH_CHUNKS, module.REFRESH_CHUNKS, 70 - 2 * module.REFRESH_CHUNKS, 0]
