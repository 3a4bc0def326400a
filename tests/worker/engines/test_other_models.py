"""models.toml read again while requests come: with real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agents.errors import AgentError
from agents.router import Candidate
from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from migrations.pool import Database
from tests.worker.answering import get
from tests.worker.engines.test_active_engines import client_of, needs_mb, on_demand, opened, settings
from tests.worker.harness import Client
from worker.engines.active_engines import ActiveEngines
from worker.engines.model_file import ModelFile
from worker.errors import StartError

ONE = """
[models.small]
model = "demo-draft"
"""
OTHER = ONE.replace("demo-draft", "demo-chat")
ANY_ANSWER = pytest.mark.any_answer("whether it is answered is asked, not what it says")


def any_file(file: ModelFile) -> None:
    pass


@dataclass
class Warmed:
    """Notes which models were warmed, and whether they answered already."""

    engines: ActiveEngines
    names: list[str] = field(default_factory=list)
    were_served: bool = False

    async def __call__(self, candidate: Candidate) -> None:
        self.names.append(candidate.name)
        self.were_served = self.were_served or self.engines.model_registry.candidates.get(candidate.name) is candidate


async def reload(engines: ActiveEngines, warm: Warmed, check: Callable[[ModelFile], None] = any_file) -> list[str]:
    assert engines.reload is not None
    return await engines.reload(check, warm)


async def until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(0.05)


@dataclass
class Asking:
    """Somebody who asks again and again."""

    client: Client
    statuses: list[int] = field(default_factory=list)
    is_over: bool = False

    async def run(self) -> None:
        body = {"input": "Hello!", "max_output_tokens": 8, "model": "small"}
        while not self.is_over:
            async with self.client.post("/v1/responses", json=body) as answer:
                await answer.read()
                self.statuses.append(answer.status)


@ANY_ANSWER
async def test_a_model_takes_anothers_place_warm_and_without_a_refused_request(
    tmp_path: Path, database: Database
) -> None:
    config = settings(tmp_path, ONE)
    async with opened(config) as engines, client_of(database, engines) as client:
        before = on_demand(engines, "small")
        size = engines.model_registry.candidates["small"].model.measures["n_params"]
        asking = [Asking(client) for _ in range(2)]
        tasks = [asyncio.create_task(each.run()) for each in asking]
        (tmp_path / "models.toml").write_text(OTHER)
        warmed = Warmed(engines)
        assert await reload(engines, warmed) == ["small"]
        assert (warmed.names, warmed.were_served) == (["small"], False)
        assert engines.model_registry.candidates["small"].model.measures["n_params"] > size
        assert engines.states == {"small": "loaded"} and on_demand(engines, "small") is not before
        counts = [len(each.statuses) for each in asking]
        async with asyncio.timeout(60):
            await until(lambda: all(len(a.statuses) > n + 1 for a, n in zip(asking, counts, strict=True)))
            await until(lambda: before.state != "loaded")  # it goes once nobody uses it
        for each in asking:
            each.is_over = True
        await asyncio.gather(*tasks)
        assert {status for each in asking for status in each.statuses} == {200}
        card = await get(client, "/v1/models/small")
        assert card["firsttoken_parameters"] == engines.model_registry.candidates["small"].model.measures["n_params"]


@ANY_ANSWER
async def test_without_room_for_both_requests_wait_for_the_new_one(tmp_path: Path, database: Database) -> None:
    probe = settings(tmp_path, ONE)
    most = max(needs_mb(probe, path) for path in (CHAT_MODEL, DRAFT_MODEL))
    config = settings(tmp_path, ONE, memory_mb=str(int(most * 1.05) + 1))
    async with opened(config) as engines, client_of(database, engines) as client:
        asking = Asking(client)
        task = asyncio.create_task(asking.run())
        (tmp_path / "models.toml").write_text(OTHER)
        assert await reload(engines, Warmed(engines)) == ["small"]
        count = len(asking.statuses)
        async with asyncio.timeout(60):
            await until(lambda: len(asking.statuses) > count + 2)
        asking.is_over = True
        await task
        assert set(asking.statuses) == {200}
        assert engines.states == {"small": "loaded"}


async def test_what_concerns_no_engine_changes_at_once_and_nothing_is_loaded(tmp_path: Path) -> None:
    async with opened(settings(tmp_path, ONE)) as engines:
        before = on_demand(engines, "small")
        engines.model_registry.candidates["small"].speed.answer = 7.0
        version = engines.model_registry.candidates["small"].version
        more = '\nprice = { engine_second = 0.5 }\n[routes.way]\npolicy = "fixed"\nmodel = "small"\n'
        (tmp_path / "models.toml").write_text(f'default = "way"\n{ONE}{more}')
        warmed = Warmed(engines)
        assert await reload(engines, warmed) == [] and not warmed.names
        assert on_demand(engines, "small") is before and before.state == "loaded"
        assert engines.model_registry.names == ["way", "small"]
        candidate = engines.model_registry.candidates["small"]
        assert (candidate.engine_second, candidate.speed.answer, candidate.version) == (0.5, 7.0, version)


async def test_a_model_that_is_loaded_at_use_comes_and_one_that_is_gone_leaves(tmp_path: Path) -> None:
    async with opened(settings(tmp_path, ONE)) as engines:
        gone = on_demand(engines, "small")
        (tmp_path / "models.toml").write_text('[models.large]\nmodel = "demo-chat"\nload = "use"\n')
        assert await reload(engines, Warmed(engines)) == ["large"]
        assert engines.states == {"large": "not_loaded"} and engines.model_registry.names == ["large"]
        async with asyncio.timeout(60):
            await until(lambda: gone.state != "loaded")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models.small]\nmodel = 5\n", "models.small.model"),
        ('[models.small]\nmodel = "nobody"\n', "nobody"),
        ('[models.small]\nmodel = "demo-draft"\nengines = "http://127.0.0.1:1"\n', "change with a restart"),
        ("", "models"),
    ],
)
async def test_a_mistake_leaves_everything_as_it_was(tmp_path: Path, text: str, said: str) -> None:
    async with opened(settings(tmp_path, ONE)) as engines:
        before = on_demand(engines, "small")
        (tmp_path / "models.toml").write_text(text)
        with pytest.raises(Exception, match=said):
            await reload(engines, Warmed(engines))
        assert on_demand(engines, "small") is before and engines.states == {"small": "loaded"}


async def test_what_agents_still_name_cannot_go(tmp_path: Path) -> None:
    def needs_small(file: ModelFile) -> None:
        if "small" not in file.models:
            raise StartError("agent support: it needs the model 'small'")

    async with opened(settings(tmp_path, ONE)) as engines:
        (tmp_path / "models.toml").write_text('[models.large]\nmodel = "demo-chat"\n')
        with pytest.raises((StartError, AgentError), match="needs the model 'small'"):
            await reload(engines, Warmed(engines), needs_small)
        assert engines.model_registry.names == ["small"]
