"""A search by index finds what the exact one finds, behind the same walls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import asyncpg
import numpy as np
import pytest
from numpy.typing import NDArray

from inference.embedding.windows import PassageVectors, unit
from migrations.pool import Database
from retrieval.candidate import Candidate
from retrieval.chunking import Chunk
from retrieval.filter import Comparison
from retrieval.records import NewFile
from retrieval.store import PassageStore, SearchResult, search
from retrieval.store.search import index_is_better, statement
from tests.conftest import Owner, new_tenant

MODEL, DIMENSIONS = "test-embedder", 384
CHUNKS = 400  # with five rows a side enough for the index to be worth it, were small stores not always searched exactly


def vectors(seed: int, count: int, dimensions: int = DIMENSIONS) -> NDArray[np.float32]:
    return unit(np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32))


def new_file(name: str, seed: int, **attributes: str) -> NewFile:
    texts = [f"{name} says {name}{n}" for n in range(CHUNKS // 4)]
    return replace(text_file(name, texts, seed), attributes=dict(attributes))


def text_file(name: str, texts: list[str], seed: int = 0, dimensions: int = DIMENSIONS) -> NewFile:
    windows, scales = np.zeros((1, dimensions), np.int8), np.ones(1, np.float16)
    passages = [PassageVectors(vector, windows, scales) for vector in vectors(seed, len(texts), dimensions)]
    chunks = [(Chunk("", text, n, n + 1, 2), one) for n, (text, one) in enumerate(zip(texts, passages, strict=True))]
    return NewFile(f"/{name}", name, name, "text/plain", 1, name.encode(), "", chunks)


@pytest.fixture(scope="module")
def indexed(database: Database) -> PassageStore:
    """Searches by index, however few the chunks are."""
    return PassageStore(database, exact_chunks_max=0)


@asynccontextmanager
async def notes(store: PassageStore, tenant_id: UUID) -> AsyncIterator[UUID]:
    """Four files in the store `notes` of a tenant."""
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    for n, name in enumerate(("ash", "birch", "cedar", "dogwood")):
        await store.put(tenant_id, opened.id, new_file(name, n, colour="red" if n == 2 else "green"))
    yield tenant_id
    await store.delete(tenant_id, opened.id)  # a large store among the chunks of all tests would slow down theirs


@pytest.fixture(scope="module")
async def reader(indexed: PassageStore, owner_pool: Owner) -> AsyncIterator[UUID]:
    """A tenant whose notes nobody changes: to enter them into the index takes a second."""
    async with notes(indexed, await new_tenant(owner_pool)) as tenant_id:
        yield tenant_id


@pytest.fixture
async def writer(indexed: PassageStore, tenant_id: UUID) -> AsyncIterator[UUID]:
    async with notes(indexed, tenant_id):
        yield tenant_id


async def find(
    store: PassageStore, tenant: UUID, query: str, vector: NDArray[np.float32] | None, colour: str | None = None
) -> SearchResult:
    filters = None if colour is None else Comparison(type="eq", key="colour", value=colour)
    notes = await store.named(tenant, ["notes"])
    found = await store.search(tenant, notes, query=query, vector=vector, limit=5, filters=filters)
    return found._replace(candidates=list((await store.read(tenant, found.candidates)).values()))


def names(result: SearchResult) -> set[tuple[str, int]]:
    return {(c.filename, c.key.ordinal) for c in result.candidates if isinstance(c, Candidate)}


async def test_the_index_finds_what_the_exact_search_finds(
    indexed: PassageStore, store: PassageStore, reader: UUID
) -> None:
    for query in vectors(99, 10):
        by_index, exact = await find(indexed, reader, "", query), await find(store, reader, "", query)
        assert (by_index.by_index, exact.by_index) == (True, False)
        assert by_index.chunks == exact.chunks == CHUNKS
        assert len(names(by_index) & names(exact)) >= 4
        assert len(by_index.candidates) == 5


@pytest.mark.parametrize(("dimensions", "by_index"), [(512, True), (768, True), (1024, True), (100, False)])
async def test_models_of_the_usual_dimensions_have_an_index(
    database: Database, tenant_id: UUID, dimensions: int, by_index: bool
) -> None:
    store = PassageStore(database, exact_chunks_max=0)
    opened = await store.open(tenant_id, "wide", embedding_model="wide", dimensions=dimensions)
    texts = [f"text {n}" for n in range(CHUNKS // 2)]  # enough for one row a side
    await store.put(tenant_id, opened.id, text_file("wide", texts, 3, dimensions))
    [wide] = await store.named(tenant_id, ["wide"])
    found = await store.search(tenant_id, [wide], query="", vector=vectors(3, 9, dimensions)[8], limit=1)
    assert found.by_index is by_index
    assert max(found.candidates, key=lambda candidate: candidate.cosine or 0).key.ordinal == 8
    assert {candidate.model for candidate in found.candidates} == {"wide"}
    await store.delete(tenant_id, opened.id)


async def test_row_level_security_leaves_the_index_usable(database: Database, reader: UUID) -> None:
    """As the worker's role: with a condition in place of the order it would not be, as those operators may leak."""
    values = (reader, ["vs"], "words", vectors(1, 1)[0].tolist(), 5, 64, CHUNKS, 1000, ["a phrase"])
    async with database.tenant(reader) as connection:
        await connection.execute("set local enable_sort = off")
        rows = await connection.fetch(f"explain {statement(None, DIMENSIONS)}", *values)
        plan = "\n".join(row[0] for row in rows)
        assert "Index Scan using chunks_nearest_384" in plan
        rows = await connection.fetch(f"explain {statement(None, None)}", *values)
        assert "chunks_nearest_384" not in "\n".join(row[0] for row in rows)


