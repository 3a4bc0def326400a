"""POST /v1/rerank, as clients of Jina and Cohere send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

DOCUMENTS = ["Knead flour, water and salt.", "A berth costs 40 euros a night.", "Ships enter the harbour at high tide."]


async def rerank(server: Mapping[str, Any], status: int = 200, **body: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.get(f"{server['url']}/v1/models") as answer:
            models = [model["id"] for model in (await answer.json())["data"]]
        asked = {"model": next(name for name in models if "minilm" in name.lower()), **body}
        async with http.post(f"{server['url']}/v1/rerank", json=asked) as answer:
            content: dict[str, Any] = await answer.json()
            assert answer.status == status, content
            return content


async def test_the_document_that_answers_comes_first(server: Mapping[str, Any]) -> None:
    told = await rerank(server, query="What does a berth cost?", documents=DOCUMENTS)
    assert told["results"][0]["index"] == 1
    scores = [result["relevance_score"] for result in told["results"]]
    assert scores == sorted(scores, reverse=True) and 0 <= scores[-1] < scores[0] <= 1
    assert told["usage"]["total_tokens"] > 20
    assert all("document" not in result for result in told["results"])


async def test_the_best_few_can_be_asked_for_with_their_text(server: Mapping[str, Any]) -> None:
    documents = [{"text": text} for text in DOCUMENTS]
    told = await rerank(server, query="baking bread", documents=documents, top_n=1, return_documents=True)
    (result,) = told["results"]
    assert (result["index"], result["document"]) == (0, {"text": DOCUMENTS[0]})


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"query": "", "documents": ["a"]}, 400, "query"),
        ({"query": "a", "documents": []}, 400, "documents"),
        ({"query": "a", "documents": [{"title": "b"}]}, 400, "documents[0].text"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, 400, "top_n"),
        ({"query": "a", "documents": ["b"], "model": "rank-9"}, 404, "model"),
    ],
)
async def test_what_is_wrong_is_named(server: Mapping[str, Any], body: dict[str, Any], status: int, param: str) -> None:
    assert (await rerank(server, status, **body))["error"]["param"] == param
