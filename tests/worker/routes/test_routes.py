"""Models, embeddings, health, metrics and the operators' data over HTTP."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from inference.bundled import EMBEDDER
from inference.embedding.registry import Embedders
from migrations.pool import Database
from tests.worker.harness import SECRET, Client, Engine, make_services, serving
from tests.worker.loop_blocks import blocks
from worker.auth.keys import Keys
from worker.auth.scope import ALL
from worker.services import DRAINING, SERVICES
from worker.wire.text_inputs import INPUT_CHARS_MAX, INPUTS_MAX, TOKENS_MAX

HELD_MS = 75  # of the event loop, by the largest answer; 130 when it is written there at once


@pytest.fixture(scope="module")
async def client(database: Database) -> AsyncIterator[Client]:
    """Speaks for an operator of a tenant."""
    embedders = Embedders.load(EMBEDDER)
    services = replace(make_services(database), embedders=embedders)
    async with serving(services) as client:
        keys = Keys(database, SECRET)
        _, key = await keys.create(await keys.tenant("routes"), "test", scopes=ALL)
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client
    await embedders.close()


@pytest.fixture
async def member(database: Database) -> dict[str, str]:
    """Headers of somebody who is no operator."""
    keys = Keys(database, SECRET)
    _, key = await keys.create(await keys.tenant("members"), "test")
    return {"Authorization": f"Bearer {key}"}


async def get(client: Client, path: str, **options: Any) -> tuple[int, Any]:
    async with client.get(path, **options) as response:
        return response.status, await response.json()


async def embed(client: Client, **body: Any) -> tuple[int, Any]:
    async with client.post("/v1/embeddings", json=body) as response:
        return response.status, await response.json()


def engine_of(client: Client) -> Engine:
    assert client.app is not None
    engine = client.app[SERVICES].engine_stats
    assert isinstance(engine, Engine)
    return engine


async def test_the_models_are_listed_and_found_by_name(client: Client) -> None:
    status, body = await get(client, "/v1/models")
    assert (status, body["object"]) == (200, "list")
    for model in body["data"]:
        assert model.keys() >= {"id", "object", "created", "owned_by", "capabilities"}
        assert await get(client, f"/v1/models/{model['id']}") == (200, model)
    status, body = await get(client, "/v1/models/gpt-9")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert "scripted" in body["error"]["message"]


async def test_embeddings_are_unit_vectors_in_the_order_of_the_texts(client: Client) -> None:
    name = (await get(client, "/v1/models"))[1]["data"][1]["id"]
    texts = ["a cat sat on the mat", "a kitten is sitting on a rug", "interest rates rose"]
    status, body = await embed(client, model=name, input=texts)
    assert (status, body["object"], body["model"]) == (200, "list", name)
    assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
    cat, kitten, rates = (np.array(entry["embedding"]) for entry in body["data"])
    assert np.linalg.norm(cat) == pytest.approx(1, abs=1e-4)
    assert cat @ kitten > 0.5 > cat @ rates
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 10
    _, packed = await embed(client, model=name, input=texts[0], encoding_format="base64")
    decoded = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    assert decoded == pytest.approx(cat, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"input": []}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": [""]}, 400, "input"),
        ({"input": ["hello", ""]}, 400, "input[1]"),
        ({"input": [9906, 1917]}, 400, "input"),  # "Hello world" in another vocabulary, whose ids exist here too
        ({"input": [[101, 7592, 102], [7592]]}, 400, "input"),
        ({"input": [200_000]}, 400, "input"),
        ({"input": [-1]}, 400, "input[0]"),
        ({"input": [[]]}, 400, "input[0]"),
        ({"input": [1, "x"]}, 400, "input[1]"),
        ({"input": [[1] * 8_192] * (TOKENS_MAX // 8_192 + 1)}, 400, "input"),
        ({"input": ["x"] * (INPUTS_MAX + 1)}, 400, "input"),
        ({"input": "x" * (INPUT_CHARS_MAX + 1)}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"dimensions": 12}, 400, "dimensions"),
        ({"dimensions": "384"}, 400, "dimensions"),
        ({"encoding_format": "hex"}, 400, "encoding_format"),
        ({"model": "gpt-9"}, 404, "model"),
        ({"sampling": 1}, 400, "sampling"),
    ],
)
async def test_an_embeddings_request_that_does_not_fit_names_the_field(
    client: Client, change: dict[str, Any], status: int, param: str
) -> None:
    name = (await get(client, "/v1/models"))[1]["data"][1]["id"]
    got, body = await embed(client, **{"model": name, "input": "hello", **change})
    assert got == status
    assert body["error"]["param"].startswith(param)


async def test_token_arrays_of_the_models_own_vocabulary_are_the_texts_that_they_spell(client: Client) -> None:
    name = (await get(client, "/v1/models"))[1]["data"][1]["id"]
    hello = [101, 7592, 1010, 2088, 102]  # as the model's own tokenizer makes them
    _, texts = await embed(client, model=name, input=["hello, world"])
    for ids in (hello, [hello], [[101, 2712, 102], hello]):
        status, body = await embed(client, model=name, input=ids)
        assert status == 200
        assert body["data"][-1]["embedding"] == pytest.approx(texts["data"][0]["embedding"], abs=1e-3)


async def test_as_many_inputs_as_openai_takes_are_embedded_in_their_order(client: Client) -> None:
    name = (await get(client, "/v1/models"))[1]["data"][1]["id"]
    words = ["sea", "tax", "cat"]
    _, few = await embed(client, model=name, input=words)
    asked = {"model": name, "input": [words[i % 3] for i in range(INPUTS_MAX)]}
    async with blocks() as held, client.post("/v1/embeddings", json=asked) as response:
        told = await response.read()
    many = orjson.loads(told)
    assert held.longest_ms < HELD_MS
    vectors = np.array([entry["embedding"] for entry in many["data"]])
    assert vectors.shape[0] == INPUTS_MAX
    expected = np.array([few["data"][i % 3]["embedding"] for i in range(INPUTS_MAX)])
    assert np.einsum("ij,ij->i", vectors, expected).min() > 0.999


async def test_models_say_what_they_are_for(client: Client) -> None:
    chat, embedder = (await get(client, "/v1/models"))[1]["data"]
    assert (chat["capabilities"], chat["context_length"]) == (["chat", "tools"], 100_000)
    assert (embedder["capabilities"], embedder["dimensions"]) == (["embeddings"], 384)


async def test_a_worker_in_order_is_alive_and_ready(client: Client) -> None:
    assert (await get(client, "/healthz"))[1]["status"] == "ok"
    assert (await get(client, "/health"))[1]["status"] == "ok"  # where benchmarks and balancers of others look
    status, body = await get(client, "/readyz")
    assert status == 200
    parts = {"worker": "ok", "database": "ok", "engine": "ok", "background": "ok"}
    assert body == {"status": "ok", "parts": parts, "down": {}}  # and no numbers


async def test_what_a_worker_does_is_for_operators(client: Client, member: dict[str, str]) -> None:
    status, body = await get(client, "/ops/api/state", headers=member)
    assert (status, body["error"]["code"]) == (403, "missing_scope")
    status, body = await get(client, "/ops/api/state")
    assert (status, body["engine"]["running"], body["turns"], body["request_bytes"]) == (200, 2, 0, 0)


async def test_a_worker_whose_engine_failed_is_alive_but_not_ready(client: Client) -> None:
    engine_of(client).stats["failed"] = "llama_decode: out of memory"
    try:
        status, body = await get(client, "/readyz")
        assert (status, body["parts"]["engine"]) == (503, "failed")
        assert (await get(client, "/healthz"))[0] == 200
        assert (await get(client, "/ops/api/state"))[1]["engine"]["failed"] == "llama_decode: out of memory"
    finally:
        engine_of(client).stats["failed"] = None


async def test_a_draining_worker_is_not_ready(client: Client) -> None:
    assert client.app is not None
    client.app[DRAINING].set()
    try:
        status, body = await get(client, "/readyz")
        assert (status, body["parts"]["worker"]) == (503, "draining")
    finally:
        client.app[DRAINING].clear()


async def test_a_worker_without_its_database_is_not_ready(postgres: Any) -> None:
    gone = await Database.connect(postgres.app_dsn)
    await gone.close()
    async with serving(make_services(gone)) as client:
        status, body = await get(client, "/readyz")
        assert (status, body["parts"]["database"]) == (503, "InterfaceError")
        status, body = await get(client, "/v1/models", headers={"Authorization": "Bearer ft_x"})
        assert (status, body["error"]["type"]) == (503, "server_error")


async def test_metrics_are_for_operators(client: Client, member: dict[str, str]) -> None:
    status, body = await get(client, "/metrics", headers=member)
    assert (status, body["error"]["code"]) == (403, "missing_scope")
    assert "the scope ops" in body["error"]["message"]
    async with client.get("/metrics") as response:
        text = await response.text()
    assert response.content_type == "text/plain"
    assert "firsttoken_engine_running 2.0" in text
    assert "firsttoken_engine_steps_total 7.0" in text
    assert 'firsttoken_http_requests_total{method="GET",route="/metrics",status="403"} 1.0' in text


async def test_a_turn_shows_up_for_operators_at_once(client: Client, member: dict[str, str]) -> None:
    name = (await get(client, "/v1/models"))[1]["data"][1]["id"]
    assert (await embed(client, model=name, input="where is my trace?"))[0] == 200
    _, listed = await get(client, "/ops/api/traces", params={"limit": "1"})
    [turn] = listed["data"]
    assert (turn["surface"], turn["status"], turn["model"]) == ("embeddings", "completed", name)
    status, trace = await get(client, f"/ops/api/traces/{turn['id']}")
    assert status == 200
    assert [span["name"] for span in trace["spans"]] == ["edge", "auth", "edge", "embed"]
    _, summary = await get(client, "/ops/api/summary", params={"window_s": "60"})
    assert {"edge", "auth", "embed"} <= {span["name"] for span in summary["spans"]}
    assert (await get(client, f"/ops/api/traces/{turn['id']}", headers=member))[0] == 404


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/ops/api/traces?limit=0", "limit"),
        ("/ops/api/traces?limit=9999", "limit"),
        ("/ops/api/traces?limit=x", "limit"),
        ("/ops/api/traces?order=random", "order"),
        ("/ops/api/traces?status=odd", "status"),
        ("/ops/api/summary?window_s=0", "window_s"),
        ("/ops/api/summary?window_s=1e99", "window_s"),
        ("/ops/api/summary?windows=5", "windows"),
    ],
)
async def test_a_query_that_does_not_fit_names_the_parameter(client: Client, path: str, param: str) -> None:
    status, body = await get(client, path)
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize("id", ["x", "0" * 32, "a" * 500, "%27%3B--"])
async def test_a_trace_that_is_not_there_is_404(client: Client, id: str) -> None:
    assert (await get(client, f"/ops/api/traces/{id}"))[0] == 404


async def test_a_text_that_cannot_be_stored_is_the_callers_fault(client: Client) -> None:
    status, body = await get(client, "/ops/api/traces/%00")
    assert (status, body["error"]["code"]) == (400, "invalid_text")
