"""deploy/haproxy.cfg and deploy/envoy.yaml, each started for real before two workers."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.deploy.balancers import BALANCERS, StubWorker, balancing

TURNS = 24
NOTICED_S = 60.0  # two looks, a second apart


class Edge(NamedTuple):
    http: aiohttp.ClientSession
    workers: list[StubWorker]


@pytest.fixture(scope="module", params=sorted(BALANCERS))
async def edge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    workers = [StubWorker("one"), StubWorker("two")]
    folder: Path = tmp_path_factory.mktemp("balancer")
    async with AsyncExitStack() as undo:
        for worker in workers:
            undo.push_async_callback(worker.stop)
            await worker.start()
        url = await undo.enter_async_context(balancing(request.param, [each.address for each in workers], folder))
        # A connection a request, as many clients: a balancer may keep one of them at its worker.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(url, connector=connector) as http:
            edge = Edge(http, workers)
            await until_both_answer(edge)
            yield edge


async def until_both_answer(edge: Edge) -> None:
    """A balancer begins with those that it has found to be ready, and before with none."""
    answered: set[str] = set()
    async with asyncio.timeout(NOTICED_S):
        for number in count():
            async with edge.http.post("/v1/responses", json={"conversation": f"conv_{number}"}) as answer:
                if answer.status == 200:
                    answered.add((await answer.json())["worker"])
            if len(answered) == len(edge.workers):
                break


async def worker_of(edge: Edge, path: str = "/v1/responses", **sent: Any) -> str:
    async with edge.http.post(path, **sent) as answer:
        assert answer.status == 200, await answer.text()
        worker: str = (await answer.json())["worker"]
        return worker


@pytest.mark.parametrize("spelling", ["named", "object", "prompt_cache_key", "path", "caller", "session"])
async def test_what_belongs_together_meets_one_worker_and_all_of_it_meets_both(edge: Edge, spelling: str) -> None:
    def asked(number: int) -> dict[str, Any]:
        key = f"{spelling}_{number}"
        said = 'is "conversation": "conv_9" for \'prompt_cache_key\''  # what people write is no name
        match spelling:
            case "named":
                return {"json": {"input": said, "prompt_cache_key": "all", "conversation": key}}
            case "object":
                return {"json": {"input": said, "conversation": {"id": key}}}
            case "prompt_cache_key":
                return {"json": {"input": said, "prompt_cache_key": key}}
            case "path":
                return {"path": f"/v1/conversations/{key}/items", "json": {"items": said}}
            case "caller":
                return {"json": {"input": said}, "headers": {"Authorization": f"Bearer {key}"}}
            case _:
                return {"json": {"conversation": "conv_1"}, "headers": {"X-Session-Id": key}}

    met = [{await worker_of(edge, **asked(number)) for _ in range(2)} for number in range(TURNS)]
    assert all(len(workers) == 1 for workers in met)
    assert set().union(*met) == {"one", "two"}


async def test_a_body_that_is_longer_than_what_a_balancer_reads_arrives_whole(edge: Edge) -> None:
    async with edge.http.post("/v1/files", data=io.BytesIO(b"x" * 3_000_000)) as answer:
        assert (answer.status, (await answer.json())["bytes"]) == (200, 3_000_000)


async def test_the_first_event_arrives_while_the_answer_is_still_made(edge: Edge) -> None:
    async with edge.http.post("/stream", json={"conversation": "a"}) as answer:
        async with asyncio.timeout(60):
            first = await answer.content.readuntil(b"\n\n")
        assert first.startswith(b"data: first of ")
        let_go(edge)
        assert await answer.read() == b"data: last\n\n"


async def test_a_worker_that_is_being_stopped_gets_nothing_new_and_finishes_what_it_has(edge: Edge) -> None:
    async with edge.http.post("/stream", json={"conversation": "b"}) as answer:
        first = await answer.content.readuntil(b"\n\n")
        leaving = next(worker for worker in edge.workers if worker.name in first.decode())
        leaving.ready = False
        # At once, before the balancer has looked: what a worker refuses, the other one takes.
        met = {await worker_of(edge, json={"conversation": f"conv_{number}"}) for number in range(TURNS)}
        assert met == {worker.name for worker in edge.workers if worker is not leaving}
        let_go(edge)
        assert await answer.read() == b"data: last\n\n"
    leaving.ready = True
    await until_both_answer(edge)


async def test_a_worker_that_is_gone_costs_no_request_and_when_all_are_the_answer_says_when_to_come_back(
    edge: Edge,
) -> None:
    one, two = edge.workers
    await one.stop()
    met = {await worker_of(edge, json={"conversation": f"conv_{number}"}) for number in range(TURNS)}
    assert met == {two.name}
    await two.stop()
    async with asyncio.timeout(NOTICED_S):
        while True:  # refused connections first, until the balancer knows
            async with edge.http.post("/v1/responses", json={}) as answer:
                assert answer.status == 503
                told = await answer.json()
            if told["error"]["code"] == "service_unavailable":
                break
    assert answer.headers["Retry-After"] == "1" and "Try again" in told["error"]["message"]
    for worker in edge.workers:
        await worker.start()
    await until_both_answer(edge)


def let_go(edge: Edge) -> None:
    for worker in edge.workers:
        worker.go_on.set()
        worker.go_on = asyncio.Event()
