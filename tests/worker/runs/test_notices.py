"""What workers tell each other through Postgres: no more than somebody wants to hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from migrations.pool import Database
from tests.worker.answering import MODEL, StallingModel, answering, post, services_with
from tests.worker.harness import Client
from tests.worker.sharing import colleagues, response_id_of, signed_in
from worker.runs.running_store import CHANNEL
from worker.services import SERVICES

URL = "/v1/responses"
LAST_PIECE = b'"t."'
STREAM = {"input": "tell me", "stream": True}


@asynccontextmanager
async def heard(owner_dsn: str) -> AsyncIterator[list[str]]:
    connection, messages = await asyncpg.connect(owner_dsn), list[str]()

    def hear(_connection: Any, _pid: int, _channel: str, message: Any) -> None:
        messages.append(str(message))

    await connection.add_listener(CHANNEL, hear)
    try:
        yield messages
    finally:
        await connection.close()


async def read(client: Client, id: str) -> bytes:
    async with client.get(f"{URL}/{id}?stream=true") as answer:
        return await answer.read()


async def until_heard(messages: list[str], message: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if message in messages:
                return
            await asyncio.sleep(0.01)


async def until_followed(maker: Client, id: str) -> None:
    """The worker that makes it has heard, too."""
    assert maker.app is not None
    presence = maker.app[SERVICES].presence
    async with asyncio.timeout(60):
        while True:
            if presence.is_followed(id):
                return
            await asyncio.sleep(0.01)


async def until_stored(owner_dsn: str, id: str) -> None:
    """The first events."""
    connection = await asyncpg.connect(owner_dsn)
    try:
        async with asyncio.timeout(60):
            while True:
                if await connection.fetchval("select true from response_events where response_id = $1 limit 1", id):
                    return
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def test_an_answer_that_nobody_follows_elsewhere_is_told_of_once_when_it_is_over(
    database: Database, owner_dsn: str
) -> None:
    model = StallingModel(["Half an answer, and the rest."], name=MODEL)
    async with heard(owner_dsn) as messages, signed_in(database, services := services_with(database, model)) as maker:
        async with maker.post(URL, json=STREAM) as answer:
            id = response_id_of(await answer.content.readuntil(LAST_PIECE))
            await until_stored(owner_dsn, id)
            assert f"news {id}" not in messages
            model.running[0].released.set()
            await answer.read()
        await until_heard(messages, f"news {id}")
        assert messages.count(f"news {id}") == 1
        assert not services.presence.is_followed(id)


async def test_one_that_is_followed_at_another_worker_is_told_of_as_it_grows(
    database: Database, owner_dsn: str
) -> None:
    model = StallingModel(["Half an answer, and the rest."], name=MODEL)
    async with heard(owner_dsn) as messages, colleagues(database, model) as (maker, other):
        async with maker.post(URL, json=STREAM) as answer:
            id = response_id_of(await answer.content.readuntil(LAST_PIECE))
            following = asyncio.create_task(read(other, id))
            await until_heard(messages, f"follow {id}")
            await until_followed(maker, id)
            model.running[0].released.set()
            told = await answer.read()
        assert (await following).endswith(b"data: [DONE]\n\n") and b"response.completed" in told
        await until_heard(messages, f"news {id}")


async def test_a_worker_with_room_takes_what_it_was_asked_for_and_tells_nobody(
    database: Database, owner_dsn: str
) -> None:
    async with heard(owner_dsn) as messages, answering(database, "Hello there.") as client:
        queued = await post(client, URL, {"input": "hello", "background": True})
        assert queued["status"] == "queued"
        await until_heard(messages, f"news {queued['id']}")
        assert "queued" not in messages
