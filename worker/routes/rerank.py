"""POST /v1/rerank: documents in the order of how well they answer a query, in the shape that Jina and Cohere share."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from aiohttp import web
from pydantic import BeforeValidator, Field, StringConstraints

from inference.windows import Windows
from retrieval.rerank import window_similarity
from worker.errors import ApiError
from worker.reply import reply
from worker.services import PRINCIPAL, SERVICES, TRACE
from worker.wire.parse import parse
from worker.wire.strict import Strict

DOCUMENTS_MAX = 256  # about ten seconds of embedding on one core
TEXT_CHARS_MAX = 32_768


def _as_document(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


Text = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_CHARS_MAX)]


class Document(Strict):
    text: Text


class RerankRequest(Strict):
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    query: Text
    documents: Annotated[
        list[Annotated[Document, BeforeValidator(_as_document)]], Field(min_length=1, max_length=DOCUMENTS_MAX)
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None


def routes() -> list[web.RouteDef]:
    return [web.post("/v1/rerank", create)]


async def create(request: web.Request) -> web.Response:
    """Late interaction with the embedding model, as passages are reranked before an answer."""
    services, trace, tenant_id = request.app[SERVICES], request[TRACE], request[PRINCIPAL].tenant_id
    embedder = services.embedder
    body = parse(RerankRequest, await request.read())
    if body.model != embedder.name:
        message = f"The model that ranks on this worker is '{embedder.name}'."
        raise ApiError(404, message, type="not_found_error", param="model", code="model_not_found")
    texts = [document.text for document in body.documents]
    with services.admission.turn(tenant_id):
        with trace.span("embed", texts=len(texts) + 1):
            query = await embedder.embed_query(body.query)
            passages = await embedder.embed_windows(texts)
        with trace.span("rerank", candidates=len(texts)):
            scores = window_similarity(query.tokens, [Windows(each.windows, each.scales) for each in passages])
        tokens = sum(map(embedder.count, [body.query, *texts]))
    trace.finish()
    services.telemetry.record(trace, tenant_id=tenant_id, status="completed", surface="rerank", model=embedder.name)
    best = np.argsort(-scores, kind="stable")[: body.top_n]
    return reply(
        {
            "object": "list",
            "model": embedder.name,
            "results": [_result(body, int(index), float(scores[index])) for index in best],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def _result(body: RerankRequest, index: int, score: float) -> dict[str, Any]:
    """Scores are from 0 to 1: what points away from the query is as far from it as can be."""
    result: dict[str, Any] = {"index": index, "relevance_score": min(max(score, 0.0), 1.0)}
    return {**result, "document": {"text": body.documents[index].text}} if body.return_documents else result
