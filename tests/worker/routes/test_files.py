"""The sources of citations, and the stores there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from migrations.pool import Database
from tests.worker.answering import answering, get
from tests.worker.harness import Client

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
