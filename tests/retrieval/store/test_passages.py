from __future__ import annotations

import asyncio
import contextlib
import hashlib
from uuid import UUID

import asyncpg
import numpy as np
import pytest
from numpy.typing import NDArray

from inference.embedding.windows import PassageVectors, unit
from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database
from retrieval.candidate import Candidate
from retrieval.chunking import Chunk
from retrieval.errors import FileNotFound, StoreNotFound
from retrieval.records import NewFile, VectorStore
from retrieval.store import PassageStore

MODEL = "test-embedder"
DIMENSIONS = 8


def vector(seed: int) -> NDArray[np.float32]:
    return unit(np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32))


def new_file(path: str, *texts: str) -> NewFile:
    """A file of these passages, whose vectors are vector(0), vector(1) …"""
    content = "\n".join(texts)
    chunks = []
    for seed, text in enumerate(texts):
        start = content.index(text)
        windows = np.full((2, DIMENSIONS), seed + 1, np.int8)
        vectors = PassageVectors(vector(seed), windows, np.array([0.5, 0.25], np.float16))
        chunks.append((Chunk("Part", text, start, start + len(text), len(text.split())), vectors))
    return NewFile(
        path=path,
        filename=path.rsplit("/", 1)[-1],
        title="Title",
        media_type="text/plain",
        size=len(content),
        sha256=hashlib.sha256(content.encode()).digest(),
        content=content,
        chunks=chunks,
    )


async def open_store(store: PassageStore, tenant_id: UUID, name: str = "notes") -> VectorStore:
    return await store.open(tenant_id, name, embedding_model=MODEL, dimensions=DIMENSIONS)


async def find(
    store: PassageStore,
    tenant_id: UUID,
    query: str = "",
    seed: int | None = None,
    *,
    limit: int = 10,
    name: str = "notes",
) -> list[Candidate]:
    found = await store.search(
        tenant_id,
        await store.named(tenant_id, [name]),
        query=query,
        vector=None if seed is None else vector(seed),
        limit=limit,
    )
    read = await store.read(tenant_id, found.candidates)
    return sorted(read.values(), key=lambda c: (-(c.cosine or 0), -c.coverage))


async def lexeme_counts(owner_dsn: str, store_id: str) -> dict[str, int]:
    connection = await asyncpg.connect(owner_dsn)
    try:
        rows = await connection.fetch("select lexeme, chunks from lexeme_counts where vector_store_id = $1", store_id)
        return {row["lexeme"]: row["chunks"] for row in rows}
    finally:
        await connection.close()


async def test_a_store_is_made_once_and_found_by_name_and_by_id(store: PassageStore, tenant_id: UUID) -> None:
    made = await open_store(store, tenant_id)
    assert (made.name, made.embedding_model, made.dimensions, made.chunks) == ("notes", MODEL, DIMENSIONS, 0)
    assert await open_store(store, tenant_id) == made
    assert await store.get(tenant_id, "notes") == await store.get(tenant_id, made.id) == made
    assert await store.stores(tenant_id) == [await store.counted(tenant_id, "notes")]


async def test_a_store_made_by_two_at_once_is_one_store(store: PassageStore, tenant_id: UUID) -> None:
    made = await asyncio.gather(*(open_store(store, tenant_id) for _ in range(4)))
    assert len({one.id for one in made}) == 1


async def test_a_store_keeps_the_model_that_it_was_made_with(store: PassageStore, tenant_id: UUID) -> None:
    made = await open_store(store, tenant_id)
    assert await store.open(tenant_id, "notes", embedding_model="other", dimensions=8) == made


async def test_stores_are_found_together_each_once(store: PassageStore, tenant_id: UUID) -> None:
    one, two = await open_store(store, tenant_id, "one"), await open_store(store, tenant_id, "two")
    assert await store.named(tenant_id, ["two", one.id, "one", two.id]) == [two, one]
    await open_store(store, tenant_id, one.id)
    assert await store.named(tenant_id, [one.id]) == [one], "an id wins over a name that looks like it"


