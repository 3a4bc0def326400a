"""Stores of two real embedding models beside each other: each is read by its own, and none by another."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from inference.bundled import EMBEDDER
from inference.embedding.embedder import Embedder
from inference.embedding.registry import EmbedderFile, Embedders
from inference.errors import UnknownEmbedder
from inference.trace import Span, Trace
from migrations.pool import Database
from retrieval.config import RetrievalConfig
from retrieval.errors import EmbeddingModelChanged, EmbeddingModelMissing, OtherEmbeddingModel, StoreNotFound
from retrieval.ingest import IngestReport, ingest
from retrieval.loaders.pool import LoaderPool
from retrieval.passage import Passage
from retrieval.query import Query
from retrieval.retriever import Retriever
from retrieval.store import FileQueue, PassageStore, UploadStore
from tests.inference.encoders import write_encoder
from tests.retrieval.intake import Intake
from tests.retrieval.patience import patient

BUNDLED, WORDS = "minilm-l6-v2", "words-64"
TEXTS = {
    "harbour": "# Harbour\n\nShips enter the harbour at high tide.\n\n## Fees\n\nA berth costs 40 euros a night.\n",
    "bread": "# Bread\n\nKnead flour, water and salt, then bake the dough for an hour.\n",
}


@pytest.fixture
async def stores(store: PassageStore, embedders: Embedders, tenant_id: UUID, tmp_path: Path) -> dict[str, IngestReport]:
    """`harbour` is a store of the bundled model and `bread` one of the other."""
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.md").write_text(text)
    return {
        name: await ingest(
            [tmp_path / f"{name}.md"],
            store_name=name,
            embedding_model=model,
            tenant_id=tenant_id,
            store=store,
            embedders=embedders,
        )
        for name, model in (("harbour", None), ("bread", WORDS))
    }


async def retrieve(
    store: PassageStore,
    embedders: Embedders,
    tenant_id: UUID,
    query: str,
    *names: str,
    config: RetrievalConfig | None = None,
) -> tuple[list[Passage], list[Span]]:
    trace = Trace()
    passages = await Retriever(store, embedders, config or patient()).retrieve(
        Query(tenant_id, query, names, 5, 0.2), trace
    )
    trace.finish()
    return passages, trace.spans


def beside_the_bundled(path: Path) -> Embedders:
    return Embedders(Embedder.load(EMBEDDER), [EmbedderFile.examine(path)])


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


async def test_a_store_is_made_with_the_model_that_was_named(stores: dict[str, IngestReport]) -> None:
    made = {name: (report.store.embedding_model, report.store.dimensions) for name, report in stores.items()}
    assert made == {"harbour": (BUNDLED, 384), "bread": (WORDS, 64)}


@pytest.mark.usefixtures("stores")
async def test_a_store_is_searched_with_its_own_model(
    store: PassageStore, embedders: Embedders, tenant_id: UUID
) -> None:
    passages, spans = await retrieve(store, embedders, tenant_id, "bake the dough", "bread")
    assert [passage.filename for passage in passages] == ["bread.md"]
    for stage in ("embed", "search"):
        assert [span.attributes["model"] for span in named(spans, stage)] == [WORDS]
    assert "skipped" not in named(spans, "rerank")[0].attributes


@pytest.mark.usefixtures("stores")
async def test_stores_of_different_models_are_searched_beside_each_other_and_take_turns(
    store: PassageStore, embedders: Embedders, tenant_id: UUID
) -> None:
    query = "What does a berth cost, and how long to bake the dough?"
    passages, spans = await retrieve(store, embedders, tenant_id, query, "harbour", "bread", "harbour")
    alone = {name: (await retrieve(store, embedders, tenant_id, query, name))[0] for name in TEXTS}
    assert {passage.filename for passage in passages[:2]} == {"harbour.md", "bread.md"}
    assert sorted(passages, key=lambda p: (p.filename, -p.score)) == [*alone["bread"], *alone["harbour"]]
    embeds = named(spans, "embed")
    assert [span.attributes["model"] for span in embeds] == [BUNDLED, WORDS]
    assert max(span.start_ns for span in embeds) <= min(span.end_ns for span in embeds)
    for stage in ("search", "fuse", "rerank"):
        assert len(named(spans, stage)) == 2
    for stage in ("open", "compress"):
        assert len(named(spans, stage)) == 1


@pytest.mark.usefixtures("stores")
async def test_a_model_that_comes_too_late_is_there_for_the_next_question(
    store: PassageStore, words: Path, tenant_id: UUID
) -> None:
    fresh = beside_the_bundled(words)
    hurried = patient(embed_ms=0.01)
    passages, spans = await retrieve(store, fresh, tenant_id, "bake the dough", "bread", config=hurried)
    assert named(spans, "embed")[0].attributes["skipped"] == "over budget"
    assert [passage.filename for passage in passages] == ["bread.md"], "words alone find it"
    async with asyncio.timeout(60):
        await fresh.get(WORDS)
    _, spans = await retrieve(store, fresh, tenant_id, "bake the dough", "bread")
    assert "skipped" not in named(spans, "embed")[0].attributes
    await fresh.close()


@pytest.mark.usefixtures("stores")
async def test_a_model_whose_file_is_gone_leaves_the_words(
    store: PassageStore, words: Path, tenant_id: UUID, tmp_path: Path
) -> None:
    path = Path(shutil.copy(words, tmp_path))
    fresh = beside_the_bundled(path)
    os.remove(path)
    passages, spans = await retrieve(store, fresh, tenant_id, "bake the dough", "bread")
    assert [passage.filename for passage in passages] == ["bread.md"]
    assert named(spans, "embed")[0].attributes["skipped"] == "no model"
    await fresh.close()


@pytest.mark.usefixtures("stores")
async def test_models_are_loaded_ahead_for_who_is_about_to_ask(
    store: PassageStore, words: Path, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    fresh = beside_the_bundled(words)
    retriever = Retriever(store, fresh, patient())
    await retriever.prepare(tenant_id=other_tenant_id, stores=["bread"])
    assert fresh.states[WORDS] == "waiting", "of another tenant there is no such store"
    await retriever.prepare(tenant_id=tenant_id, stores=["bread"])
    assert fresh.states[WORDS] == "loading"
    await fresh.close()


@pytest.mark.usefixtures("stores")
async def test_a_store_whose_model_is_not_here_is_refused_before_anything_is_searched(
    store: PassageStore, embedders: Embedders, tenant_id: UUID
) -> None:
    alone = Embedders(embedders.default)
    message = rf"'bread' was made with the embedding model {WORDS} of 64 dimensions.*\(it has {BUNDLED}\).*--embedders"
    with pytest.raises(EmbeddingModelMissing, match=message) as caught:
        await retrieve(store, alone, tenant_id, "bake the dough", "harbour", "bread")
    assert (caught.value.status, caught.value.code) == (409, "embedding_model_missing")
    passages, _ = await retrieve(store, alone, tenant_id, "What does a berth cost?", "harbour")
    assert passages, "stores of other models are as before"


async def test_a_model_of_the_same_name_and_other_dimensions_is_another_one(
    store: PassageStore, embedders: Embedders, tenant_id: UUID
) -> None:
    await store.open(tenant_id, "old", embedding_model=WORDS, dimensions=32)
    with pytest.raises(EmbeddingModelMissing, match="of 32 dimensions"):
        await retrieve(store, embedders, tenant_id, "anything", "old")


@pytest.fixture
async def impostors(words: Path, tmp_path: Path) -> AsyncIterator[Embedders]:
    """With another model under the name of the second one, of the same dimensions."""
    folder = tmp_path / "impostor"
    folder.mkdir()
    impostors = beside_the_bundled(write_encoder(folder / words.name, 64, seed=9))
    yield impostors
    await impostors.close()


@pytest.mark.usefixtures("stores")
async def test_another_model_of_the_same_name_is_found_out(
    store: PassageStore, embedders: Embedders, impostors: Embedders, tenant_id: UUID, tmp_path: Path
) -> None:
    message = f"'bread' was created with a different model of the same name, {WORDS}"
    with pytest.raises(EmbeddingModelChanged, match=message):
        await retrieve(store, impostors, tenant_id, "bake the dough", "bread")
    (tmp_path / "more.md").write_text("# More\n\nMore dough.\n")
    with pytest.raises(EmbeddingModelChanged):
        await ingest([tmp_path], store_name="bread", tenant_id=tenant_id, store=store, embedders=impostors)
    passages, _ = await retrieve(store, impostors, tenant_id, "What does a berth cost?", "harbour")
    assert passages, "stores of other models are as before"
    assert (await retrieve(store, embedders, tenant_id, "bake the dough", "bread"))[0]


async def test_a_store_from_before_likenesses_takes_the_model_that_writes_next(
    store: PassageStore,
    embedders: Embedders,
    impostors: Embedders,
    stores: dict[str, IngestReport],
    tenant_id: UUID,
    tmp_path: Path,
    owner_dsn: str,
) -> None:
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("update vector_stores set likeness = null where id = $1", stores["bread"].store.id)
    await connection.close()
    assert (await retrieve(store, embedders, tenant_id, "bake the dough", "bread"))[0]
    (tmp_path / "more.md").write_text("# More\n\nMore dough.\n")
    await ingest([tmp_path], store_name="bread", tenant_id=tenant_id, store=store, embedders=embedders)
    with pytest.raises(EmbeddingModelChanged):
        await retrieve(store, impostors, tenant_id, "bake the dough", "bread")


async def test_no_tenant_finds_what_another_has_in_a_store_of_any_model(
    store: PassageStore, embedders: Embedders, stores: dict[str, IngestReport], other_tenant_id: UUID, tmp_path: Path
) -> None:
    (tmp_path / "mine.md").write_text("# Mine\n\nThe dough is mine.\n")
    await ingest(
        [tmp_path / "mine.md"],
        store_name="bread",
        embedding_model=WORDS,
        tenant_id=other_tenant_id,
        store=store,
        embedders=embedders,
    )
    passages, _ = await retrieve(store, embedders, other_tenant_id, "bake the dough", "bread")
    assert [passage.filename for passage in passages] == ["mine.md"]
    with pytest.raises(StoreNotFound):
        await retrieve(store, embedders, other_tenant_id, "bake the dough", stores["bread"].store.id)


@pytest.mark.usefixtures("stores")
async def test_a_store_that_is_there_keeps_its_model_when_more_is_read_into_it(
    store: PassageStore, embedders: Embedders, tenant_id: UUID, tmp_path: Path
) -> None:
    async def add(model: str | None) -> IngestReport:
        return await ingest(
            [tmp_path], store_name="bread", embedding_model=model, tenant_id=tenant_id, store=store, embedders=embedders
        )

    with pytest.raises(OtherEmbeddingModel, match=f"'bread' was made with the embedding model {WORDS}, not {BUNDLED}"):
        await add(BUNDLED)
    with pytest.raises(UnknownEmbedder, match="'gpt-9'"):
        await add("gpt-9")
    for model in (None, WORDS):
        assert (await add(model)).store.embedding_model == WORDS
    assert (await store.counted(tenant_id, "bread")).files == 2


@pytest.fixture
def shelf(database: Database) -> FileQueue:
    return FileQueue(database)


@pytest.mark.parametrize(("here", "status"), [(True, "completed"), (False, "failed")])
async def test_a_file_that_waits_is_read_with_the_model_of_its_store(
    database: Database,
    store: PassageStore,
    shelf: FileQueue,
    embedders: Embedders,
    loaders: LoaderPool,
    tenant_id: UUID,
    tmp_path: Path,
    here: bool,
    status: str,
) -> None:
    made = await store.create(tenant_id, None, {}, embedding_model=WORDS, dimensions=64)
    uploads = UploadStore(database, tenant_bytes_max=2**20)
    path = tmp_path / "bread.md"
    path.write_text(TEXTS["bread"])
    with path.open("rb") as file:
        upload = await uploads.create(tenant_id, "bread.md", "assistants", path.stat().st_size, file)
    await shelf.add(tenant_id, made.id, {upload.id: {}})
    intake = Intake(shelf, uploads, store, embedders if here else Embedders(embedders.default), loaders, worker=4713)
    intake.start()
    async with asyncio.timeout(60):
        while (file_ := await shelf.get(tenant_id, made.id, upload.id)).status == "in_progress":  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0.02)
    await intake.close()
    assert file_.status == status
    if here:
        passages, _ = await retrieve(store, embedders, tenant_id, "bake the dough", made.id)
        assert [passage.filename for passage in passages] == ["bread.md"]
    else:
        assert file_.error is not None and WORDS in file_.error["message"]
