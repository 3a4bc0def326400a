"""Pages of other origins may call the API from a browser where the operator allows it, and only there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from migrations.pool import Database
from tests.worker.harness import SECRET, Client, make_services, serving
from worker.auth.keys import Keys
from worker.config import Config

ASKING = {
    "Origin": "https://app.example.com",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}
ALLOW_ORIGIN = "Access-Control-Allow-Origin"


async def serving_to(database: Database, origins: str | None) -> AsyncIterator[Client]:
    async with serving(make_services(database, Config(cors_origins=origins))) as client:
        keys = Keys(database, SECRET)
        _, client.session.headers["Api-Key"] = await keys.create(await keys.tenant("cors"), "test")
        yield client


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async for client in serving_to(database, "https://app.example.com, http://localhost:3000/"):
        yield client


@pytest.fixture
async def closed(database: Database) -> AsyncIterator[Client]:
    async for client in serving_to(database, None):
        yield client


async def test_a_preflight_is_answered_without_credentials(client: Client) -> None:
    async with client.options("/v1/responses", headers=ASKING) as response:
        assert response.status == 204
        assert response.headers[ALLOW_ORIGIN] == "https://app.example.com"
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        assert "Access-Control-Allow-Credentials" not in response.headers


async def test_an_answer_and_a_refusal_are_shown_to_the_page(client: Client) -> None:
    origin = {"Origin": "http://localhost:3000"}
    key = {"Authorization": f"Bearer {client.session.headers['Api-Key']}"}
    for headers, status in ((origin, 401), (origin | key, 200)):
        async with client.get("/v1/models", headers=headers) as response:
            assert (response.status, response.headers[ALLOW_ORIGIN]) == (status, "http://localhost:3000")
            assert "X-Firsttoken-Ignored" in response.headers["Access-Control-Expose-Headers"]
            assert response.headers["Vary"] == "Origin"


async def test_other_origins_are_shown_nothing(client: Client) -> None:
    async with client.options("/v1/responses", headers={**ASKING, "Origin": "https://example.com"}) as response:
        assert response.status == 405
        assert ALLOW_ORIGIN not in response.headers


async def test_by_default_nobody_may(closed: Client) -> None:
    async with closed.options("/v1/responses", headers=ASKING) as response:
        assert response.status == 405
        assert not {ALLOW_ORIGIN, "Vary"} & response.headers.keys()
