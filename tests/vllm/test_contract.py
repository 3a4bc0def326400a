"""What workers need of a vLLM server, held against a real one: `make test-vllm`.

VLLM_URL is its address, and VLLM_MODEL a GGUF file with the same weights and vocabulary, which is computed here beside
it; VLLM_TOKEN its token, if it wants one. The promises are those of `tests/worker/engines/test_contract.py` that are
made for any model.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.core import Sampling
from inference.errors import NotDeterministic
from inference.model import ChatModel
from inference.remote.remote_model import RemoteModel
from tests.worker.engines import test_contract as contract
from worker.engines.exchange import EngineTransport

pytestmark = [pytest.mark.vllm, pytest.mark.any_answer("it is about how an answer is made and told, whatever it says")]

globals().update({name: test for name, test in vars(contract).items() if contract.is_for_any(test)})


def given(name: str) -> str:
    assert name in os.environ, f"set {name}: see the top of {Path(__file__).name}"
    return os.environ[name]


@pytest.fixture(scope="module")
async def any_model() -> AsyncIterator[RemoteModel]:
    path, transport = Path(given("VLLM_MODEL")), EngineTransport(os.environ.get("VLLM_TOKEN"))
    model = await asyncio.to_thread(RemoteModel.load, path, [given("VLLM_URL")], transport, "salt of {}".format)
    await model.start()
    assert model.failed is None, model.away
    yield model
    await model.close()


@pytest.fixture(scope="module")
async def inside() -> AsyncIterator[ChatModel]:
    config = EngineConfig(model_path=Path(given("VLLM_MODEL")), parallel=2)
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    yield model
    await model.close()


async def test_what_it_cannot_promise_is_refused(any_model: RemoteModel) -> None:
    with pytest.raises(NotDeterministic):
        any_model.generate(contract.prompt_of(any_model), Sampling(deterministic=True))