async def test_a_filter_narrows_both_sides_of_a_search(
    indexed: PassageStore, store: PassageStore, reader: UUID
) -> None:
    for searched in (indexed, store):
        for query in vectors(7, 3):
            result = await find(searched, reader, "ash birch cedar7", query, "red")
            assert result.chunks == CHUNKS // 4
            assert {name for name, _ in names(result)} == {"cedar"}
            assert ("cedar", 7) in names(result)
            assert 5 <= len(result.candidates) <= 10
        assert (await find(searched, reader, "cedar", vectors(7, 1)[0], "blue")).candidates == []


async def test_attributes_can_be_changed_without_reading_the_file_again(indexed: PassageStore, writer: UUID) -> None:
    opened = await indexed.get(writer, "notes")
    await indexed.describe(writer, opened.id, ["/ash", "/gone"], {"colour": "blue"})
    found = await find(indexed, writer, "ash3", vectors(7, 1)[0], "blue")
    assert {name for name, _ in names(found)} == {"ash"}


async def test_the_index_never_shows_what_another_tenant_wrote(
    indexed: PassageStore, reader: UUID, other_tenant_id: UUID, database: Database
) -> None:
    mine = await indexed.get(reader, "notes")
    opened = await indexed.open(other_tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    await indexed.put(other_tenant_id, opened.id, new_file("mine", 50))
    query = vectors(0, 1)[0]  # the very vector of ash 0
    assert ("ash", 0) in names(await find(indexed, reader, "ash0", query))
    theirs = await find(indexed, other_tenant_id, "ash0", query)
    assert {name for name, _ in names(theirs)} == {"mine"}
    await indexed.delete(other_tenant_id, opened.id)
    word = "array['ash0'], array['ash0'], array['ash0'::tsquery], array[1.0]"
    look = f"select * from worded_chunks($1, {word}, 9, 9, null, null)"
    for tenant, count in ((reader, 1), (other_tenant_id, 0)):
        async with database.tenant(tenant) as connection:
            assert len(await connection.fetch(look, [mine.id])) == count
    async with database.anonymous() as connection:
        assert await connection.fetch(look, [mine.id]) == []


async def test_a_store_knows_how_many_chunks_it_has(indexed: PassageStore, writer: UUID) -> None:
    opened = await indexed.counted(writer, "notes")
    assert (opened.files, opened.chunks) == (4, CHUNKS)
    await indexed.remove(writer, opened.id, ["/ash", "/gone"])
    assert (await indexed.get(writer, "notes")).chunks == CHUNKS * 3 // 4
    shorter = replace(text_file("birch", ["shorter"]), sha256=b"another")
    assert await indexed.put(writer, opened.id, shorter)
    assert (await indexed.get(writer, "notes")).chunks == CHUNKS // 2 + 1


async def test_of_words_with_too_many_hits_those_beside_each_other_are_found(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PassageStore(database)
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    texts = [*(f"ash {n}" for n in range(30)), *(f"birch {n}" for n in range(30)), *["other"] * 200, "birch and ash"]
    await store.put(tenant_id, opened.id, text_file("woods", texts))
    monkeypatch.setattr(search, "HITS_MAX", 5)
    found = (await find(store, tenant_id, "ash birch", None)).candidates
    assert max(found, key=lambda candidate: candidate.coverage).key.ordinal == texts.index("birch and ash")
    assert len((await find(store, tenant_id, "ash", None)).candidates) == 5
    await store.delete(tenant_id, opened.id)


@pytest.mark.parametrize("narrow_max", [0, 1000])
async def test_among_words_with_too_many_hits_those_that_the_filter_lets_through_are_found(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch, narrow_max: int
) -> None:
    """Looked up by words and then by files, or by files alone."""
    store = PassageStore(database)
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    for name in ("green", "red"):
        texts = [*(f"ash {n}" for n in range(30)), *["other"] * 200] if name == "green" else ["an ash", "a birch"]
        await store.put(tenant_id, opened.id, replace(text_file(name, texts), attributes={"colour": name}))
    monkeypatch.setattr(search, "HITS_MAX", 5)
    monkeypatch.setattr(search, "NARROW_CHUNKS_MAX", narrow_max)
    assert names(await find(store, tenant_id, "ash", None, "red")) == {("red", 0)}
    assert (await find(store, tenant_id, "ash", None, "blue")).candidates == []
    assert (await find(store, tenant_id, "the", None, "red")).candidates == []
    assert len((await find(store, tenant_id, "ash", None, "green")).candidates) == 5
    monkeypatch.setattr(search, "VISITS_MAX", 5)
    assert (len((await find(store, tenant_id, "ash", None, "red")).candidates) == 1) is (narrow_max > 0)
    await store.delete(tenant_id, opened.id)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("asyncio.TaskGroup awaits its tasks", "TaskGroup"),
        ("asyncio.TaskGroup awaits its tasks", "a group of tasks in asyncio"),
        ("os.path.join puts them together", "path"),
        ("set max_workers=None", "max_workers"),
        ("set max_workers=None", "how many workers at most, max?"),
        ("a BoundedSemaphore holds them", "bounded semaphore"),
        ("an HTTPServerError is raised", "server error"),
        ("files of more than 4 GiB", "4GiB"),
        ("see RFC 4122 for more", "rfc4122"),
        ("it fails with ORA-00942 then", "ORA00942"),
        ("the e-mail is sent", "email"),
        ("std::vector grows", "vector"),
        ("at most 1,600 columns", "1600"),
        ("fixed in 2.10.1 at last", "v2.10.1"),
        ("v2.10.1 mends it", "2.10.1"),
        ("a limit of 1,048,576 bytes", "1048576 bytes"),
        ("call it with --exclude-table-data=old", "exclude-table-data"),
        ("\n- --exclude-table-data: leave it out", "--exclude-table-data"),
        ("it needs a GPU", "GPUs?"),
        ("two GPUs are faster", "a gpu"),
        ("which cpus it has", "CPU"),
        ("read as a PDF", "PDFs"),
        ("the PDFs are read", "which pdfs"),
        ("IDs and userIDs", "userID"),
    ],
)
async def test_an_identifier_is_found_whole_and_by_its_parts(
    store: PassageStore, tenant_id: UUID, text: str, question: str
) -> None:
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    await store.put(tenant_id, opened.id, text_file("names", ["something else", text, "nothing"]))
    assert names(await find(store, tenant_id, question, None)) == {("names", 1)}