async def test_of_stores_of_one_name_the_oldest_is_found_by_it(store: PassageStore, tenant_id: UUID) -> None:
    first = await open_store(store, tenant_id)
    second = await store.create(tenant_id, "notes", {}, embedding_model=MODEL, dimensions=DIMENSIONS)
    other = await store.create(tenant_id, "other", {}, embedding_model=MODEL, dimensions=DIMENSIONS)
    renamed = await store.update(tenant_id, other.id, name="notes", metadata=None)
    assert second.name == renamed.name == "notes" and len({first.id, second.id, renamed.id}) == 3
    assert await store.named(tenant_id, ["notes", second.id]) == [first, second]
    assert await open_store(store, tenant_id) == first
    await store.delete(tenant_id, first.id)
    assert (await store.get(tenant_id, "notes")).id == second.id


async def test_files_that_are_read_past_the_queue_wait_as_long_as_their_reader_lives(
    database: Database, store: PassageStore, tenant_id: UUID
) -> None:
    made, reader = await open_store(store, tenant_id), 7_000_000_001
    await store.note_unread(tenant_id, made.id, reader, 5)
    async with database.direct() as connection:
        await connection.execute("select pg_advisory_lock($1)", reader)
        told = PassageStore(database)  # another process than the one that reads
        assert [each.waiting for each in await told.stores(tenant_id)] == [5]
        await store.note_unread(tenant_id, made.id, reader, 4)
        assert (await told.counted(tenant_id, "notes")).waiting == 4
        await connection.execute("select pg_advisory_unlock($1)", reader)
    assert (await told.counted(tenant_id, "notes")).waiting == 0


async def test_an_unknown_store_is_named(store: PassageStore, tenant_id: UUID) -> None:
    await open_store(store, tenant_id)
    with pytest.raises(StoreNotFound, match="no vector store 'atlantis'"):
        await store.named(tenant_id, ["notes", "atlantis"])


async def test_the_nearest_are_found_exactly(store: PassageStore, tenant_id: UUID) -> None:
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", *(f"passage number {n}" for n in range(40))))
    cosines = np.stack([vector(n) for n in range(40)]) @ vector(7)
    found = await find(store, tenant_id, "", 7, limit=5)
    assert [candidate.key.ordinal for candidate in found] == np.argsort(-cosines)[:5].tolist()
    assert [candidate.cosine for candidate in found] == pytest.approx(sorted(cosines, reverse=True)[:5], abs=0.002)


async def test_a_passage_is_found_by_its_words_however_far_its_vector(store: PassageStore, tenant_id: UUID) -> None:
    opened = await open_store(store, tenant_id)
    texts = [f"plain passage {n}" for n in range(40)] + ["the zymurgist brews"]
    await store.put(tenant_id, opened.id, new_file("/a.txt", *texts))
    found = await find(store, tenant_id, "Which zymurgists are there?", 7, limit=3)
    by_words = [candidate for candidate in found if candidate.coverage > 0]
    assert [candidate.text for candidate in by_words] == ["the zymurgist brews"]
    assert by_words[0].coverage == pytest.approx(1)  # "which", "are" and "there" are no words to search for
    assert len(found) in (3, 4)


async def test_rare_words_weigh_more_and_words_that_are_everywhere_nothing(
    store: PassageStore, tenant_id: UUID
) -> None:
    opened = await open_store(store, tenant_id)
    texts = [f"common harbour {n}" if n < 10 else f"common {n}" for n in range(60)] + ["common lighthouse"]
    await store.put(tenant_id, opened.id, new_file("/a.txt", *texts))
    found = await find(store, tenant_id, "common harbour lighthouse", limit=20)
    assert found[0].text == "common lighthouse"
    assert found[0].coverage > found[1].coverage > 0
    assert len(found) == 11  # "common" alone finds nothing


