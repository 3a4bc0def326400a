"""`firsttoken doctor --engines`: what stands in the way between a worker and its engines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from inference.bundled import CHAT_MODEL
from inference.provisioning.doctor import Finding, Level
from inference.remote.remote_model import RemoteModel
from worker.cli.engines_check import engine_findings
from worker.config import Config
from worker.engines.exchange import EngineTransport


@asynccontextmanager
async def engine(home: Path, answers: dict[str, Callable[[], web.Response]]) -> AsyncIterator[str]:
    """Its address. It answers these paths, and others with 404."""

    async def answer(request: web.Request) -> web.Response:
        return answers.get(request.path, lambda: web.Response(status=404))()

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(home / "stub.sock")).start()
    try:
        yield f"unix:{home}/stub.sock"
    finally:
        await runner.cleanup()


async def findings(home: Path, url: str, **settings: Any) -> list[Finding]:
    return [each async for each in engine_findings(Config(home=home, engines=url, **settings))]


def models(vocabulary: str) -> Callable[[], web.Response]:
    own = {"id": "demo", "max_model_len": 512, "firsttoken": {"vocabulary": vocabulary}}
    return lambda: web.json_response({"data": [own]})


def stream() -> web.Response:
    events = ({"choices": [{"token_ids": [300]}]}, {"choices": [{"token_ids": [], "finish_reason": "length"}]})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return web.Response(text=f"{text}data: [DONE]\n\n", content_type="text/event-stream")


@pytest.fixture(scope="module")
async def vocabulary() -> str:
    model = RemoteModel.load(CHAT_MODEL, ["unix:/nowhere"], EngineTransport(), str)
    digest: str = model.vocabulary_digest
    await model.close()
    return digest


async def test_an_engine_that_serves_this_model_is_told_with_its_distance(tmp_path: Path, vocabulary: str) -> None:
    paths = {"/health": web.Response, "/v1/models": models(vocabulary), "/inference/v1/generate": stream}
    async with engine(tmp_path, paths) as url:
        model, found = await findings(tmp_path, url)
    assert (model.level, found.level) == (Level.OK, Level.OK)
    assert found.text.startswith(url) and "512 tokens of context" in found.text
    assert set(found.numbers) == {"hop_ms", "first_token_ms", "context_tokens"}


@pytest.mark.parametrize(
    ("paths", "said", "todo"),
    [
        ({}, "unhealthy (status 404)", "firsttoken engine --listen"),
        ({"/health": web.Response, "/v1/models": lambda: web.Response(status=401)}, "token", "--token-file"),
        ({"/health": web.Response, "/v1/models": models("other")}, "a different vocabulary", "--model"),
    ],
)
async def test_what_stands_in_the_way_is_named_with_the_way_out(
    tmp_path: Path, paths: dict[str, Callable[[], web.Response]], said: str, todo: str
) -> None:
    async with engine(tmp_path, paths) as url:
        _, found = await findings(tmp_path, url)
    assert found.level is Level.PROBLEM and said in found.text and todo in found.todo


async def test_an_engine_that_takes_no_request_and_one_that_is_not_there_are_problems(
    tmp_path: Path, vocabulary: str
) -> None:
    paths = {"/health": web.Response, "/v1/models": models(vocabulary)}
    async with engine(tmp_path, paths) as url:
        _, mute, nobody = await findings(tmp_path, f"{url},unix:{tmp_path}/nobody.sock")
    assert "does not answer requests" in mute.text and mute.level is Level.PROBLEM
    assert "there is no connection to it" in nobody.text and nobody.level is Level.PROBLEM


async def test_a_model_that_is_not_here_is_the_first_problem(tmp_path: Path) -> None:
    (found,) = await findings(tmp_path, "unix:/nowhere", model=Path("qwen3-8b"))
    assert (found.name, found.level) == ("model", Level.PROBLEM)
