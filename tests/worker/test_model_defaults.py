"""The model's own defaults hold where a request, an agent or a surface says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from inference.bundled import CHAT_MODEL
from inference.llama import LlamaModel
from inference.provisioning.gguf_metadata import read_metadata
from inference.sampling_defaults import SamplingDefaults
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, post
from tests.worker.test_answer_limits import APIS, apis

USUAL = SamplingDefaults({"temperature": 0.6, "top_k": 20, "top_p": 0.95})
FORMATS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"text": {"format": {"type": "json_object"}}},
    "/v1/chat/completions": {"response_format": {"type": "json_object"}},
    "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
}


class Named(ScriptedModel):
    """Its template has a system message of its own."""

    def default_system(self) -> str:
        return "I am Ada."


@pytest.fixture
def model() -> ScriptedModel:
    return Named(["{}"], name=MODEL, sampling_defaults=USUAL)


@apis
async def test_sampling_that_a_request_leaves_open_is_the_model_s(
    database: Database, model: ScriptedModel, path: str
) -> None:
    async with answering(database, model=model) as client:
        await post(client, path, APIS[path])
        await post(client, path, {**APIS[path], "temperature": 1, "top_k": 0})
    left, set_by_request = (each.sampling for each in model.generations)
    assert (left.temperature, left.top_k, left.top_p, left.min_p) == (0.6, 20, 0.95, 0.05)
    assert (set_by_request.temperature, set_by_request.top_k, set_by_request.top_p) == (1, 0, 0.95)
    assert set_by_request.min_p == 0.05


def test_the_bundled_model_recommends_the_most_likely_token() -> None:
    """It computes and copies: a drawn digit would be a wrong one."""
    usual = read_metadata(LlamaModel.load(CHAT_MODEL, weights=False)).sampling
    assert usual.stated == {"temperature": 0.0}


async def test_a_response_tells_how_it_was_sampled(database: Database, model: ScriptedModel) -> None:
    async with answering(database, model=model) as client:
        told = [await post(client, "/v1/responses", {"input": "Hi", **more}) for more in ({}, {"temperature": 1})]
    assert [(each["temperature"], each["top_p"]) for each in told] == [(0.6, 0.95), (1, 0.95)]


@apis
async def test_the_worker_says_nothing_that_was_not_asked_for(
    database: Database, model: ScriptedModel, path: str
) -> None:
    async with answering(database, model=model) as client:
        await post(client, path, APIS[path])
    assert model.prompts == ["talk" if path == "/v1/completions" else "<user>talk\n<assistant>"]


@pytest.mark.parametrize("path", FORMATS)
async def test_the_schema_is_told_unless_the_request_says_no(
    database: Database, model: ScriptedModel, path: str
) -> None:
    async with answering(database, model=model) as client:
        body = {**APIS[path], **FORMATS[path]}
        await post(client, path, body)
        async with client.post(path, json=body, headers={"X-Firsttoken-Hints": "false"}) as answer:
            assert answer.status == 200
        async with client.post(path, json=body, headers={"X-Firsttoken-Hints": "no"}) as refused:
            assert refused.status == 400
    told, silent = model.prompts
    assert told.startswith("<system>I am Ada.\n\nAnswer with JSON only. Its schema: ")
    assert silent == "<user>talk\n<assistant>"
