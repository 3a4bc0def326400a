"""What an engine refuses, and what it tells: over HTTP, as any program meets it."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from inference.generation import DRAWN, Sampling
from tests.engines import EngineProcess
from tests.worker.engines.conftest import TOKEN
from worker.engines.engine_app import GenerateRequest
from worker.wire.options import SamplingParameters

PATH = "/inference/v1/generate"
GOOD: dict[str, Any] = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 3, "temperature": 0}, "stream": True}


@pytest.fixture(scope="module")
async def http(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(address.removeprefix("unix:"))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession("http://engine", connector=connector, headers=headers) as session:
        yield session


async def refusal(http: aiohttp.ClientSession, body: Any) -> tuple[int, str | None]:
    """Status and parameter of the answer to a request that must not be taken."""
    async with http.post(PATH, json=body) as answer:
        return answer.status, (await answer.json())["error"]["param"]


def sampling(**params: Any) -> dict[str, Any]:
    return {**GOOD, "sampling_params": {**GOOD["sampling_params"], **params}}


def test_an_engine_draws_by_what_the_apis_take_under_the_same_names() -> None:
    drawn: dict[str, Any] = dict.fromkeys(DRAWN, 0.5) | {"top_k": 0}
    given = {spelled: drawn[name] for name, spelled in DRAWN.items()} | {"top_k": -1}
    assert given.keys() == SamplingParameters.model_fields.keys()
    asked = GenerateRequest.model_validate(sampling(**given))
    assert asked.sampling(None) == Sampling(**drawn, max_tokens=3)


def own(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "firsttoken": fields}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "token_ids"),
        ([1, 2], None),
        ({**GOOD, "token_ids": []}, "token_ids"),
        ({**GOOD, "token_ids": [5, -1]}, "token_ids[1]"),
        ({**GOOD, "token_ids": [5, 6, 10**6]}, "token_ids[2]"),
        ({**GOOD, "token_ids": [2**70]}, "token_ids[0]"),
        ({**GOOD, "token_ids": ["5"]}, "token_ids[0]"),
        ({**GOOD, "token_ids": [5.5]}, "token_ids[0]"),
        ({**GOOD, "token_ids": [5] * 5000}, "input"),
        (own(prediction=[5, 10**6]), "firsttoken.prediction[1]"),
        (own(prediction=[-1]), "firsttoken.prediction[0]"),
        ({**GOOD, "stream": False}, "stream"),
        ({**GOOD, "priority": 3}, "priority"),
        ({**GOOD, "priority": -1}, "priority"),
        ({**GOOD, "features": {"image": 1}}, "features"),
        ({**GOOD, "request_id": "a\nb"}, "request_id"),
        ({**GOOD, "cache_salt": "x" * 300}, "cache_salt"),
        (sampling(max_tokens=0), "sampling_params.max_tokens"),
        (sampling(temperature=-1), "sampling_params.temperature"),
        (sampling(top_p=2), "sampling_params.top_p"),
        (sampling(seed=-1), "sampling_params.seed"),
        (sampling(n=2), "sampling_params.n"),
        (sampling(stop=["x"]), "sampling_params.stop"),
        (sampling(logprobs=21), "sampling_params.logprobs"),
        (sampling(logit_bias={"x": 1}), "sampling_params.logit_bias.x"),
        (sampling(logit_bias={"999999": 1}), "logit_bias"),
        (sampling(unheard_of=1), "sampling_params.unheard_of"),
        (
            sampling(structured_outputs={"grammar": "start: nothing"}),
            "sampling_params.structured_outputs.grammar",
        ),
        (sampling(structured_outputs={"regex": "a"}), "sampling_params.structured_outputs.grammar"),
        (own(deadline_ms=0), "firsttoken.deadline_ms"),
        (own(shared=-1), "firsttoken.shared"),
        (own(written=-1), "firsttoken.written"),
        (own(boundaries=[1] * 17), "firsttoken.boundaries"),
        (own(written=len(GOOD["token_ids"])), "firsttoken.written"),
        (
            {**sampling(structured_outputs={"grammar": 'start: "x"'}), "firsttoken": {"written": 1}},
            "firsttoken.written",
        ),
        (own(unheard_of=1), "firsttoken.unheard_of"),
    ],
)
async def test_what_is_wrong_is_named(http: aiohttp.ClientSession, body: Any, param: str | None) -> None:
    assert await refusal(http, body) == (400, param)


async def test_json_that_is_none_numbers_that_are_none_and_other_types_are_refused(http: aiohttp.ClientSession) -> None:
    nan = json.dumps(sampling(temperature=float("nan")))
    for raw, kind, status in (
        (b"{", "application/json", 400),
        (nan, "application/json", 400),
        (b"{}", "text/plain", 415),
    ):
        async with http.post(PATH, data=raw, headers={"Content-Type": kind}) as answer:
            assert answer.status == status


async def test_a_body_that_no_context_could_hold_is_refused_unread(http: aiohttp.ClientSession) -> None:
    async with http.post(
        PATH, data=io.BytesIO(b" " * 5_000_000), headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 413


@pytest.mark.any_answer("it is about how an answer is told")
async def test_an_answer_is_told_as_vllm_tells_it(http: aiohttp.ClientSession) -> None:
    async with http.post(PATH, json={**GOOD, "request_id": "mine"}) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        *events, done, rest = (await answer.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    told = [json.loads(event.removeprefix("data: ")) for event in events]
    assert told[0]["request_id"] == "mine"
    assert len([id for event in told for choice in event["choices"] for id in choice["token_ids"]]) == 3
    assert told[-2]["choices"][0]["finish_reason"] == "length"
    assert told[-1]["choices"] == [] and told[-1]["usage"]["total_tokens"] == 6


@pytest.mark.any_answer("it is about what is taken")
async def test_places_at_which_other_prompts_may_part_are_taken(http: aiohttp.ClientSession) -> None:
    async with http.post(PATH, json=own(boundaries=[1, 2])) as answer:
        assert answer.status == 200, await answer.text()


async def test_only_health_is_told_without_the_token(address: str) -> None:
    connector = aiohttp.UnixConnector(address.removeprefix("unix:"))
    async with aiohttp.ClientSession("http://engine", connector=connector) as nobody:
        statuses = {}
        for method, path in (("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("POST", PATH)):
            async with nobody.request(method, path, headers={"Authorization": "Bearer wrong"}) as answer:
                statuses[path] = answer.status
    assert statuses == {"/health": 200, "/metrics": 401, "/v1/models": 401, PATH: 401}


async def test_the_gauges_have_the_names_that_pickers_of_endpoints_know(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as answer:
        names = {line.split(" ")[0].split("{")[0] for line in (await answer.text()).splitlines()}
    assert {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"} <= names
    assert {"vllm:gpu_cache_usage_perc", "vllm:prefix_cache_hits_total", "vllm:generation_tokens_total"} <= names
    assert {"firsttoken_predicted_ttft_seconds", "firsttoken_waiting_prompt_tokens"} <= names
    assert {"firsttoken_engine_generated_tokens_total", "firsttoken_memory_bytes"} <= names


async def test_the_model_is_described_with_its_context_and_its_vocabulary(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as answer:
        (model,) = (await answer.json())["data"]
    assert (model["id"], model["max_model_len"]) == ("demo-chat", 2048)
    assert len(model["firsttoken"]["vocabulary"]) == 32


def test_its_socket_is_for_this_account_only(engine: EngineProcess, address: str) -> None:
    assert Path(address.removeprefix("unix:")).stat().st_mode & 0o777 == 0o600
