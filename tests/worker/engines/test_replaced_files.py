"""Files of models that are replaced under their names: only a reload puts them to use, and then nothing of the old
contents."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.errors import ModelAway
from inference.generation import Sampling
from inference.prompt import ChatMessage
from migrations.pool import Database
from tests.inference.adapters import random_changes, write_adapter, write_merged
from tests.worker.answering import post
from tests.worker.engines.test_active_engines import client_of, on_demand, opened, say, settings
from tests.worker.engines.test_other_models import ANY_ANSWER, Warmed, reload
from worker.engines.active_engines import ActiveEngines
from worker.engines.on_demand import OnDemandModel

ONE = """
[models.chat]
model = "chat.gguf"
"""
YEAR = 31_536_000.0  # of all files: in images, all times are often the same
LONG = "Tell me about the sea, the sand and the stars. " * 12


def put(target: Path, content: Path) -> None:
    """As operators do it: beside the old file, then in its place."""
    target.parent.mkdir(exist_ok=True)
    new = target.with_suffix(".new")
    shutil.copyfile(content, new)
    os.utime(new, (YEAR, YEAR))
    new.replace(target)


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "chat.gguf"
    put(path, DRAFT_MODEL)
    return path


def parameters(engines: ActiveEngines) -> int:
    return engines.model_registry.candidates["chat"].model.measures["n_params"]


@ANY_ANSWER
async def test_a_reload_takes_another_model_of_the_same_name(tmp_path: Path, chat: Path, database: Database) -> None:
    async with opened(settings(tmp_path, ONE)) as engines, client_of(database, engines) as client:
        size, version = parameters(engines), engines.model_registry.candidates["chat"].version
        warmed = Warmed(engines)
        assert await reload(engines, warmed) == []
        put(chat, CHAT_MODEL)
        assert await reload(engines, warmed) == warmed.names == ["chat"]
        assert parameters(engines) > size
        assert engines.model_registry.candidates["chat"].version != version  # so no answer of before is reused
        await post(client, "/v1/responses", {"input": "Hello!", "max_output_tokens": 4, "model": "chat"})
        assert await reload(engines, warmed) == []


async def cached(model: OnDemandModel) -> int:
    with model.in_use():
        await model.load()
        prompt = model.encode(model.render([ChatMessage("user", LONG)]))
        generation = model.generate(prompt, Sampling(max_tokens=1))
        await generation.stream(lambda _: None)
        return generation.facts.cached_tokens


@ANY_ANSWER
async def test_one_of_the_same_size_and_time_reads_no_states_of_the_old_one(tmp_path: Path, chat: Path) -> None:
    first, second = (
        write_merged(DRAFT_MODEL, tmp_path / f"{seed}.gguf", random_changes(DRAFT_MODEL, seed=seed)) for seed in (1, 2)
    )
    put(chat, first)
    async with opened(settings(tmp_path, ONE, kv_disk_mb="64", parked_mb="16")) as engines:
        first_time = await cached(on_demand(engines, "chat"))  # what the engine's own first step has in common with it
        await on_demand(engines, "chat").unload()
        assert await cached(on_demand(engines, "chat")) > first_time  # from the disk
        put(chat, second)
        assert await reload(engines, Warmed(engines)) == ["chat"]
        assert await cached(on_demand(engines, "chat")) == first_time


@pytest.mark.parametrize("key", ["lora", "draft"])
async def test_a_reload_takes_another_file_beside_the_model(tmp_path: Path, key: str) -> None:
    beside = tmp_path / "beside.gguf"
    if key == "lora":
        write_adapter(beside, random_changes(CHAT_MODEL))
    else:
        put(beside, DRAFT_MODEL)
    text = f'[models.chat]\nmodel = "demo-chat"\n{key} = "{beside}"\nload = "use"\n'
    async with opened(settings(tmp_path, text)) as engines:
        before = on_demand(engines, "chat")
        put(beside, beside)
        assert await reload(engines, Warmed(engines)) == ["chat"]
        assert on_demand(engines, "chat").codec is before.codec  # that of a file that is the same


@ANY_ANSWER
async def test_what_was_replaced_while_no_engine_had_it_waits_for_a_reload(
    tmp_path: Path, chat: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its prompts would be tokenized with the old vocabulary."""
    async with opened(settings(tmp_path, f'{ONE}load = "use"\n')) as engines:
        put(chat, CHAT_MODEL)
        with pytest.raises(ModelAway):
            await say(on_demand(engines, "chat"))
        assert "chat.gguf has changed since it was read: `firsttoken reload` puts it to use" in caplog.text
        assert await reload(engines, Warmed(engines)) == ["chat"]
        assert await say(on_demand(engines, "chat")) is not None


@ANY_ANSWER
async def test_models_on_one_file_share_what_they_tokenize_with_until_the_last_is_gone(tmp_path: Path) -> None:
    write_adapter(tmp_path / "support.gguf", random_changes(DRAFT_MODEL))
    base = '[models.base]\nmodel = "demo-draft"\nload = "use"\n'
    adapted = f'[models.support]\nmodel = "demo-draft"\nlora = "{tmp_path}/support.gguf"\n'
    wide = '[models.wide]\nmodel = "demo-draft"\ncontext = 2048\nload = "use"\n'
    async with opened(settings(tmp_path, base + adapted + wide)) as engines:
        models = [on_demand(engines, name) for name in ("base", "support", "wide")]
        assert models[0].codec is models[1].codec is not models[2].codec  # it takes longer texts
        settings(tmp_path, adapted + adapted.replace("models.support", "models.sales"))
        assert await reload(engines, Warmed(engines)) == ["sales"]
        await models[0].close()
        for name in ("support", "sales"):
            assert await say(on_demand(engines, name)) is not None
    assert models[1].codec.source.handle is None
