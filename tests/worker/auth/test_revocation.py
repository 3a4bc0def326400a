"""What is being answered when its credential ends: it ends as well, on every transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import aiohttp
import pytest

from migrations.pool import Database
from tests.worker.answering import MODEL, StallingModel, get, services_with
from tests.worker.harness import SECRET, Client, serving
from worker.auth.keys import Keys
from worker.services import Services

SOON_S = 60.0
CHAT = {"messages": [{"role": "user", "content": "x"}]}
BOTH = pytest.mark.parametrize(("path", "body"), [("/v1/responses", {"input": "x"}), ("/v1/chat/completions", CHAT)])


@dataclass
class Caller:
    """A client with a key, and a model that begins its answer and stands still."""

    client: Client
    services: Services
    model: StallingModel
    keys: Keys

    async def revoke(self) -> None:
        """As another worker or a command does, and then as this worker finds out."""
        key = self.client.session.headers["Authorization"].removeprefix("Bearer ")
        grant = await self.keys.authenticate(key)
        assert grant is not None
        await self.keys.revoke(grant.tenant_id, grant.id)
        await self.services.authenticator.recheck()

    async def stopped(self) -> None:
        """Return when the model was told to stop."""
        async with asyncio.timeout(SOON_S):
            await self.model.running[0].stopped.wait()


@asynccontextmanager
async def calling(database: Database) -> AsyncIterator[Caller]:
    keys, model = Keys(database, SECRET), StallingModel(["Half an answer, "], name=MODEL)
    services = services_with(database, model)
    async with serving(services) as client:
        _, key = await keys.create(await keys.tenant(f"test-{uuid4()}"), "test")
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield Caller(client, services, model, keys)


@BOTH
async def test_a_stream_breaks_off_and_its_generation_ends(
    database: Database, path: str, body: dict[str, object]
) -> None:
    async with calling(database) as caller:
        async with caller.client.post(path, json={**body, "stream": True}) as answer:
            await answer.content.readuntil(b"Hal")
            await caller.revoke()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        await caller.stopped()


@BOTH
async def test_an_answer_that_has_not_begun_becomes_a_401(
    database: Database, path: str, body: dict[str, object]
) -> None:
    async with calling(database) as caller:
        waiting = asyncio.create_task(caller.client.session.post(caller.client.make_url(path), json=body))
        await caller.model.started.wait()
        await caller.revoke()
        async with await waiting as answer:
            assert answer.status == 401
            assert (await answer.json())["error"]["code"] == "invalid_api_key"
        await caller.stopped()


async def test_an_answer_that_nobody_reads_ends_too(database: Database) -> None:
    """One that was to go on without its client, as the client had asked for."""
    async with calling(database) as caller:
        headers = {"x-firsttoken-on-disconnect": "continue"}
        body = {"input": "x", "stream": True}
        async with caller.client.post("/v1/responses", json=body, headers=headers) as answer:
            await answer.content.readuntil(b"Hal")
        answer.close()
        assert not caller.model.running[0].stopped.is_set()
        await caller.revoke()
        await caller.stopped()


async def test_what_other_keys_are_told_goes_on(database: Database) -> None:
    async with calling(database) as caller:
        _, other = await caller.keys.create(await caller.keys.tenant(f"test-{uuid4()}"), "other")
        headers = {"Authorization": f"Bearer {other}"}
        body = {"input": "x", "stream": True}
        async with caller.client.post("/v1/responses", json=body, headers=headers) as answer:
            await answer.content.readuntil(b"er,")
            await get(caller.client, "/v1/models")
            await caller.revoke()
            caller.model.running[0].released.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await get(caller.client, "/v1/models", 401)
