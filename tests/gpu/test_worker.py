"""A whole worker on a GPU: answers, tools, reuse, several clients; and what they get when the device is lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.clients.conftest import MODEL
from tests.clients.test_chat_completions import ASK, WEATHER
from tests.clients.test_real_answers import TOOLS
from tests.serving import ROOT, Worker, clean_environment

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
SYSTEM = "You are a helpful assistant of a small shop that sells garden tools and seeds. " * 6
SUMS = {f"What is {a} * {b}?": str(a * b) for a, b in ((127, 49), (12, 7), (8, 5), (31, 3), (9, 9), (25, 4))}
START_TIMEOUT_S = 600.0  # a GPU in software compiles its shaders
CLIENT_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def worker(make_home: Any) -> Iterator[Worker]:
    worker = Worker(make_home())
    worker.wait_until_ready(START_TIMEOUT_S)
    worker.wait_until_read()
    yield worker
    assert worker.stop() == 0


def client_of(worker: Worker) -> AsyncOpenAI:
    ready = worker.wait_until_ready()
    url, key = f"{ready['url']}/v1", ready["api_key"]
    return AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=CLIENT_TIMEOUT_S)


def status_of(url: str) -> int | None:
    """None where nobody answers any more."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, ConnectionError):
        return None


@pytest.fixture
async def client(worker: Worker) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(worker) as client:
        yield client


def test_the_doctor_says_which_gpu_is_used_what_lies_there_and_how_fast_it_is(make_home: Any) -> None:
    command = [sys.executable, "-m", "worker", "doctor", "--json", "--home", str(make_home())]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "GPU" in found["backend"]["text"] and "7 of 7 layers on the GPU" in found["memory"]["text"]
    assert found["speed"]["numbers"] and found["attention"]["numbers"], found


async def test_a_call_of_a_tool_is_what_it_is_on_a_cpu(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=[ASK], temperature=0, tools=[WEATHER])
    calls = answer.choices[0].message.tool_calls or []
    assert len(calls) == 1
    (call,) = calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})


async def test_six_clients_at_once_get_the_right_answers_with_the_tools_of_the_worker(client: AsyncOpenAI) -> None:
    async def asked(question: str) -> str:
        answer = await client.responses.create(model=MODEL, input=question, tools=TOOLS, temperature=0, store=False)
        return answer.output_text

    answers = await asyncio.gather(*map(asked, SUMS))
    for said, right in zip(answers, SUMS.values(), strict=True):
        assert right in said


async def test_the_next_turn_computes_only_what_is_new(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, instructions=SYSTEM, input="hello", temperature=0)
    second = await client.responses.create(
        model=MODEL, instructions=SYSTEM, input="thank you", temperature=0, previous_response_id=first.id
    )
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


async def test_passages_are_found_by_the_embedder_beside(client: AsyncOpenAI) -> None:
    documents: Any = [{"type": "file_search", "vector_store_ids": ["docs"]}]
    question = "What is the default limit of steps?"
    answer = await client.responses.create(model=MODEL, input=question, tools=documents, temperature=0, store=False)
    assert "is 8" in answer.output_text


@pytest.mark.vulkan
async def test_a_device_that_is_lost_fails_the_answer_and_ends_the_worker_for_its_supervisor(
    make_home: Any, faulty: Path, tmp_path: Path
) -> None:
    lost = tmp_path / "lost"
    worker = Worker(make_home(), LD_PRELOAD=str(faulty), FAULTY_LOST=str(lost))
    ready = worker.wait_until_ready(START_TIMEOUT_S)
    async with client_of(worker) as client:
        lost.touch()
        with pytest.raises(openai.APIError):
            await client.chat.completions.create(model=MODEL, messages=[ASK], temperature=0)
        assert await asyncio.to_thread(status_of, f"{ready['url']}/readyz") in (503, None)
    assert worker.process.wait(60) == 1
    assert "the device failed" in worker.log.read_text()
