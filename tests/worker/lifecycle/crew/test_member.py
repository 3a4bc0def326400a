"""A member of a crew: what it hears from the first process, and what it does when that is gone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.lifecycle.crew.member import LEAVE, Member
from worker.lifecycle.process import StopSignals
from worker.lifecycle.ready_file import Ready


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, int]]:
    """The end that the first process has, and the descriptor of the other."""
    ours, theirs = socket.socketpair()
    ours.send(b'{"folder": "/tmp/crew", "introduces": true, "reads_samples": true, "model": "small"}\n')
    ours.settimeout(60)
    with ours:
        yield ours, theirs.detach()


@pytest.fixture
def first(line: tuple[socket.socket, int]) -> socket.socket:
    return line[0]


@pytest.fixture
def member(line: tuple[socket.socket, int]) -> Iterator[Member]:
    member = Member.join(f"worker-2:{line[1]}")
    with member.line:
        yield member


def test_it_is_told_its_place(member: Member) -> None:
    assert (member.name, member.introduces, member.reads_samples, member.model) == ("worker-2", True, True, "small")
    assert member.socket == Path("/tmp/crew/worker-2.sock")


def test_what_it_says_arrives_and_a_key_is_in_no_log(member: Member, first: socket.socket) -> None:
    ready = Ready("http://x", "ft_secret", "http://x/?token=secret", "http://x/ops", 1)
    member.introduce(ready)
    assert json.loads(first.recv(4096))["ready"]["api_key"] == "ft_secret"
    member.fail("no room")
    assert json.loads(first.recv(4096)) == {"failed": "no room"}
    assert "secret" not in repr(member) + repr(ready)


async def test_it_makes_room_when_it_is_asked_and_stops_when_the_first_process_is_gone(
    member: Member, first: socket.socket
) -> None:
    task = asyncio.current_task()
    assert task is not None
    stop = StopSignals(task)
    stop.serving = True
    async with member.on_duty(stop):
        first.send(LEAVE)
        async with asyncio.timeout(60):
            await member.leaving.wait()
        assert not stop.asked.is_set()
        first.close()
        async with asyncio.timeout(60):
            await stop.asked.wait()
    member.fail("nobody hears this")


def test_it_makes_room_also_when_it_was_asked_before_it_had_begun(line: tuple[socket.socket, int]) -> None:
    ours, theirs = line
    ours.send(LEAVE)
    member = Member.join(f"worker-2:{theirs}")
    with member.line:
        assert member.leaving.is_set()