@pytest.mark.parametrize(
    ("question", "exact"),
    [
        ("what does max_workers mean", {0}),
        ("maximum of workers", set()),
        ('where are "workers at the max"', {1}),
        ("what is `workers at the max` of", {1}),
        ("„workers at the max“", {1}),
        ("workers at the max", set()),
        ('what do "workers" do', set()),
        ("does a sleep-worker set/max", set()),
        ("what does --sleep-workers do", {3}),
        ("do the workers of 1.2.3 sleep", {4}),
        ("NOT the workers", set()),
    ],
)
async def test_identifiers_and_quoted_phrases_count_apart_from_words(
    store: PassageStore, tenant_id: UUID, question: str, exact: set[int]
) -> None:
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    texts = ["it sets max_workers here", "NOT all workers at the max of it", "at the max, workers sleep"]
    texts += ["with --sleep-workers=1 they do", "workers of v1.2.3"]
    await store.put(tenant_id, opened.id, text_file("names", texts))
    found = (await find(store, tenant_id, question, None)).candidates
    assert {hit.key.ordinal for hit in found if hit.exact > 0} == exact
    assert len(found) == len(texts)


@pytest.mark.parametrize(
    "name", ["pier_" * 1000, "pier." * 1000, "1,000" + ",000" * 1000, "\N{GREEK SMALL LETTER ALPHA}." * 1000]
)
async def test_a_name_too_long_for_a_word_is_searched_for_in_parts(
    store: PassageStore, tenant_id: UUID, name: str
) -> None:
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    await store.put(tenant_id, opened.id, text_file("names", [f"harbour {name}", "nothing"]))
    assert names(await find(store, tenant_id, f"{name} harbour", None)) == {("names", 0)}


