"""Two workers and an engine, as people start them: what one of them was making when it was killed, the other goes on
with."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.engines import EngineProcess
from tests.serving import Worker

URL = "/v1/responses"
BODY = {"input": "tell me about the sea", "temperature": 0, "max_output_tokens": 1200, "ignore_eos": True}
GOES_ON = {"X-Firsttoken-On-Disconnect": "continue"}
DELTA = "response.output_text.delta"
SEEN = 40  # events, before the worker is killed


def text_of(response: dict[str, Any]) -> str:
    """Of all its messages: a model that may not stop writes calls too, which are dropped."""
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")


@dataclass
class Told:
    """What a client has heard."""

    events: list[dict[str, Any]] = field(default_factory=list)

    async def hear(self, answer: aiohttp.ClientResponse, most: int | None = None) -> None:
        """To the end, or until there are so many."""
        assert answer.status == 200, await answer.text()
        while most is None or len(self.events) < most:
            line = await answer.content.readline()
            if not line or line == b"data: [DONE]\n":
                return
            if line.startswith(b"data: "):
                self.events.append(orjson.loads(line[6:]))

    @property
    def text(self) -> str:
        return "".join(event["delta"] for event in self.events if event["type"] == DELTA)

    @property
    def id(self) -> str:
        return str(self.events[0]["response"]["id"])

    def check(self, text: str) -> None:
        """Each event once, in order, and one end."""
        assert [event["sequence_number"] for event in self.events] == list(range(len(self.events)))
        assert [event["type"] for event in self.events].count("response.incomplete") == 1
        assert self.events[-1]["type"] == "response.incomplete"
        assert self.text == text == text_of(self.events[-1]["response"])


@asynccontextmanager
async def reached(worker: Worker) -> AsyncIterator[aiohttp.ClientSession]:
    ready = await asyncio.to_thread(worker.wait_until_ready)
    async with aiohttp.ClientSession(ready["url"], headers={"Authorization": f"Bearer {ready['api_key']}"}) as http:
        yield http


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.any_answer("it is about whether an answer goes on, whatever it says")
async def test_what_a_killed_worker_was_making_goes_on_at_another_one(make_home: Callable[[], Path]) -> None:
    home = make_home()
    with ExitStack() as undo:
        engine = EngineProcess(home, "--streams", "4")
        undo.callback(engine.stop)
        address = await asyncio.to_thread(engine.wait_until_ready)
        options = ("--engines", address, "--docs", "")
        heir = Worker(home, *options, name="heir")
        undo.callback(heir.stop)
        async with reached(heir) as other:
            async with other.post(URL, json=BODY) as answer:
                text = text_of(await answer.json())
            for number, headers in enumerate([GOES_ON, {}]):
                maker = Worker(home, *options, name=f"maker-{number}")
                undo.callback(lambda worker=maker: worker.process.poll() is None and worker.stop())  # type: ignore[misc]
                body = {**BODY, "stream": True, "background": not headers}
                told = Told()
                async with reached(maker) as http:
                    answer = await http.post(URL, json=body, headers=headers)
                    await told.hear(answer, SEEN)
                    maker.process.kill()
                    maker.process.wait()
                    answer.close()
                assert told.events[-1]["type"] == DELTA
                after = told.events[-1]["sequence_number"]
                async with other.get(f"{URL}/{told.id}?stream=true&starting_after={after}") as rest:
                    await told.hear(rest)
                told.check(text)
                again = Told()
                async with other.get(f"{URL}/{told.id}?stream=true") as replay:
                    await again.hear(replay)
                assert again.events == told.events


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.any_answer("it is about whether an answer goes on, whatever it says")
async def test_a_worker_that_stood_still_finds_its_answer_in_other_hands(make_home: Callable[[], Path]) -> None:
    home = make_home()
    with ExitStack() as undo:
        engine = EngineProcess(home, "--streams", "4")
        undo.callback(engine.stop)
        address = await asyncio.to_thread(engine.wait_until_ready)
        options = ("--engines", address, "--docs", "")
        heir, slow = (Worker(home, *options, name=name) for name in ("heir", "slow"))
        undo.callback(heir.stop)
        undo.callback(slow.stop)
        async with reached(heir) as other, reached(slow) as http:
            async with other.post(URL, json=BODY) as answer:
                text = text_of(await answer.json())
            told, elsewhere = Told(), Told()
            async with http.post(URL, json={**BODY, "stream": True}, headers=GOES_ON) as answer:
                await told.hear(answer, SEEN)
                slow.process.send_signal(signal.SIGSTOP)
                try:
                    async with other.get(f"{URL}/{told.id}?stream=true") as whole:
                        await elsewhere.hear(whole)
                finally:
                    slow.process.send_signal(signal.SIGCONT)
                elsewhere.check(text)
                await told.hear(answer)
            assert told.events == elsewhere.events
