"""Wrong credentials: an address that sends many is told so, and locks nobody out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from uuid import uuid4

import pytest

from migrations.pool import Database
from tests.worker.edge.sockets import head, raw
from tests.worker.harness import SECRET, Client, make_services, serving
from worker.auth import throttle as module
from worker.auth.keys import Keys
from worker.auth.throttle import FAILURES_MAX, Throttle
from worker.errors import ApiError


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with serving(make_services(database)) as client:
        yield client


@pytest.fixture
async def key(database: Database) -> str:
    """One that this worker has not seen."""
    keys = Keys(database, SECRET)
    return (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]


@pytest.fixture
def unforgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time goes by, however long the requests take."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))


async def ask(client: Client, key: str) -> tuple[int, str | None]:
    async with client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}) as answer:
        return answer.status, answer.headers.get("Retry-After")


@pytest.mark.usefixtures("unforgiven")
async def test_an_address_with_too_many_wrong_keys_is_told_to_wait(client: Client, key: str) -> None:
    refused = [await ask(client, f"ft_{number}") for number in range(FAILURES_MAX + 5)]
    assert refused[:FAILURES_MAX] == [(401, None)] * FAILURES_MAX
    assert refused[-1] == (429, "2")
    assert (await ask(client, key))[0] == 200  # a right key is let in from there, also for the first time
    async with raw(client, "127.0.0.2") as elsewhere:
        await elsewhere.send(head("GET", "/v1/models", Authorization="Bearer ft_x"))
        assert (await elsewhere.answer())[0] == 401


@pytest.mark.usefixtures("unforgiven")
async def test_links_that_do_not_count_are_wrong_credentials_too(client: Client) -> None:
    statuses = []
    for number in range(FAILURES_MAX + 1):
        async with client.get("/", params={"token": str(number)}, allow_redirects=False) as answer:
            statuses.append(answer.status)
    assert statuses == [303] * FAILURES_MAX + [429]


async def fail(throttle: Throttle, address: str) -> int:
    with pytest.raises(ApiError) as refused:
        async with throttle.checking(address):
            raise ApiError(401, "wrong")
    return refused.value.status


async def test_failures_are_forgiven_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = Throttle()
    for _ in range(FAILURES_MAX):
        assert await fail(throttle, "a") == 401
    assert await fail(throttle, "a") == 429
    monkeypatch.setattr(module, "FORGIVEN_PER_S", 1e9)
    assert await fail(throttle, "a") == 401


async def test_addresses_are_forgotten_one_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_MAX", 3)
    throttle = Throttle()
    for address in "abcde":
        await fail(throttle, address)
    assert repr(throttle) == "<Throttle 3 addresses>"


async def test_what_comes_from_such_an_address_is_checked_one_after_the_other() -> None:
    throttle, running, most = Throttle(), 0, 0

    async def check() -> None:
        nonlocal running, most
        async with throttle.checking("a"):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(check() for _ in range(5)))
    assert most == 5
    for _ in range(FAILURES_MAX + 1):
        await fail(throttle, "a")
    most = 0
    await asyncio.gather(*(check() for _ in range(5)))
    assert most == 1
