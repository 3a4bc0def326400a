"""POST /v1/rerank with a cross-encoder beside the embedder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, get, post, services_with
from tests.worker.harness import SECRET, serving
from worker.auth.keys import Keys


class ByLength:
    """Finds that the longest text fits best."""

    name = "by-length"

    async def score(self, query: str, texts: Sequence[str], budget_ms: float) -> NDArray[np.float64]:
        return np.array([len(text) - 3.0 for text in texts])


async def test_a_cross_encoder_ranks_when_it_is_named(database: Database) -> None:
    services = replace(services_with(database, ScriptedModel(["x"], name=MODEL)), reranker=ByLength())
    keys = Keys(database, SECRET)
    async with serving(services) as client:
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        body = {"model": "by-length", "query": "q", "documents": ["aa", "aaaaa", "aaa"]}
        told = await post(client, "/v1/rerank", body)
        assert [result["index"] for result in told["results"]] == [1, 2, 0]
        assert [round(result["relevance_score"], 2) for result in told["results"]] == [0.88, 0.5, 0.27]
        assert "by-length" in [model["id"] for model in (await get(client, "/v1/models"))["data"]]
        refused = await post(client, "/v1/rerank", {**body, "model": "other"}, 404)
    assert "embedder, by-length" in refused["error"]["message"]