async def test_the_title_of_a_file_counts_as_words_of_its_chunks(store: PassageStore, tenant_id: UUID) -> None:
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    await store.put(tenant_id, opened.id, text_file("lighthouses", ["one", "two"]))
    await store.put(tenant_id, opened.id, text_file("piers", ["one", "two"]))
    assert names(await find(store, tenant_id, "lighthouse", None)) == {("lighthouses", 0), ("lighthouses", 1)}


async def test_the_place_that_a_name_begins_says_the_most_of_it(store: PassageStore, tenant_id: UUID) -> None:
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    texts = ["If max_workers is none", "One.\n\n- max_workers: how many", "They are max_workers, max_workers each"]
    await store.put(tenant_id, opened.id, text_file("names", texts))
    found = (await find(store, tenant_id, "max_workers", None)).candidates
    assert [hit.key.ordinal for hit in sorted(found, key=lambda hit: -hit.exact)] == [1, 2, 0]


@pytest.mark.parametrize("chunks_max", [2, 100])
async def test_chunks_of_an_older_version_are_found_and_brought_to_this_ones_words(
    store: PassageStore, tenant_id: UUID, owner_dsn: str, chunks_max: int
) -> None:
    while await store.refresh_lexemes(1000):
        pass  # of other tests
    texts = [f"asyncio.TaskGroup and {n}" for n in range(5)]
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    await store.put(tenant_id, opened.id, text_file("names", texts))
    connection = await asyncpg.connect(owner_dsn)
    words = "select lexeme, chunks from lexeme_counts where vector_store_id = $1 and chunks > 0 order by 1"
    right = await connection.fetch(words, opened.id)
    await _as_before(connection, opened.id)
    assert await connection.fetch(words, opened.id) != right

    assert len((await find(store, tenant_id, "asyncio.TaskGroup", None)).candidates) == 5
    assert (await find(store, tenant_id, "TaskGroup", None)).candidates == []
    refreshed = [await store.refresh_lexemes(chunks_max) for _ in range(4)]
    assert (sum(refreshed), max(refreshed)) == (5, min(5, chunks_max))
    assert await connection.fetch(words, opened.id) == right
    assert len((await find(store, tenant_id, "TaskGroup", None)).candidates) == 5
    await connection.close()


