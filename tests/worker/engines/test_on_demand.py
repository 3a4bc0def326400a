"""When a model is loaded for somebody who only types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from inference.bundled import DRAFT_MODEL
from inference.config import EngineConfig
from inference.engine.executor import Executor
from inference.errors import EngineStopped, ModelAway
from inference.generation import Sampling
from inference.llama import LlamaModel
from inference.model import ChatModel
from inference.prompt import ChatMessage
from worker.engines import on_demand
from worker.engines.on_demand import OnDemandModel


async def opened(_: OnDemandModel, folder: Path | None = None) -> ChatModel:
    config = EngineConfig(
        model_path=DRAFT_MODEL,
        parallel=1,
        resident=0,
        context=256,
        parked_bytes_max=0,
        disk_folder=folder,
    )
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    return model


@pytest_asyncio.fixture
async def model() -> AsyncIterator[OnDemandModel]:
    model = OnDemandModel("small", LlamaModel.load(DRAFT_MODEL, weights=False), 256, opened)
    yield model
    await model.close()


def state(model: OnDemandModel) -> str:
    """For mypy, a state that was asserted does not change."""
    return model.state


async def test_a_model_is_loaded_for_somebody_who_types(model: OnDemandModel) -> None:
    model.foresee()
    assert state(model) == "loading"
    await model.load()
    assert state(model) == "loaded"


async def test_a_model_that_has_just_given_way_comes_back_for_a_question_only(
    model: OnDemandModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model.load()
    await model.unload()
    model.foresee()
    assert state(model) == "not_loaded"
    await model.load()
    await model.unload()
    monkeypatch.setattr(on_demand, "AWAY_S", 0.0)
    model.foresee()
    assert state(model) == "loading"


async def test_a_file_that_may_not_be_read_is_a_model_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async def refused(_: OnDemandModel) -> ChatModel:
        raise PermissionError(13, "Permission denied", "small.gguf")

    model = OnDemandModel("small", LlamaModel.load(DRAFT_MODEL, weights=False), 256, refused)
    with pytest.raises(ModelAway):
        await model.load()
    assert "the model small could not be loaded: [Errno 13] Permission denied: 'small.gguf'" in caplog.text
    await model.close()


async def test_a_model_whose_engine_failed_is_opened_anew_and_gets_its_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    weights = LlamaModel.load(DRAFT_MODEL, weights=False)
    model = OnDemandModel("small", weights, 256, partial(opened, folder=tmp_path))
    try:
        await model.load()
        with monkeypatch.context() as broken:
            broken.setattr(Executor, "place", lambda *_: 1 / 0)
            with pytest.raises(EngineStopped, match="division by zero"):
                await read(model)
        assert (state(model), model.failed, model.is_idle) == ("not_loaded", None, True)
        await model.load()
        assert state(model) == "loaded"
        assert "while another worker uses" not in caplog.text
        await read(model)
    finally:
        await model.close()


async def read(model: OnDemandModel) -> None:
    prompt = model.encode(model.render([ChatMessage("user", "Hello")]))
    await model.generate(prompt, Sampling(max_tokens=1)).stream(lambda _: None)
