"""`firsttoken doctor` as people and programs run it."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from inference.bundled import CHAT_MODEL, EMBEDDER
from inference.provisioning.doctor import Finding, Level
from inference.remote.remote_model import RemoteModel
from tests.worker.cli.test_main import firsttoken
from worker.cli.upkeep import engine_findings, models_finding
from worker.config import Config, load
from worker.engines.exchange import EngineTransport
from worker.engines.model_file import ModelTable, read_models

NO_DATABASE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> str:
    return str(make_home())


def test_a_machine_that_can_serve_is_told_so_line_by_line(home: str) -> None:
    # All kinds of attention are measured in tests/inference/provisioning/test_doctor.py; there is one for such keys.
    done = firsttoken("doctor", "--home", home, "--port", "0", "--draft", "demo-draft", "--kv-type", "q8_0")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split()[1] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert names[:6] == ["disk", "secret", "agents", "database", "embedders", "cpu"]
    assert names[6:9] == ["backend", "threads", "barriers"]
    assert names[9:] == ["model", "file", "draft", "memory", "self-test", "speed", "attention"]
    assert "pgvector" in done.stdout and "tokens/s" in done.stdout


def test_problems_are_named_in_the_exit_code_and_in_json(home: str) -> None:
    database = ("--database-url", "postgresql://nobody@127.0.0.1:1/none")
    done = firsttoken("doctor", "--home", home, "--json", "--model", str(EMBEDDER), "--embedders", "nothing", *database)
    assert done.returncode == 1
    assert done.stderr == "firsttoken: not ready to serve because of database, embedders, model\n"
    report = json.loads(done.stdout)
    assert report["ok"] is False
    levels = {finding["name"]: finding["level"] for finding in report["findings"]}
    assert levels["database"] == levels["model"] == "problem" and levels["disk"] == "ok"
    assert all(finding["todo"] for finding in report["findings"] if finding["level"] == "problem")


def test_what_a_start_would_refuse_is_a_problem_too(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    (tmp_path / "agents.toml").write_text("[agents.support]\ntools = 5\n")
    database = ("--database-url", "postgresql://nobody@127.0.0.1:1/none", "--model", "nothing")
    done = firsttoken("doctor", "--home", str(tmp_path), *database, FIRSTTOKEN_STREAM="8")
    assert done.stderr == "firsttoken: not ready to serve because of secret, agents, database, model\n"
    assert "warning  settings   FIRSTTOKEN_STREAM has no effect" in done.stdout
    assert "secret is damaged: restore it" in done.stdout and "agents.toml:2: agents.support.tools" in done.stdout


def test_a_pooler_that_leads_nowhere_is_a_problem_though_the_server_is_there(home: str, owner_dsn: str) -> None:
    urls = ("--database-url", "postgresql://nobody@127.0.0.1:1/none", "--database-direct-url", owner_dsn)
    done = firsttoken("doctor", "--home", home, "--model", "nothing", *urls)
    assert done.stderr == "firsttoken: not ready to serve because of database, model\n"
    assert "Connection refused: check that it runs, and the host and the port in DATABASE_URL" in done.stdout


def test_a_replica_that_is_not_there_is_a_problem_though_the_server_is(home: str, owner_dsn: str) -> None:
    urls = ("--database-url", owner_dsn, "--database-replica-url", "postgresql://nobody@127.0.0.1:1/none")
    done = firsttoken("doctor", "--home", home, "--model", "nothing", *urls)
    assert done.stderr == "firsttoken: not ready to serve because of database, model\n"
    assert "Connection refused: check that it runs, and the host and the port in --database-replica-url" in done.stdout


def test_a_model_that_is_not_here_yet_comes_with_the_way_to_get_it(home: str) -> None:
    done = firsttoken("doctor", "--home", home, "--model", "qwen3-8b")
    assert done.returncode == 1 and "firsttoken models pull qwen3-8b" in done.stdout


def test_a_home_that_cannot_be_used_is_a_problem_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = firsttoken(
        "doctor", "--home", str(tmp_path / "file"), "--database-url", "postgresql://nobody@127.0.0.1:1/none"
    )
    assert done.returncode == 1
    assert "problem  disk" in done.stdout and "--home" in done.stdout
    assert done.stdout.count("problem") == 1, "all that would be in it is none of its own"


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = firsttoken("doctor", "--home", str(tmp_path), "--port", port, "--model", "nothing", **NO_DATABASE)
    assert f"warning  port       port {port} of 127.0.0.1 is already in use" in done.stdout


def test_several_models_are_told_with_what_each_needs_and_whether_all_have_room(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models.small]\nmodel = "demo-draft"\n[models.large]\nmodel = "demo-chat"\n')
    config = load({"home": str(tmp_path), "memory_mb": "2000"}, {})
    file = read_models(config)
    assert file is not None
    fits = models_finding({name: table.applied(config) for name, table in file.models.items()})
    assert fits.level is Level.OK and fits.text.startswith("small ") and ", large " in fits.text
    tight = load({"home": str(tmp_path), "memory_mb": "70", "parked_mb": "0"}, {})
    too_much = models_finding({name: table.applied(tight) for name, table in file.models.items()})
    assert too_much.level is Level.WARNING and "they replace each other" in too_much.text
    gone = models_finding({"large": ModelTable(model="huge").applied(config)})
    assert gone.level is Level.PROBLEM and gone.text.startswith("large: no model huge")


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