async def test_words_that_nobody_wrote_lower_the_coverage(store: PassageStore, tenant_id: UUID) -> None:
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", "the harbour", "the lighthouse"))
    [known] = await find(store, tenant_id, "harbour")
    [partly] = await find(store, tenant_id, "harbour photosynthesis quasar")
    assert known.coverage == pytest.approx(1)
    assert partly.coverage < 0.5


@pytest.mark.parametrize(
    "query", ["it's", "back\\slash 'quoted'", "a & b | !c <-> (d", "%_", "", "the of", "x" * 8000, "é ñ 日本"]
)
async def test_any_query_is_only_words(store: PassageStore, tenant_id: UUID, query: str) -> None:
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", "it's a back\\slash 'quoted' text", "日本 here"))
    assert isinstance(await find(store, tenant_id, query, 0), list)


async def test_a_candidate_knows_its_place_in_the_source(store: PassageStore, tenant_id: UUID) -> None:
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/docs/a.txt", "first part", "second part"))
    candidate = (await find(store, tenant_id, "", 1))[0]
    assert (candidate.filename, candidate.title, candidate.heading) == ("a.txt", "Title", "Part")
    file = await store.file(tenant_id, candidate.key.file_id)
    assert file.content[candidate.start : candidate.end] == candidate.text == "second part"


