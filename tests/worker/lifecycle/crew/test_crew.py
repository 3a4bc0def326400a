"""`firsttoken serve --workers 2`: what clients see of it while its processes are killed, renewed and stopped.

One start for all of it; each test leaves the crew whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from migrations.embedded.placement import placement_of
from migrations.embedded.postmaster import PidFile
from tests import warm_crew
from tests.serving import Worker
from tests.warm_crew import FILE
from tests.worker.cli.test_main import firsttoken

MEMBERS = "members"  # a file in the home
NAMES = {"engine", "worker-1", "worker-2"}
UNTIL_S = 120.0  # a member is begun again in seconds, on a machine that has nothing else to do
QUESTION = {"input": "Tell me a story about the sea.", "stream": True, "temperature": 0, "max_output_tokens": 100}
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 2000}  # thousands of tokens
STORED = {
    **QUESTION,
    "max_output_tokens": 4000,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
}
# Neither end token may come, so an answer ends by its length alone. One without a schema can go on at another engine.
CHAT = {"logit_bias": {"0": -100, "2": -100}, "temperature": 0, "stream": True, "max_tokens": 300}
CHAT["messages"] = [{"role": "user", "content": "Tell me a story about the sea."}]
OVER = ("response.completed", "response.incomplete")

pytestmark = pytest.mark.any_answer("it is about whether answers go on, whatever they say")


@pytest.fixture(scope="module")
def crew(make_home: Callable[[], Path]) -> Iterator[Worker]:
    home = make_home()
    beside = {FILE: str(home / MEMBERS)}
    crew = Worker(
        home, "--workers", "2", "--docs", "", "--background", "0", name="crew", program="tests.warm_crew", **beside
    )
    crew.wait_until_ready()
    yield crew
    if crew.process.poll() is None:
        crew.stop()


@pytest.fixture(scope="module")
def ready(crew: Worker) -> dict[str, Any]:
    return crew.wait_until_ready()


@asynccontextmanager
async def calling(ready: dict[str, Any]) -> AsyncIterator[aiohttp.ClientSession]:
    """Each request on a connection of its own, so that the system chooses who answers it."""
    headers = {"Authorization": f"Bearer {ready['api_key']}"}
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(ready["url"], headers=headers, connector=connector) as http:
        yield http


def members(crew: Worker) -> dict[str, int]:
    """The processes by their names."""
    return warm_crew.members(crew.log.with_name(MEMBERS))


async def numbers(http: aiohttp.ClientSession, name: str) -> dict[str, float]:
    """The sums of a metric, by process."""
    async with http.get("/metrics") as answer:
        text = await answer.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                process = sample.labels["process"]
                found[process] = found.get(process, 0.0) + sample.value
    return found


async def until_whole(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(UNTIL_S):
        while True:
            try:
                async with http.get("/readyz") as answer:
                    if answer.status == 200 and (await numbers(http, "process_start_time_seconds")).keys() == NAMES:
                        return
            except aiohttp.ClientError:
                pass  # it reached one that was just killed
            await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2 * UNTIL_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)


def events(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def text_of(chunks: list[dict[str, Any]]) -> str:
    """Of a chat completion."""
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def test_one_port_has_two_workers_whose_numbers_are_told_apart(ready: dict[str, Any], crew: Worker) -> None:
    assert ready["pid"] == crew.process.pid and members(crew).keys() == NAMES
    log = crew.log.read_text()
    assert "with 2 workers" in log and log.count("is ready after") == 1 and "Traceback" not in log
    async with calling(ready) as http:
        for _ in range(40):  # all at one of them with a chance of 2 in 10^12
            async with http.get("/v1/models") as answer:
                assert answer.status == 200
        counted = await numbers(http, "firsttoken_http_requests_total")
        assert counted.keys() == {"worker-1", "worker-2"} and all(counted.values())
        assert sum(counted.values()) >= 40
        assert (await numbers(http, "vllm:num_requests_running")).keys() == {"engine"}


async def test_a_worker_that_is_killed_is_begun_again_and_its_stream_is_told_on_by_another(
    ready: dict[str, Any], crew: Worker
) -> None:
    async with calling(ready) as http:
        async with http.post("/v1/responses", json=STORED) as answer:
            assert answer.status == 200, await answer.text()
            begun = await answer.content.readuntil(b'"response.output_text.delta"')
            found = re.search(rb'"id":"(resp_[0-9a-f]+)"', begun)
            assert found
            (owner,) = [name for name, turns in (await numbers(http, "firsttoken_turns_active")).items() if turns]
            before = members(crew)
            os.kill(before[owner], signal.SIGKILL)
        async with http.get(f"/v1/responses/{found[1].decode()}?stream=true") as again:
            assert again.status == 200
            told = events(await again.read())
        stored = [number for event in told if (number := event["sequence_number"]) < 1_000_000]
        assert stored == list(range(len(stored))) and stored  # last words stand behind a gap
        assert told[-1]["type"] == "response.failed"  # by the janitor of the one that is left
        await until_whole(http)
        now = members(crew)
        assert now.pop(owner) != before.pop(owner) and now == before
        async with http.post("/v1/responses", json=QUESTION) as answer:
            assert events(await answer.read())[-1]["type"] in OVER
    assert f"{owner} was killed by SIGKILL" in crew.log.read_text()


async def test_answers_pause_while_the_engine_is_begun_again(ready: dict[str, Any], crew: Worker) -> None:
    async with calling(ready) as http:
        async with http.post("/v1/chat/completions", json=CHAT) as answer:
            undisturbed = text_of(events(await answer.read()))
        async with http.post("/v1/chat/completions", json=CHAT) as answer:
            told = await answer.content.readuntil(b'"content":"')
            before = members(crew)["engine"]
            os.kill(before, signal.SIGKILL)
            told += await answer.read()
        assert len(undisturbed) > 300 and text_of(events(told)) == undisturbed
        await until_whole(http)
    assert members(crew)["engine"] != before


@pytest.mark.long
async def test_workers_are_renewed_one_by_one_while_others_answer(ready: dict[str, Any], crew: Worker) -> None:
    before, failed, reset, over = members(crew), list[str](), list[str](), asyncio.Event()
    said = crew.log.read_text().count("is ready again")

    async def ask(http: aiohttp.ClientSession) -> None:
        while not over.is_set():
            try:
                async with http.post("/v1/responses", json={**QUESTION, "max_output_tokens": 8}) as answer:
                    last = events(await answer.read())[-1]["type"]
                    if last not in OVER:
                        failed.append(last)
            except aiohttp.ClientConnectionError as error:  # the system resets what connects in that very moment
                reset.append(repr(error))
            except Exception as error:
                failed.append(repr(error))

    headers = {"Authorization": f"Bearer {ready['api_key']}"}
    async with calling(ready) as alone, aiohttp.ClientSession(ready["url"], headers=headers) as kept:
        asking = [asyncio.create_task(ask(http)) for http in (alone, kept)]
        crew.process.send_signal(signal.SIGUSR1)
        await until(lambda: crew.log.read_text().count("is ready again") == said + 2)
        over.set()
        await asyncio.gather(*asking)
        await until_whole(alone)
    now = members(crew)
    assert failed == [] and len(reset) <= 4  # two moments and two clients; those who connect again are served
    assert now["engine"] == before["engine"]
    assert now["worker-1"] != before["worker-1"] and now["worker-2"] != before["worker-2"]


async def test_a_stop_lets_answers_finish_and_a_second_signal_ends_them(ready: dict[str, Any], crew: Worker) -> None:
    everybody = members(crew)
    async with calling(ready) as http:
        async with http.post("/v1/responses", json=STORED) as slow, http.post("/v1/responses", json=QUESTION) as quick:
            for answer in (slow, quick):
                await answer.content.readuntil(b'"response.output_text.delta"')
            crew.process.terminate()
            assert events(await quick.read())[-1]["type"] in OVER
            assert crew.process.poll() is None
            crew.process.terminate()
            rest = events(await slow.read())
        assert rest[-1]["type"] in ("response.incomplete", "response.failed")  # its client hears of the end
    assert await asyncio.to_thread(crew.process.wait, 60) == 0
    assert not crew.ready_file.exists()
    for pid in everybody.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert PidFile.read(placement_of(crew.ready_file.parent).data) is None  # the database is stopped, too
    assert "Traceback" not in crew.log.read_text()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("--model", "no-such-model"), "no-such-model"),
        (("--port", "99999"), "--port must be"),
        (("--database-url", "postgresql://nobody@127.0.0.1:1/none"), "Connection refused"),
    ],
)
def test_what_prevents_a_start_is_said_in_one_line(
    settings: tuple[str, ...], said: str, make_home: Callable[[], Path]
) -> None:
    done = firsttoken("serve", "--workers", "2", "--port", "0", "--home", str(make_home()), "--docs", "", *settings)
    # A worker that is quicker than the engine says so before.
    (line,) = [line for line in done.stderr.splitlines() if "no engine is reachable yet" not in line]
    assert done.returncode == 1 and line.startswith("firsttoken: ") and said in line
