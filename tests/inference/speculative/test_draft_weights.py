"""Where the weights of a draft model are, and that they leave with the model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from inference import model
from inference.bundled import DRAFT_MODEL, EMBEDDER
from inference.config import EngineConfig
from inference.errors import ModelNotLoaded
from inference.llama import LlamaModel, weights
from inference.model import ChatModel

CONFIG = EngineConfig(draft_path=DRAFT_MODEL, parallel=1, resident=0, context=256, threads=1)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[LlamaModel]:
    """All that are loaded, in their order."""
    loaded: list[LlamaModel] = []
    load = LlamaModel.load

    def noting(*arguments: Any, **options: Any) -> LlamaModel:
        loaded.append(load(*arguments, **options))
        return loaded[-1]

    monkeypatch.setattr(LlamaModel, "load", noting)
    return loaded


async def test_the_weights_of_both_models_leave_together(loaded: list[LlamaModel]) -> None:
    chat = await asyncio.to_thread(ChatModel.load, CONFIG)
    await chat.start()
    held = [each.path for each in loaded if each.handle]
    assert held == [CONFIG.model_path, DRAFT_MODEL]
    await chat.close()
    assert not any(each.handle for each in loaded)


def test_a_draft_that_is_refused_leaves_nothing_behind(loaded: list[LlamaModel]) -> None:
    with pytest.raises(ModelNotLoaded, match="their vocabularies differ"):
        ChatModel.load(replace(CONFIG, draft_path=EMBEDDER))
    assert len(loaded) > 1 and not any(each.handle for each in loaded)


@pytest.mark.parametrize(("layers", "on_gpu"), [(0, False), (-1, True)])
async def test_a_draft_is_on_the_gpu_only_beside_layers_of_its_model(
    layers: int, on_gpu: bool, loaded: list[LlamaModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build says that it has a GPU, and `layers` of the model fit there."""
    monkeypatch.setattr(weights, "has_gpu", lambda: True)
    monkeypatch.setattr(model, "gpu_layers", lambda _: layers)
    chat = await asyncio.to_thread(ChatModel.load, CONFIG)
    await chat.close()
    assert [each.on_gpu for each in loaded if each.has_weights] == [on_gpu, on_gpu]
