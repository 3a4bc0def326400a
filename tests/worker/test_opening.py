"""What a start begins before most of its modules are there."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from inference.errors import ModelNotLoaded
from inference.provisioning.catalogue import SMOL_CHAT
from worker.config import Config
from worker.errors import StartError
from worker.home import Home
from worker.serve import Parts, begun, has_own_model


@pytest.mark.parametrize(
    ("settings", "has"),
    [
        ({}, True),
        ({"model": Path("demo-chat"), "weights": "package"}, True),
        ({"weights": "package"}, False),  # to be fetched first
        ({"weights": "package", "model": Path("smol-chat")}, False),
        ({"engines": "unix:/run/engine.sock"}, False),
        ({"models": Path("models.toml")}, False),
    ],
)
def test_a_model_is_begun_early_where_there_is_one_and_its_file_is_here(
    tmp_path: Path, settings: dict[str, Path | str], has: bool
) -> None:
    assert has_own_model(Config(home=tmp_path, **settings), Home(tmp_path)) is has  # type: ignore[arg-type]


def test_weights_that_were_fetched_before_are_begun_early_until_their_adapter_changes(tmp_path: Path) -> None:
    config, home = Config(home=tmp_path, weights="package"), Home(tmp_path)
    home.models.mkdir()
    made = home.models / SMOL_CHAT.file_name
    made.touch()
    assert has_own_model(config, home)
    os.utime(made, (0, 0))
    assert not has_own_model(config, home)


def test_several_models_are_left_to_those_who_know_their_file(tmp_path: Path) -> None:
    (tmp_path / "models.toml").touch()
    assert not has_own_model(Config(home=tmp_path), Home(tmp_path))


@asynccontextmanager
async def part(name: str, told: list[str], ready: asyncio.Event) -> AsyncIterator[str]:
    try:
        await ready.wait()
        yield name
    finally:
        told.append(name)


async def test_parts_are_closed_whether_or_not_they_were_open_and_wanted() -> None:
    told, ready, never = list[str](), asyncio.Event(), asyncio.Event()
    ready.set()
    async with AsyncExitStack() as stack:
        parts = Parts(stack)
        opened = parts.begin("opened", part("opened", told, ready))
        parts.begin("unasked", part("unasked", told, ready))
        parts.begin("slow", part("slow", told, never))
        assert await opened == "opened"
        await parts.settled()
        assert told == ["slow"]
    assert sorted(told) == ["opened", "slow", "unasked"]
    assert [span.name for span in parts.trace.spans] == ["opened", "unasked", "slow"]


async def test_whoever_fails_meanwhile_leaves_no_database_behind(
    make_home: Callable[[], Path], caplog: pytest.LogCaptureFixture
) -> None:
    home, error = make_home(), StartError("the file of agents is wrong")
    with caplog.at_level(logging.ERROR), pytest.raises(StartError) as raised:
        async with begun(Config(home=home, model=Path("demo-chat")), Home(home)):
            raise error
    assert raised.value is error and not caplog.records
    assert not (home / "postgres" / "pg18" / "postmaster.pid").exists()


async def test_what_a_part_raises_is_told_to_whoever_awaits_it(make_home: Callable[[], Path]) -> None:
    home = make_home()
    async with begun(Config(home=home, model=Path("absent")), Home(home)) as parts:
        assert parts.model is not None
        with pytest.raises(StartError, match="absent") as raised:
            await parts.model
        assert isinstance(raised.value.__cause__, ModelNotLoaded)
        assert await (await parts.database).fetch("select 1")
