"""A worker's whole life: start, answer beside others, drain, end."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from migrations.embedded.placement import placement_of
from migrations.embedded.postmaster import PidFile
from tests.serving import STOP_TIMEOUT_S, Worker
from tests.worker.cli.test_main import firsttoken
from worker.config import Config
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.ready_file import FIRST_START
from worker.serve import serve


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> Path:
    """A home that the workers of this file share, so that only the first one starts cold."""
    return make_home()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:  # addresses have no names
        yield session


def authorization(ready: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {ready['api_key']}"}


async def status_of(http: aiohttp.ClientSession, ready: dict[str, Any], path: str) -> int:
    async with http.get(ready["url"] + path, headers=authorization(ready)) as response:
        return response.status


async def json_of(http: aiohttp.ClientSession, ready: dict[str, Any], path: str) -> Any:
    async with http.get(ready["url"] + path, headers=authorization(ready)) as response:
        assert response.status == 200
        return await response.json()


@dataclass(frozen=True)
class Life:
    """What a worker told from its start to its end."""

    ready: dict[str, Any]
    pid: int
    statuses: dict[str, int]
    page: tuple[int, str]  # behind its link: the status and the query
    files: list[str]
    log: str
    left: list[Path]  # files that say how to reach it, after its end


@pytest.fixture(scope="module")
async def lives(home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Life, Life]:
    """The first one of this home, and another one, before which the documents were moved. They are a single one: to
    embed those of ours takes most of a start."""
    documents = tmp_path_factory.mktemp("berths") / "first"
    documents.mkdir()
    (documents / "harbour.md").write_text("A berth costs 40 euros a night.")
    first = await lived(home, documents)
    return first, await lived(home, Path(shutil.move(documents, documents.with_name("second"))))


async def lived(home: Path, documents: Path) -> Life:
    worker = Worker(home, "--docs", str(documents))
    ready = await asyncio.to_thread(worker.wait_until_read)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        paths = ("/readyz", "/v1/models")
        statuses = {path: await status_of(http, ready, path) for path in paths}
        async with http.get(ready["chat_url"]) as page:  # through the cookie to the page itself
            chat = page.status, page.url.query_string
        async with http.get(ready["ops_url"]) as page:
            statuses["ops"] = page.status
        files = await json_of(http, ready, "/v1/vector_stores/docs/files")
    assert await asyncio.to_thread(worker.stop) == 0
    left = [path for path in (worker.ready_file, Home(home).ready_file) if path.exists()]
    ids = [file["id"] for file in files["data"]]
    return Life(ready, worker.process.pid, statuses, chat, ids, worker.log.read_text(), left)


async def test_the_ready_file_tells_how_to_reach_a_worker(lives: tuple[Life, Life]) -> None:
    life, _ = lives
    assert life.ready.keys() == {"url", "api_key", "chat_url", "ops_url", "pid", "version", "model"}
    assert life.ready["pid"] == life.pid
    assert life.statuses == {"/readyz": 200, "/v1/models": 200, "ops": 200}
    assert life.page == (200, "")
    assert life.left == []


async def test_the_banner_of_a_first_start_has_all_that_a_newcomer_needs(lives: tuple[Life, Life]) -> None:
    life, _ = lives
    assert life.log.startswith(FIRST_START)
    assert all(life.ready[name] in life.log for name in ("chat_url", "ops_url", "api_key"))
    assert "curl" in life.log and "WARNING" not in life.log


async def test_a_second_start_keeps_the_key_and_has_a_new_link(lives: tuple[Life, Life]) -> None:
    first, second = lives
    assert FIRST_START not in second.log
    assert first.ready["api_key"] == second.ready["api_key"]
    assert first.ready["chat_url"].split("token=")[1] != second.ready["chat_url"].split("token=")[1]


async def test_documents_are_stored_once_and_not_read_again_when_their_folder_has_moved(
    lives: tuple[Life, Life],
) -> None:
    first, second = lives
    assert len(first.files) == 1 and second.files == first.files


async def test_two_workers_share_a_home_from_the_first_moment(
    http: aiohttp.ClientSession, make_empty_home: Callable[[], Path]
) -> None:
    home = make_empty_home()
    workers = [Worker(home, "--docs", "", name=name) for name in ("one", "two")]
    first, second = [worker.wait_until_ready() for worker in workers]
    assert first["api_key"] == second["api_key"]
    for ready in (first, second):
        assert await status_of(http, ready, "/v1/models") == 200
    assert workers[0].stop() == 0
    assert await status_of(http, second, "/readyz") == 200  # the database outlived its first user
    data = placement_of(home).data
    assert PidFile.read(data) is not None
    assert workers[1].stop() == 0
    assert PidFile.read(data) is None  # the last one out stopped it


async def test_questions_are_answered_before_the_sample_documents_are_read_and_a_stop_waits_for_none(
    http: aiohttp.ClientSession, home: Path, tmp_path: Path
) -> None:
    for name in ("lighthouse", "tide"):
        (tmp_path / f"{name}.md").write_text(f"All about the {name}.")
    worker = Worker(home, "--docs", str(tmp_path), program="tests.worker.held_reader")
    ready = await asyncio.to_thread(worker.wait_until_ready)
    store = await json_of(http, ready, "/v1/vector_stores/docs")
    assert store["status"] == "in_progress" and store["file_counts"]["in_progress"] in (1, 2)
    async with http.post(
        f"{ready['url']}/v1/responses", json={"input": "Hello!"}, headers=authorization(ready)
    ) as answer:
        assert answer.status == 200
    assert await asyncio.to_thread(worker.stop) == 0
    (home / "read").touch()  # what the first one did not read is left for the next one
    worker = Worker(home, "--docs", str(tmp_path), program="tests.worker.held_reader")
    ready = await asyncio.to_thread(worker.wait_until_read)
    files = await json_of(http, ready, "/v1/vector_stores/docs/files")
    assert sorted(file["firsttoken_filename"] for file in files["data"]) == ["lighthouse.md", "tide.md"]
    assert await asyncio.to_thread(worker.stop) == 0
    assert "Traceback" not in worker.log.read_text()


async def test_documents_that_are_not_there_are_told_before_anything_starts(tmp_path: Path) -> None:
    config = Config(home=tmp_path / "home", docs=tmp_path / "none")
    with pytest.raises(StartError, match=r"no folder .*none \(--docs\)"):
        await serve(config, began=time.monotonic())
    assert not config.home.exists()


async def test_a_revoked_local_key_is_replaced_at_the_next_start(http: aiohttp.ClientSession, home: Path) -> None:
    Home(home).key_file.write_text("ft_revoked\n")
    worker = Worker(home, "--docs", "")
    ready = worker.wait_until_ready()
    assert ready["api_key"] != "ft_revoked"
    assert await status_of(http, ready, "/v1/models") == 200
    assert worker.stop() == 0


async def test_workers_of_one_external_database_and_secret_take_each_others_keys(
    http: aiohttp.ClientSession, owner_dsn: str, make_empty_home: Callable[[], Path]
) -> None:
    settings = ("--database-url", owner_dsn, "--secret", "the same for both of them")
    homes = [make_empty_home(), make_empty_home()]
    made = await asyncio.to_thread(firsttoken, "keys", "create", "theirs", "--home", str(homes[0]), *settings)
    worker = Worker(homes[1], "--docs", "", *settings)
    ready = await asyncio.to_thread(worker.wait_until_ready)
    key = made.stdout.split("\n")[0]
    assert key != ready["api_key"] and await status_of(http, {**ready, "api_key": key}, "/v1/models") == 200
    assert worker.stop() == 0
    assert not any((home / "postgres").exists() for home in homes)


async def test_an_answer_in_progress_is_finished_before_the_worker_ends(
    http: aiohttp.ClientSession, home: Path
) -> None:
    worker = Worker(home, "--docs", "")
    ready = worker.wait_until_ready()
    body = {"input": "Tell me a story.", "stream": True, "temperature": 0, "max_output_tokens": 400}
    async with http.post(f"{ready['url']}/v1/responses", json=body, headers=authorization(ready)) as response:
        assert response.status == 200
        first = await response.content.readline()
        worker.process.send_signal(signal.SIGTERM)
        rest = await response.content.read()
    assert b"response.created" in first
    assert rest.rstrip().endswith(b"data: [DONE]")
    assert b"event: response.completed" in rest or b"event: response.incomplete" in rest
    assert await asyncio.to_thread(worker.process.wait, STOP_TIMEOUT_S) == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        await status_of(http, ready, "/healthz")


# Longer than any test waits: the model has to go on until the context is full.
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 20_000}},
    "required": ["a"],
    "additionalProperties": False,
}
ENDLESS = {
    "input": "Tell me a story.",
    "max_output_tokens": 4_000,
    "stream": True,
    "text": {"format": {"type": "json_schema", "name": "endless", "schema": SCHEMA}},
}


@pytest.mark.any_answer("how it ends counts, not what it says")
async def test_an_answer_that_is_too_long_ends_in_time_and_with_a_word(http: aiohttp.ClientSession, home: Path) -> None:
    worker = Worker(home, "--docs", "", "--drain-s", "1")
    ready = worker.wait_until_ready()
    async with http.post(f"{ready['url']}/v1/responses", json=ENDLESS, headers=authorization(ready)) as response:
        while b"output_text.delta" not in await response.content.readline():
            pass
        worker.process.send_signal(signal.SIGTERM)
        await _until_draining(http, ready)
        assert await status_of(http, ready, "/v1/models") == 503  # told, not refused
        rest = await response.content.read()
        assert b"event: response.failed" in rest and rest.endswith(b"data: [DONE]\n\n")
        last = json.loads(rest.split(b"data: ")[-2].split(b"\n")[0])
        assert await asyncio.to_thread(worker.process.wait, STOP_TIMEOUT_S) == 0
    assert "Traceback" not in worker.log.read_text()
    id = last["response"]["id"]
    again = Worker(home, "--docs", "")
    ready = again.wait_until_ready()
    async with http.get(f"{ready['url']}/v1/responses/{id}", headers=authorization(ready)) as response:
        stored = await response.json()
        assert (stored["status"], stored["output"]) == ("failed", last["response"]["output"])
    async with http.get(f"{ready['url']}/v1/responses/{id}?stream=true", headers=authorization(ready)) as response:
        resumed = await response.content.read()
    assert again.stop() == 0
    assert b"event: response.failed" in resumed and resumed.endswith(b"data: [DONE]\n\n")


@pytest.mark.any_answer("how it ends counts, not what it says")
async def test_a_second_signal_ends_everything_at_once_and_as_clean(http: aiohttp.ClientSession, home: Path) -> None:
    worker = Worker(home, "--docs", "", "--drain-s", "300")
    ready = worker.wait_until_ready()
    host, port = ready["url"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(
            b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
            b"Authorization: Bearer " + ready["api_key"].encode() + b"\r\nExpect: 100-continue\r\n\r\n"
        )
        assert slow.recv(100).startswith(b"HTTP/1.1 100")  # a request is being read and will never be complete
        async with http.post(f"{ready['url']}/v1/responses", json=ENDLESS, headers=authorization(ready)) as response:
            while b"output_text.delta" not in await response.content.readline():
                pass
            worker.process.send_signal(signal.SIGINT)
            await _until_draining(http, ready)
            assert "Stopping. Running answers get up to 300 s to finish. Press Ctrl-C again" in worker.log.read_text()
            worker.process.send_signal(signal.SIGINT)
            rest = await response.content.read()  # long before the time to drain is over
            assert b"event: response.failed" in rest and rest.endswith(b"data: [DONE]\n\n")
        assert b" 503 " in await asyncio.to_thread(slow.recv, 100)
        assert await asyncio.to_thread(worker.process.wait, STOP_TIMEOUT_S) == 0
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.any_answer("how it ends counts, not what it says")
async def test_an_engine_that_dies_tells_its_requests_and_ends_the_worker_for_its_supervisor(
    http: aiohttp.ClientSession, home: Path
) -> None:
    worker = Worker(home, "--docs", "", program="tests.worker.breakable")
    ready = worker.wait_until_ready()
    url, headers, breaks = f"{ready['url']}/v1/responses", authorization(ready), home / "break"
    async with http.post(url, json=ENDLESS, headers=headers) as response:
        while b"output_text.delta" not in await response.content.readline():
            pass
        breaks.touch()
        rest = await response.content.read()
    assert b"event: response.failed" in rest and rest.endswith(b"data: [DONE]\n\n")
    assert await asyncio.to_thread(worker.process.wait, STOP_TIMEOUT_S) == 1
    breaks.unlink()
    said = worker.log.read_text().splitlines()
    assert said[-1].endswith("the engine failed: injected; another process must take over")
    assert "Task exception" not in worker.log.read_text()


async def _until_draining(http: aiohttp.ClientSession, ready: dict[str, Any]) -> None:
    while True:  # the test's own time limit ends this
        async with http.get(f"{ready['url']}/readyz") as answer:
            if answer.status == 503:
                assert (await answer.json())["parts"]["worker"] == "draining"
                return


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


async def test_a_signal_during_the_start_ends_it(make_home: Callable[[], Path]) -> None:
    home = make_home()
    worker = Worker(home, "--docs", "")
    await asyncio.to_thread(_wait_for, home / "lock")  # made right after the worker listens to signals
    assert await asyncio.to_thread(worker.stop) == 130
    assert "Traceback" not in worker.log.read_text()


@contextmanager
def descriptors(limit: int) -> Iterator[None]:
    """This process, and those that it starts, have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_more_half_open_connections_than_descriptors_keep_nobody_out(
    http: aiohttp.ClientSession, home: Path
) -> None:
    with descriptors(1024):
        worker = Worker(home, "--docs", "")
    ready = worker.wait_until_ready()
    host, port = ready["url"].removeprefix("http://").split(":")
    with descriptors(4096), ExitStack() as stack:
        for _ in range(1100):
            half_open = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            half_open.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(20):
            async with aiohttp.ClientSession() as newcomer:  # each with a connection of its own
                assert await status_of(newcomer, ready, "/v1/models") == 200
        async with http.post(
            f"{ready['url']}/v1/responses", json={"input": "hello"}, headers=authorization(ready)
        ) as answer:
            assert answer.status == 200
    assert worker.stop() == 0
    assert "Traceback" not in worker.log.read_text() and "out of system resource" not in worker.log.read_text()


