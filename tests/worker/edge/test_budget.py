"""What tenants may hold of the worker's memory, whichever way it comes in."""

from __future__ import annotations

from uuid import UUID

import pytest
from aiohttp import WSCloseCode, WSMsgType

from migrations.pool import Database
from tests.worker.answering import StallingModel, answering
from tests.worker.edge.sockets import head, raw, until
from tests.worker.harness import Client
from worker.config import Config
from worker.edge.body import BUDGET, Budget
from worker.errors import ApiError

ONE, OTHER = UUID(int=1), UUID(int=2)
SMALL = Config(request_mb=2)


def held(client: Client) -> int:
    assert client.app is not None
    return client.app[BUDGET].held_bytes


def test_a_tenant_holds_no_more_than_its_share() -> None:
    budget = Budget(100, 60)
    with budget.reserve(ONE) as first, budget.reserve(ONE) as second, budget.reserve(OTHER) as other:
        first.resize(50)
        with pytest.raises(ApiError) as refused:
            second.resize(20)
        assert (refused.value.status, second.bytes, budget.held_bytes) == (429, 0, 50)
        other.resize(50)
        with pytest.raises(ApiError):
            second.resize(5)  # of what all of them may hold
        first.resize(10)
        second.resize(40)
    assert budget.held_bytes == 0


async def test_bodies_of_a_tenant_that_arrive_together_are_bounded(database: Database) -> None:
    async with answering(database, "x", config=SMALL) as client, raw(client) as first, raw(client) as second:
        await first.send(head("POST", "/v1/responses", client, Content_Length="900000") + bytes(700_000))
        await until(lambda: held(client) >= 700_000)
        await second.send(head("POST", "/v1/responses", client, Content_Length="900000") + bytes(700_000))
        status, content = await second.answer()
        assert (status, content["error"]["code"]) == (429, "rate_limit_exceeded")  # type: ignore[index]


async def test_files_of_a_tenant_that_arrive_together_are_bounded(database: Database) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + bytes(450_000)
    form = {"Content_Type": "multipart/form-data; boundary=b", "Content_Length": "900000"}
    async with answering(database, "x", config=SMALL) as client, raw(client) as first, raw(client) as second:
        await first.send(head("POST", "/v1/files", client, **form) + part)
        await second.send(head("POST", "/v1/files", client, **form) + part)
        await until(lambda: held(client) >= 800_000)
        async with raw(client) as third:
            await third.send(head("POST", "/v1/files", client, **form) + part)
            assert (await third.answer())[0] == 429


async def test_messages_that_wait_on_the_sockets_of_a_tenant_are_bounded(database: Database) -> None:
    message = '{"type": "response.create", "input": "hello"' + " " * 400_000 + "}"
    model = StallingModel(["Hello."])
    async with answering(database, model=model, config=SMALL) as client:
        async with client.ws_connect("/v1/responses") as first, client.ws_connect("/v1/responses") as second:
            await first.send_str(message)
            await first.send_str(message)
            await until(lambda: held(client) >= 800_000)
            await second.send_str(message)
            closed = await second.receive(timeout=60)
            assert (closed.type, closed.data) == (WSMsgType.CLOSE, WSCloseCode.TRY_AGAIN_LATER)
            await until(lambda: bool(model.running))
            model.running[0].released.set()
            await until(lambda: held(client) <= 500_000)  # the first one is answered
        await until(lambda: held(client) == 0)


async def test_a_message_counts_before_it_is_whole(database: Database) -> None:
    async with answering(database, "x", config=SMALL) as client, client.ws_connect("/v1/responses") as socket:
        piece = b"x" * 100_000
        assert socket._writer is not None  # a frame that is never finished: no client sends one
        transport = socket._writer.transport
        transport.write(b"\x81\xff" + (3_000_000).to_bytes(8, "big") + bytes(4))
        for _ in range(12):
            transport.write(piece)
        closed = await socket.receive(timeout=60)
        assert closed.data == WSCloseCode.TRY_AGAIN_LATER
