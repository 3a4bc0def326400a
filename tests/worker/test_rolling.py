"""Two workers and two engines behind haproxy, restarted one after the other while people ask."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.deploy.balancers import balancing, free_port
from tests.engines import EngineProcess
from tests.serving import Worker

CLIENTS = 4
DONE = ("response.completed", "response.incomplete")
TURNS = 10  # in a conversation
LOOKS_MIN = 4
ANSWERS_MIN = 5  # of each client, between two restarts at the least


@dataclass
class Asker:
    """One person, who asks again and again in conversations that fit into the model's context."""

    http: aiohttp.ClientSession
    name: str
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    async def ask_on(self) -> None:
        while True:
            conversation = await self._post("/v1/conversations", {})
            for _ in range(TURNS):
                await self._ask({"input": "hello", "conversation": conversation["id"], "max_output_tokens": 24})

    async def _ask(self, body: dict[str, Any]) -> None:
        try:
            async with self.http.post("/v1/responses", json={**body, "stream": True}) as answer:
                text = await answer.text()
                if answer.status != 200 or not any(f"event: {word}" in text for word in DONE):
                    self.failures.append(f"{answer.status} {text[-300:]}")
        except aiohttp.ClientError as error:
            self.failures.append(repr(error))
        self.answers += 1

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        async with self.http.post(path, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


class Place:
    """What is restarted: a worker or an engine, always at the same address."""

    def __init__(self, start: Callable[[], Worker | EngineProcess]) -> None:
        self._start = start
        self.process: Worker | EngineProcess | None = None

    async def start(self) -> None:
        process = self.process = self._start()
        await asyncio.to_thread(process.wait_until_ready)

    async def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            assert await asyncio.to_thread(process.stop) == 0, process.log.read_text()


async def more_answers(askers: list[Asker]) -> None:
    """Everybody gets some more."""
    before = [asker.answers for asker in askers]
    while any(asker.answers < count + ANSWERS_MIN for asker, count in zip(askers, before, strict=True)):
        assert not any(asker.failures for asker in askers), [asker.failures[:3] for asker in askers]
        await asyncio.sleep(0.1)


async def until_looked_at(http: aiohttp.ClientSession, port: int) -> None:
    """A worker knows by its looks that there is a balancer, which has just begun."""
    looks = re.compile(r'^firsttoken_http_requests_total{[^}]*route="/readyz"[^}]*} ([0-9]+)', re.MULTILINE)
    while True:
        async with http.get(f"http://127.0.0.1:{port}/metrics") as answer:
            if sum(map(int, looks.findall(await answer.text()))) >= LOOKS_MIN:
                return
        await asyncio.sleep(0.05)


def until_balanced(log: Path, worker: int) -> None:
    """The balancer sends requests to a worker that is back when it has looked: only then may the other one stop."""
    told = re.compile(rf"^Server workers/worker-{worker + 1} is (UP|DOWN)", re.MULTILINE)
    while told.findall(log.read_text())[-1] != "UP":  # that it was down, it noticed before the worker was gone
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.any_answer("it is about whether there is an answer, whatever it says")
async def test_workers_and_engines_are_exchanged_one_by_one_and_no_request_fails(
    make_home: Callable[[], Path], tmp_path: Path
) -> None:
    home, ports = make_home(), [free_port(), free_port()]
    sockets = [f"unix:{home}/engine-{number}.sock" for number in (1, 2)]

    def worker(number: int) -> Worker:
        ready = home / f"worker-{number}-ready.json"
        ready.unlink(missing_ok=True)
        options = ("--port", str(ports[number]), "--engines", ",".join(sockets), "--docs", "", "--drain-s", "60")
        return Worker(home, *options, name=f"worker-{number}")

    def engine(number: int) -> EngineProcess:
        options = ("--listen", sockets[number], "--drain-s", "60", "--streams", "4")
        return EngineProcess(home, *options, name=f"engine-{number + 1}")

    engines = [Place(lambda number=number: engine(number)) for number in (0, 1)]  # type: ignore[misc]
    workers = [Place(lambda number=number: worker(number)) for number in (0, 1)]  # type: ignore[misc]
    async with AsyncExitStack() as undo:
        for place in (*engines, *workers):
            undo.push_async_callback(place.stop)
            await place.start()
        addresses = [f"127.0.0.1:{port}" for port in ports]
        url = await undo.enter_async_context(balancing("haproxy", addresses, tmp_path))
        key = json.loads((home / "worker-0-ready.json").read_text())["api_key"]
        http = await undo.enter_async_context(aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}))
        askers = [Asker(http, f"asker {number}") for number in range(CLIENTS)]
        asking = [asyncio.create_task(asker.ask_on()) for asker in askers]
        try:
            for port in ports:
                await until_looked_at(http, port)
            for number, place in enumerate((*workers, *engines)):
                await more_answers(askers)
                await place.stop()
                await more_answers(askers)
                await place.start()
                if place in workers:
                    await asyncio.to_thread(until_balanced, tmp_path / "haproxy.log", number)
            await more_answers(askers)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    assert [asker.failures for asker in askers] == [[]] * CLIENTS
