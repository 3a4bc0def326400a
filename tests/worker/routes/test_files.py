"""The sources of citations, and the stores there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from migrations.pool import Database
from tests.worker.answering import answering, get, post
from tests.worker.harness import Client
from worker.wire.limits import FILES_PAGE_MAX

TEXT = "Öl 😀 first.\nThe port is 8080.\n"


@pytest.fixture
async def client(database: Database, owner_dsn: str) -> AsyncIterator[Client]:
    async with answering(database, "x") as client:
        connection = await asyncpg.connect(owner_dsn)
        tenant: UUID = await connection.fetchval("select tenant_id from api_keys order by created_at desc limit 1")
        await connection.execute(
            "insert into vector_stores (tenant_id, id, name, embedding_model, dimensions) values ($1, $2, $3, $4, $5)",
            *(tenant, "vs_1", "handbook", "minilm", 384),
        )
        await connection.execute(
            "insert into files (tenant_id, id, filename, title, media_type, bytes, sha256, content) "
            "values ($1, $2, $3, $4, $5, $6, $7, $8)",
            *(tenant, "file_1", "port.md", "Port", "text/markdown", 35, b"", TEXT),
        )
        await connection.close()
        yield client


async def test_the_text_of_a_source_comes_back_exactly(client: Client) -> None:
    async with client.get("/v1/files/file_1/content") as answer:
        assert await answer.text() == TEXT
        assert answer.content_type == "text/plain"
        assert "private" in answer.headers["Cache-Control"]


async def test_a_file_says_what_it_is(client: Client) -> None:
    file = await get(client, "/v1/files/file_1")
    assert (file["object"], file["filename"], file["bytes"]) == ("file", "port.md", 35)


async def test_files_are_asked_for_by_the_thousand(client: Client, owner_dsn: str) -> None:
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute(
        "insert into files (tenant_id, id, filename, title, media_type, bytes, sha256, content) "
        "select tenant_id, 'file_x' || n, filename, title, media_type, bytes, sha256, content "
        f"from files, generate_series(1, {FILES_PAGE_MAX}) n where id = 'file_1'"
    )
    await connection.close()
    first = await get(client, "/v1/files?limit=10000")
    rest = await get(client, f"/v1/files?limit=10000&after={first['last_id']}")
    assert (len(first["data"]), first["has_more"]) == (FILES_PAGE_MAX, True)
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    assert len((await get(client, "/v1/files"))["data"]) == FILES_PAGE_MAX
    assert (await get(client, "/v1/files?limit=10001", 400))["error"]["param"] == "limit"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/conversations", "/v1/conversations/{}/items"])
async def test_a_list_that_goes_on_after_what_was_deleted_says_so_instead_of_ending(client: Client, path: str) -> None:
    conversation = await post(client, "/v1/conversations", {"items": [{"role": "user", "content": "x"}]})
    error = (await get(client, f"{path.format(conversation['id'])}?after=file_gone", 400))["error"]
    assert error["param"] == "after"
    if path == "/v1/files":
        assert (await get(client, f"{path}?after=file_1"))["data"] == []  # the end


async def test_stores_are_listed_and_found_by_id_and_name(client: Client) -> None:
    (store,) = (await get(client, "/v1/vector_stores"))["data"]
    assert (store["object"], store["name"]) == ("vector_store", "handbook")
    assert await get(client, "/v1/vector_stores/vs_1") == store
    assert await get(client, "/v1/vector_stores/handbook") == store


async def test_another_tenant_sees_none_of_it(client: Client, database: Database) -> None:
    async with answering(database, "x") as stranger:
        await get(stranger, "/v1/files/file_1", 404)
        await get(stranger, "/v1/files/file_1/content", 404)
        assert (await get(stranger, "/v1/vector_stores"))["data"] == []