async def _as_before(connection: asyncpg.Connection[asyncpg.Record], store_id: str) -> None:
    """Write the words of a store as the version before identifiers did."""
    await connection.execute("set session_replication_role = replica")  # no triggers
    await connection.execute(
        "update chunks set lexemes_version = 0, lexemes = to_tsvector('english', heading || ' ' || text) "
        "where vector_store_id = $1",
        store_id,
    )
    await connection.execute("delete from lexeme_counts where vector_store_id = $1", store_id)
    await connection.execute(
        "insert into lexeme_counts (tenant_id, vector_store_id, lexeme, chunks) "
        "select tenant_id, vector_store_id, lexeme, count(*) "
        "from chunks cross join unnest(tsvector_to_array(lexemes)) as t(lexeme) where vector_store_id = $1 "
        "group by 1, 2, 3",
        store_id,
    )
    await connection.execute("set session_replication_role = default")


async def test_a_store_that_is_being_written_to_is_refreshed_later(
    store: PassageStore, tenant_id: UUID, owner_dsn: str
) -> None:
    while await store.refresh_lexemes(1000):
        pass  # of other tests
    opened = await store.open(tenant_id, "notes", embedding_model=MODEL, dimensions=DIMENSIONS)
    await store.put(tenant_id, opened.id, text_file("names", ["max_workers"]))
    connection = await asyncpg.connect(owner_dsn)
    await _as_before(connection, opened.id)
    async with connection.transaction():
        await connection.execute("select from vector_stores where id = $1 for no key update", opened.id)
        assert await store.refresh_lexemes(10) == 0
    assert await store.refresh_lexemes(10) == 1
    await connection.close()


async def test_only_the_worker_may_look_words_up(owner_dsn: str) -> None:
    connection = await asyncpg.connect(owner_dsn)
    functions = await connection.fetch("select proname, proacl::text[] from pg_proc where prosecdef order by proname")
    await connection.close()
    assert "worded_chunks" in [function["proname"] for function in functions]
    for function in functions:  # an empty name before "=" is everybody
        assert not [right for right in function["proacl"] if right.startswith("=")], function["proname"]


async def test_looking_words_up_starts_no_parallel_worker_and_may_sort(owner_dsn: str) -> None:
    """The one takes 6 ms for nothing; without the other, the settings of the index make it read the whole table."""
    connection = await asyncpg.connect(owner_dsn)
    settings = await connection.fetchval("select proconfig from pg_proc where proname = 'worded_chunks'")
    await connection.close()
    assert {"max_parallel_workers_per_gather=0", "enable_sort=on"} <= set(settings)


@pytest.mark.parametrize(
    ("chunks", "total", "better"),
    [
        (5_000, 5_000, False),  # small stores always exactly
        (5_001, 5_001, True),
        (100_000, 100_000, True),
        (100_000, 10_000_000, True),
        (10_000, 1_000_000, False),  # one row in a hundred would be this store's
        (10_000, 100_000, True),
        (10_000, 150_000, False),
        (20_000, -1, True),  # never analysed: the total is not known
    ],
)
def test_the_index_is_used_where_it_is_faster(chunks: int, total: int, better: bool) -> None:
    assert index_is_better(chunks, total, 50) is better