async def test_a_worker_answers_the_way_its_banner_shows(http: aiohttp.ClientSession, server: dict[str, Any]) -> None:
    url, headers = f"{server['url']}/v1/responses", authorization(server)
    async with http.post(url, json={"input": "Hello!"}, headers=headers) as response:
        assert response.status == 200
        assert json.loads(await response.read())["status"] in ("completed", "incomplete")


async def test_a_database_that_dies_comes_back_with_everything_that_was_acknowledged(
    http: aiohttp.ClientSession, home: Path
) -> None:
    worker = Worker(home, "--docs", "")
    ready = worker.wait_until_ready()
    try:
        url, headers = f"{ready['url']}/v1/responses", authorization(ready)
        async with http.post(url, json={"input": "hello"}, headers=headers) as answer:
            assert answer.status == 200
            acknowledged = (await answer.json())["id"]
        file = PidFile.read(placement_of(home).data)
        assert file is not None
        os.kill(file.pid, signal.SIGKILL)
        while "Postgres stopped; restarting it" not in worker.log.read_text():
            await status_of(http, ready, "/healthz")
        while await status_of(http, ready, "/readyz") != 200:  # the test's own time limit ends a worker that never is
            pass
        assert await status_of(http, ready, f"/v1/responses/{acknowledged}") == 200
        async with http.post(url, json={"input": "hello"}, headers=headers) as answer:
            assert answer.status == 200  # and it is long after the last look, of which the worker's stop waits for more
    finally:
        assert worker.stop() == 0
