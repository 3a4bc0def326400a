"""What workers need of a vLLM server, held against a real one: `make test-vllm`.

VLLM_URL is its address, and VLLM_MODEL a GGUF file with the same weights and vocabulary, which is computed here beside
it; VLLM_TOKEN its token, if it wants one. The promises are those of `tests/worker/engines/test_contract.py` that are
made for any model. With VLLM_RECORD=1 all that passes is written to recorded.jsonl, which the other tests are told in
the place of a server. That has to be the bundled model, which this makes a folder for vLLM of:

    python -m tests.vllm.weights FOLDER
    vllm serve FOLDER --served-model-name demo --dtype float32 --max-num-seqs 4 --enable-scale-out \\
        --enable-prompt-tokens-details --scheduling-policy priority

Record it anew when requests change, or the bundled model.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.errors import NotDeterministic
from inference.generation import Sampling, Terms
from inference.model import ChatModel
from inference.remote.remote_model import RemoteModel
from inference.trace import random_id
from tests.vllm.recorded import ONCE, recording
from tests.worker.engines import test_contract as contract
from worker.engines.exchange import EngineTransport

pytestmark = [pytest.mark.vllm, pytest.mark.any_answer("it is about how an answer is made and told, whatever it says")]

globals().update({name: test for name, test in vars(contract).items() if contract.is_for_any(test)})


def given(name: str) -> str:
    assert name in os.environ, f"set {name}: see the top of {Path(__file__).name}"
    return os.environ[name]


@pytest.fixture(scope="module")
async def any_model() -> AsyncIterator[RemoteModel]:
    path, transport, url = Path(given("VLLM_MODEL")), EngineTransport(os.environ.get("VLLM_TOKEN")), given("VLLM_URL")
    digest = ("salt of {}" + ONCE + random_id(64)).format  # nothing is cached of the run before
    async with AsyncExitStack() as stack:
        if os.environ.get("VLLM_RECORD"):
            version = json.loads((await transport.get(url, "/version", 5)).body)["version"]
            url = await stack.enter_async_context(recording(url, vllm=version))
        model = await asyncio.to_thread(RemoteModel.load, path, [url], transport, digest)
        await model.start()
        assert model.failed is None, model.away
        yield model
        await model.close()


@pytest.fixture(scope="module")
def vllm(any_model: RemoteModel) -> RemoteModel:
    return any_model


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


async def test_a_cancelled_answer_costs_it_nothing_more(any_model: RemoteModel) -> None:
    generation = any_model.generate(contract.prompt_of(any_model), contract.ENDLESS, Terms(salt="cancel"))
    async for _ in generation:
        break
    assert await running() == 1
    generation.cancel()
    async with asyncio.timeout(2):
        while await running():  # noqa: ASYNC110 -- it is another process
            await asyncio.sleep(0.05)


async def running() -> float:
    body = (await EngineTransport(os.environ.get("VLLM_TOKEN")).get(given("VLLM_URL"), "/metrics", 5)).body
    return sum(
        float(line.rsplit(b" ", 1)[1]) for line in body.splitlines() if line.startswith(b"vllm:num_requests_running{")
    )
