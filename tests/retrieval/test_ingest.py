from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from inference.embedding.registry import Embedders
from inference.trace import Trace
from migrations.pool import Database
from retrieval.embedding import BITE_CHUNKS
from retrieval.errors import EmbeddingModelMissing
from retrieval.filter import Comparison
from retrieval.ingest import IngestReport, Progress, ingest
from retrieval.loaders import formats
from retrieval.query import Query
from retrieval.retriever import Retriever
from retrieval.store import PassageStore
from tests.retrieval.patience import patient

HARBOUR = "# Harbour\n\nShips enter the harbour at high tide.\n\n## Fees\n\nA berth costs 40 euros a night.\n"
BREAD = "# Bread\n\nKnead flour, water and salt, then bake the dough for an hour.\n"

Ingest = Callable[..., Awaitable[IngestReport]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kitchen").mkdir()
    (tmp_path / "harbour.md").write_text(HARBOUR)
    (tmp_path / "kitchen" / "bread.md").write_text(BREAD)
    return tmp_path


@pytest.fixture
def take(store: PassageStore, embedders: Embedders, tenant_id: UUID) -> Ingest:
    async def take(
        *paths: Path, progress: Callable[[Progress], None] = lambda _: None, stored_below: str | None = None
    ) -> IngestReport:
        return await ingest(
            paths,
            store_name="notes",
            stored_below=stored_below,
            tenant_id=tenant_id,
            store=store,
            embedders=embedders,
            progress=progress,
        )

    return take


@pytest.fixture
def ask(store: PassageStore, embedders: Embedders, tenant_id: UUID) -> Callable[[str], Awaitable[str | None]]:
    """The best passage's text, if any is relevant."""
    retriever = Retriever(store, embedders, patient())

    async def ask(query: str) -> str | None:
        found = await retriever.retrieve(Query(tenant_id, query, ("notes",), 1, 0.42), Trace())
        return found[0].text if found else None

    return ask


async def test_a_folder_can_be_asked_about(
    take: Ingest, folder: Path, ask: Callable[[str], Awaitable[str | None]]
) -> None:
    report = await take(folder)
    assert (report.written, report.unchanged, report.removed, report.chunks) == (2, 0, 0, 3)
    assert report.store.files == 2
    assert await ask("What does a berth cost?") == "A berth costs 40 euros a night."
    assert await ask("how do I bake bread") == "Knead flour, water and salt, then bake the dough for an hour."
    assert await ask("what is 12*7") is None


async def test_files_that_did_not_change_are_not_embedded_again(take: Ingest, folder: Path) -> None:
    await take(folder)
    again = await take(folder)
    assert (again.written, again.unchanged, again.chunks) == (0, 2, 0)


async def test_a_file_is_read_again_where_its_loader_reads_other_words(
    take: Ingest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "fees.html").write_text("<p>A berth costs 40 euros a night.</p>")
    await take(folder)
    monkeypatch.setitem(formats.VERSIONS, "html", formats.VERSIONS["html"] + 1)
    again = await take(folder)
    assert (again.written, again.unchanged, again.store.files) == (1, 2, 3)
    assert (await take(folder)).unchanged == 3


async def test_a_file_that_changed_is_replaced(
    take: Ingest, folder: Path, ask: Callable[[str], Awaitable[str | None]]
) -> None:
    await take(folder)
    (folder / "harbour.md").write_text(HARBOUR.replace("40 euros", "55 euros"))
    report = await take(folder)
    assert (report.written, report.unchanged, report.store.files) == (1, 1, 2)
    assert await ask("What does a berth cost?") == "A berth costs 55 euros a night."


async def test_a_file_that_is_gone_from_its_folder_is_removed(
    take: Ingest, folder: Path, ask: Callable[[str], Awaitable[str | None]]
) -> None:
    await take(folder)
    (folder / "harbour.md").unlink()
    report = await take(folder)
    assert (report.removed, report.unchanged, report.store.files) == (1, 1, 1)
    assert await ask("What does a berth cost?") is None


async def test_a_moved_folder_replaces_itself_if_it_is_stored_below_a_name(take: Ingest, folder: Path) -> None:
    await take(folder)  # as before there were names
    first = await take(folder, stored_below="notes")
    assert (first.written, first.removed, first.store.files) == (2, 2, 2)
    moved = folder.with_name(f"{folder.name}-elsewhere")
    os.rename(folder, moved)
    (moved / "harbour.md").unlink()
    second = await take(moved, stored_below="notes")
    assert (second.written, second.unchanged, second.removed, second.store.files) == (0, 1, 1, 1)


async def test_a_folder_that_cannot_be_found_removes_nothing(take: Ingest, folder: Path) -> None:
    await take(folder)
    os.rename(folder, folder.with_name("moved"))
    report = await take(folder)
    assert [error.reason for error in report.errors] == ["there is no such file"]
    assert (report.removed, report.store.files) == (0, 2)


async def test_bad_files_are_reported_one_by_one_and_the_rest_goes_in(take: Ingest, folder: Path) -> None:
    (folder / "empty.md").write_text("")
    (folder / "binary.txt").write_bytes(b"\0\1\2")
    (folder / "lines.md").write_text("---\n")
    (folder / "picture.png").write_bytes(b"png")
    report = await take(folder, folder / "missing.md", folder / "picture.png")
    assert {Path(error.path).name: error.reason.split(";")[0] for error in report.errors} == {
        "empty.md": "is empty",
        "binary.txt": "is not text (it contains zero bytes)",
        "lines.md": "contains no words",
        "missing.md": "there is no such file",
        "picture.png": "has the type *.png, which cannot be read",
    }
    assert (report.written, report.store.files, report.skipped) == (2, 2, 1)


async def test_a_file_that_became_unreadable_keeps_what_was_read_of_it(
    take: Ingest, folder: Path, ask: Callable[[str], Awaitable[str | None]]
) -> None:
    await take(folder)
    (folder / "harbour.md").write_bytes(b"\0")
    report = await take(folder)
    assert len(report.errors) == 1
    assert await ask("What does a berth cost?") == "A berth costs 40 euros a night."


async def test_passages_are_exact_spans_of_the_stored_text(
    take: Ingest, folder: Path, store: PassageStore, embedders: Embedders, tenant_id: UUID
) -> None:
    (folder / "odd.html").write_text("<h1>Größe</h1><p>Die 🚀 fliegt&nbsp;<b>weit</b>.</p>" * 30, "utf-8")
    (folder / "dos.txt").write_bytes("Zeile eins über Äpfel\r\nZeile zwei\r\n".encode("cp1252") * 80)
    await take(folder)
    asked = Query(tenant_id, "Zeile fliegt harbour bread", ("notes",), 50, 0)
    passages = await Retriever(store, embedders, patient(best_share_min=0.0)).retrieve(asked, Trace())
    assert {passage.filename for passage in passages} == {"odd.html", "dos.txt", "harbour.md", "kitchen/bread.md"}
    for passage in passages:
        file = await store.file(tenant_id, passage.file_id)
        assert file.content[passage.start_char : passage.end_char] == passage.text


async def test_progress_counts_up_to_everything(take: Ingest, folder: Path) -> None:
    (folder / "long.md").write_text("\n\n".join(f"# Part {n}\n\nA few words." for n in range(BITE_CHUNKS + 1)))
    seen: list[Progress] = []
    report = await take(folder, progress=seen.append)
    assert [one.files_done for one in seen] == sorted(one.files_done for one in seen)
    assert [one.chunks for one in seen] == sorted(one.chunks for one in seen)
    assert (seen[-1].files_done, seen[-1].files_total, seen[-1].chunks) == (3, 3, report.chunks)
    assert len(seen) > 4  # a long file reports on the way


async def test_two_at_once_end_as_one(take: Ingest, folder: Path, store: PassageStore, tenant_id: UUID) -> None:
    one, other = await asyncio.gather(take(folder), take(folder))
    assert one.written + other.written == 2
    assert one.store.id == other.store.id
    assert (await store.counted(tenant_id, "notes")).files == 2
    assert (await take(folder)).unchanged == 2


async def test_an_ingest_that_was_interrupted_is_finished_by_the_next(take: Ingest, folder: Path) -> None:
    def stop_after_the_first(progress: Progress) -> None:
        if progress.files_done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await take(folder, progress=stop_after_the_first)
    report = await take(folder)
    assert (report.unchanged, report.written, report.store.files) == (1, 1, 2)


async def test_another_embedding_model_is_refused_before_anything_is_read(
    take: Ingest, folder: Path, store: PassageStore, tenant_id: UUID
) -> None:
    await store.open(tenant_id, "notes", embedding_model="another", dimensions=8)
    with pytest.raises(EmbeddingModelMissing, match="put the files into a new store"):
        await take(folder)


async def test_file_names_that_are_no_unicode_do_not_stop_it(take: Ingest, folder: Path) -> None:
    os.rename(folder / "harbour.md", os.fsencode(folder) + b"/harbour\xff.md")
    assert (await take(folder)).written == 2
    assert (await take(folder)).unchanged == 2


async def test_a_tenants_files_are_found_by_nobody_else(
    take: Ingest, folder: Path, database: Database, embedders: Embedders, other_tenant_id: UUID
) -> None:
    await take(folder)
    store = PassageStore(database)
    report = await ingest(
        [folder / "kitchen"], store_name="notes", tenant_id=other_tenant_id, store=store, embedders=embedders
    )
    assert (report.written, report.removed) == (1, 0)
    asked = Query(other_tenant_id, "What does a berth cost?", ("notes",), 9, 0)
    found = await Retriever(store, embedders, patient()).retrieve(asked, Trace())
    assert [passage.filename for passage in found] == ["bread.md"]


async def test_attributes_are_given_and_changed_without_embedding_again(
    folder: Path, store: PassageStore, embedders: Embedders, tenant_id: UUID
) -> None:
    async def found(year: int) -> int:
        result = await store.search(
            tenant_id,
            await store.named(tenant_id, ["notes"]),
            query="harbour",
            vector=None,
            limit=9,
            filters=Comparison(type="eq", key="year", value=year),
        )
        return result.chunks

    for year, embedded in ((2023, 3), (2024, 0)):
        report = await ingest(
            [folder],
            store_name="notes",
            tenant_id=tenant_id,
            store=store,
            embedders=embedders,
            attributes={"year": year},
        )
        assert report.chunks == embedded
        assert await found(year) == 3
    assert await found(2023) == 0


async def test_an_address_that_cannot_be_fetched_is_reported_and_the_rest_goes_in(
    folder: Path, store: PassageStore, embedders: Embedders, tenant_id: UUID
) -> None:
    url = "http://127.0.0.1:1/guide"
    report = await ingest(
        [folder], urls=[url], store_name="notes", tenant_id=tenant_id, store=store, embedders=embedders
    )
    assert [(error.path, "private network" in error.reason) for error in report.errors] == [(url, True)]
    assert report.written == 2


def test_what_is_left_is_told_from_what_is_done() -> None:
    assert Progress(0, 4, 0, 100, 0, 1.0).left_s is None
    assert Progress(1, 4, 25, 100, 9, 10.0).left_s == pytest.approx(30)
    assert Progress(1, 2, 0, 0, 9, 10.0).left_s == pytest.approx(10)
    assert Progress(4, 4, 100, 100, 9, 10.0).left_s == 0
