"""A disk that fills up under a running worker: requests wait or are refused, what was acknowledged stays, and with room
again everything goes on by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from openai import APIStatusError, OpenAI

from migrations.embedded import EmbeddedPostgres
from tests.disks import fill, root_only, small_disk
from tests.serving import Worker

DISK_MB = 320  # a new database takes a third of it
FULL_S = 8.0  # long enough for events, traces, beginnings and the clean-up to fail
RESUME_MAX_S = 60.0
CHUNK = 512 * 1024
IN_PROGRESS = "select count(*) from responses where worker is not null or status = 'in_progress'"


@pytest.fixture
def disk(home: Path) -> Iterator[Path]:
    with small_disk(home, DISK_MB):
        yield home
        for left in home.iterdir():
            if left.is_file():
                left.unlink()


class Client:
    """Asks, and remembers what was acknowledged."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self._client = OpenAI(base_url=f"{ready['url']}/v1", api_key=ready["api_key"], max_retries=0, timeout=30)
        self.responses: dict[str, tuple[str | None, str]] = {}
        self.files: dict[str, bytes] = {}
        self.refused = 0

    def ask(self, number: int) -> bool:
        """Whether it was answered. A refusal says when to come again."""
        content = f"{number} ".encode() * (CHUNK // 8)
        try:
            made = self._client.responses.create(input=f"Count to {number}.", max_output_tokens=8)
            self.responses[made.id] = made.status, made.output_text
            file = self._client.files.create(file=("notes.txt", content), purpose="assistants")
            self.files[file.id] = content
        except APIStatusError as error:
            assert error.status_code == 503, error
            assert int(error.response.headers["retry-after"]) >= 1
            self.refused += 1
            return False
        return True

    def check(self) -> None:
        """Everything that was acknowledged is there as it was."""
        for id, told in self.responses.items():
            found = self._client.responses.retrieve(id)
            assert (found.status, found.output_text) == told
        for id, content in self.files.items():
            assert self._client.files.content(id).read() == content


async def in_progress(home: Path) -> int:
    connection = await asyncpg.connect(EmbeddedPostgres(home).owner_dsn)
    try:
        return int(await connection.fetchval(IN_PROGRESS))
    finally:
        await connection.close()


@root_only
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.any_answer("whatever was answered has to stay")
def test_a_disk_that_is_full_for_a_while_costs_nothing_that_was_acknowledged(disk: Path) -> None:
    worker = Worker(disk, "--docs", "", name="first")
    client = Client(worker.wait_until_ready())
    for number in range(3):
        assert client.ask(number)
    filler, full_until = fill(disk), time.monotonic() + FULL_S
    number = 3
    while time.monotonic() < full_until or not client.refused:
        client.ask(number)
        number += 1
    filler.unlink()
    resumes_by = time.monotonic() + RESUME_MAX_S
    while not client.ask(number):
        assert time.monotonic() < resumes_by, worker.log.read_text()[-5000:]
        time.sleep(0.2)
    client.check()
    while asyncio.run(in_progress(disk)):
        assert time.monotonic() < resumes_by, worker.log.read_text()[-5000:]
        time.sleep(0.2)
    assert worker.stop() == 0
    log = worker.log.read_text()
    assert "Traceback" not in log, log