async def test_what_was_deleted_since_it_was_found_or_is_of_another_tenant_is_not_read(
    store: PassageStore, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    notes = await open_store(store, tenant_id)
    await store.put(tenant_id, notes.id, new_file("/a", "one", "two"))
    found = await store.search(tenant_id, [notes], query="", vector=vector(1), limit=10)
    assert len(await store.read(tenant_id, found.candidates)) == 2
    assert await store.read(other_tenant_id, found.candidates) == {}
    await store.delete(tenant_id, notes.id)
    assert await store.read(tenant_id, found.candidates) == await store.read(tenant_id, []) == {}


async def test_windows_come_back_as_they_went_in(store: PassageStore, tenant_id: UUID) -> None:
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", "one", "two", "three"))
    found = await find(store, tenant_id, "", 0)
    windows = await store.windows(tenant_id, [candidate.key for candidate in found])
    for candidate in found:
        assert windows[candidate.key].vectors.tolist() == [[candidate.key.ordinal + 1] * DIMENSIONS] * 2
        assert windows[candidate.key].scales.tolist() == [0.5, 0.25]
    assert await store.windows(tenant_id, []) == {}


async def test_a_file_replaces_what_was_read_from_the_same_path(
    store: PassageStore, tenant_id: UUID, owner_dsn: str
) -> None:
    opened = await open_store(store, tenant_id)
    assert await store.put(tenant_id, opened.id, new_file("/a.txt", "old harbour"))
    [old] = await find(store, tenant_id, "harbour")
    assert await store.put(tenant_id, opened.id, new_file("/a.txt", "new lighthouse"))
    assert await find(store, tenant_id, "harbour") == []
    assert [candidate.text for candidate in await find(store, tenant_id, "lighthouse")] == ["new lighthouse"]
    with pytest.raises(FileNotFound):
        await store.file(tenant_id, old.key.file_id)
    assert (await store.counted(tenant_id, "notes")).files == 1
    assert await lexeme_counts(owner_dsn, opened.id) == {"new": 1, "lighthous": 1, "part": 1, "titl": 1}


async def test_the_same_content_is_written_once(store: PassageStore, tenant_id: UUID) -> None:
    opened = await open_store(store, tenant_id)
    file = new_file("/a.txt", "harbour")
    written = await asyncio.gather(*(store.put(tenant_id, opened.id, file) for _ in range(4)))
    assert sorted(written) == [False, False, False, True]
    assert len(await find(store, tenant_id, "harbour")) == 1


async def test_writers_at_once_leave_counts_that_are_right(
    store: PassageStore, tenant_id: UUID, owner_dsn: str
) -> None:
    opened = await open_store(store, tenant_id)
    await asyncio.gather(
        *(store.put(tenant_id, opened.id, new_file(f"/{n % 3}.txt", "harbour", f"pier {n}")) for n in range(12))
    )
    counts = await lexeme_counts(owner_dsn, opened.id)
    assert (counts["harbour"], counts["pier"], counts["part"]) == (3, 3, 6)
    await store.remove(tenant_id, opened.id, ["/0.txt", "/1.txt", "/2.txt", "/never.txt"])
    assert await lexeme_counts(owner_dsn, opened.id) == {}
    assert await store.sources(tenant_id, opened.id) == {}


async def test_deleting_a_store_deletes_its_files(store: PassageStore, tenant_id: UUID) -> None:
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", "harbour"))
    [found] = await find(store, tenant_id, "harbour")
    await store.delete(tenant_id, "notes")
    with pytest.raises(FileNotFound):
        await store.file(tenant_id, found.key.file_id)
    with pytest.raises(StoreNotFound):
        await store.delete(tenant_id, "notes")
    with pytest.raises(StoreNotFound):
        await store.put(tenant_id, opened.id, new_file("/b.txt", "too late"))


async def test_a_tenant_never_sees_what_another_stored(
    store: PassageStore, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", "secret harbour"))
    [found] = await find(store, tenant_id, "harbour")
    for name in ("notes", opened.id):
        with pytest.raises(StoreNotFound):
            await store.get(other_tenant_id, name)
    with pytest.raises(FileNotFound):
        await store.file(other_tenant_id, found.key.file_id)
    assert await store.windows(other_tenant_id, [found.key]) == {}
    assert await store.stores(other_tenant_id) == []
    assert await store.sources(other_tenant_id, opened.id) == {}
    with pytest.raises(StoreNotFound):
        await store.put(other_tenant_id, opened.id, new_file("/b.txt", "intruder"))
    with pytest.raises(StoreNotFound):
        await store.remove(other_tenant_id, opened.id, ["/a.txt"])
    assert len(await find(store, tenant_id, "harbour")) == 1


async def test_tenants_may_use_the_same_names(store: PassageStore, tenant_id: UUID, other_tenant_id: UUID) -> None:
    for tenant, text in ((tenant_id, "my harbour"), (other_tenant_id, "your harbour")):
        opened = await open_store(store, tenant)
        await store.put(tenant, opened.id, new_file("/a.txt", text))
    assert [c.text for c in await find(store, tenant_id, "harbour", 0)] == ["my harbour"]
    assert [c.text for c in await find(store, other_tenant_id, "harbour", 0)] == ["your harbour"]


async def test_a_search_that_is_cancelled_leaves_the_pool_whole(database: Database, tenant_id: UUID) -> None:
    store = PassageStore(database)
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", "harbour"))
    for tenths_ms in range(30):  # from before the connection is taken to after the query has begun
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(tenths_ms / 10_000):
                await find(store, tenant_id, "harbour", 0)
    assert len(await find(store, tenant_id, "harbour", 0)) == 1


async def test_a_connection_that_was_warmed_up_plans_nothing_for_the_first_question(
    postgres: EmbeddedPostgres, tenant_id: UUID
) -> None:
    database = await Database.connect(postgres.app_dsn, size_max=1)
    store = PassageStore(database)
    opened = await open_store(store, tenant_id)
    await store.put(tenant_id, opened.id, new_file("/a.txt", "harbour"))
    cold = await planned(database)
    await store.warm_up()
    warm = await planned(database)
    found = await store.search(tenant_id, [opened], query="harbour", vector=vector(0), limit=1)
    assert await store.read(tenant_id, found.candidates)
    assert await store.windows(tenant_id, [hit.key for hit in found.candidates])
    assert cold < warm == await planned(database)
    await database.close()


async def test_a_server_without_room_is_no_reason_not_to_warm_up(postgres: EmbeddedPostgres) -> None:
    database = await Database.connect(postgres.app_dsn, size_max=1)
    await database.close()
    await PassageStore(database).warm_up()


async def planned(database: Database) -> int:
    async with database.anonymous() as connection:
        return int(await connection.fetchval("select count(*) from pg_prepared_statements where not from_sql"))
