"""One place of a crew: a process that ends is begun again, one that hangs is ended, one that cannot start says why."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from inference.remote.transport import Answer, Exchange, Receiver
from worker.errors import StartError
from worker.lifecycle.crew import child as module
from worker.lifecycle.crew.child import Child

# What a member does first and last: it joins by its line, and ends when that ends.
WAITS = """
import sys
from worker.lifecycle.crew.member import Member
member = Member.join(sys.argv[-1])
member._send({"hello": member.name, "introduces": member.introduces})
member.line.setblocking(True)
member.line.recv(100)
"""
FAILS = WAITS.replace("member.line.setblocking(True)", "member.fail('the reason'); sys.exit(1)")


@dataclass
class Answers:
    """Each look gets `status`; with None, nothing ever comes."""

    status: int | None = 200
    looks: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)

    def post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str = "") -> Exchange:
        raise NotImplementedError

    def close(self) -> None:
        pass

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        self.looks += 1
        if self.status is None:
            raise TimeoutError
        return Answer(self.status, b"")


def child_of(program: str, answers: Answers) -> Child:
    def command(descriptor: int) -> Sequence[str]:
        return [sys.executable, "-c", program, f"worker-1:{descriptor}"]

    def hello() -> dict[str, Any]:
        return {"folder": "/nowhere", "introduces": not answers.told, "reads_samples": True, "model": None}

    return Child("worker-1", command, hello, answers.told.append, answers, "unix:/nowhere", "/readyz")


@asynccontextmanager
async def kept(child: Child) -> AsyncIterator[asyncio.Task[None]]:
    keeping = asyncio.create_task(child.keep())
    try:
        yield keeping
    finally:
        child.ask()
        await keeping


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def test_a_process_that_dies_is_begun_again_and_told_where_it_belongs() -> None:
    answers = Answers()
    child = child_of(WAITS, answers)
    async with kept(child):
        await child.is_ready.wait()
        await until(lambda: len(answers.told) == 1)
        before = child.pid
        child.kill()
        await until(lambda: len(answers.told) == 2)
        assert child.pid != before
    assert answers.told == [{"hello": "worker-1", "introduces": first} for first in (True, False)]


async def test_who_relieves_one_that_does_not_run_waits_for_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "retry_s", lambda *args: 0.3)
    answers = Answers()
    child = child_of(WAITS, answers)
    async with kept(child):
        await child.is_ready.wait()
        before = child.pid
        child.kill()
        await until(lambda: child._process is not None and child._process.returncode is not None)
        await child.relieve(1)
        assert child.pid != before and child.is_ready.is_set()


async def test_a_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANGS_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    answers = Answers()
    child = child_of(WAITS, answers)
    async with kept(child):
        await child.is_ready.wait()
        await until(lambda: len(answers.told) == 1)
        answers.status = None
        await until(lambda: len(answers.told) >= 2)


async def test_one_that_takes_long_to_start_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANGS_S", 0.0)
    monkeypatch.setattr(module, "LOOK_STARTING_S", 0.0)
    answers = Answers(status=None)
    child = child_of(WAITS, answers)
    async with kept(child):
        await until(lambda: len(answers.told) == 1 and answers.looks > 50)
        assert not child.is_ready.is_set() and len(answers.told) == 1
        answers.status = 503
        await until(lambda: answers.looks > 100)
        assert not child.is_ready.is_set()


@pytest.mark.parametrize("status", [None, 503])
async def test_a_start_that_hangs_ends(status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STARTS_S", 0.0)
    with pytest.raises(StartError, match="worker-1 was not ready after 0 minutes"):
        await child_of(WAITS, Answers(status)).keep()


async def test_one_that_cannot_start_says_why_and_is_not_tried_again() -> None:
    answers = Answers(status=None)
    with pytest.raises(StartError, match="the reason"):
        await child_of(FAILS, answers).keep()
    with pytest.raises(StartError, match="worker-1 ended with exit code 3 while it started"):
        await child_of("import sys; sys.exit(3)", answers).keep()


async def test_one_that_fails_later_is_tried_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "retry_s", lambda failures, chance, longest: failures / 1000)
    answers = Answers()
    child = child_of(FAILS.replace("sys.exit(1)", "import time; time.sleep(0.3); sys.exit(1)"), answers)
    async with kept(child):
        await until(lambda: len(answers.told) >= 6)
    said = [record.getMessage() for record in caplog.records if "it restarts" in record.message]
    assert said[0].startswith("worker-1 ended with exit code 1: the reason; it restarts in 0.0 s")
    assert child._vitals.failures >= 2
