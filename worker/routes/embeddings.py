"""What the models of retrieval make of texts: unit vectors (POST /v1/embeddings), and documents in the order of how
well they answer a query, in the shape that Jina and Cohere share (POST /v1/rerank).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from inference.embedding.windows import Windows
from retrieval.rank import window_similarity
from worker.auth.scope import USUAL
from worker.errors import ApiError
from worker.http.request import PRINCIPAL, TRACE, Json, Routes
from worker.runs.embed_inputs import check_inputs, embed_inputs
from worker.runs.record import TurnRecord
from worker.services import SERVICES, Services
from worker.wire.strict import ModelName, Strict, short_for
from worker.wire.text_inputs import EmbeddingsRequest

DOCUMENTS_MAX = 256  # about ten seconds of embedding on one core
TEXT_CHARS_MAX = 32_768


routes = Routes()


@routes.post("/v1/embeddings", USUAL)
async def create(request: web.Request, body: EmbeddingsRequest) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = check_inputs(services, body)
    with services.admission.turn(tenant_id):
        return await embed_inputs(services, tenant_id, request[TRACE], body)


Text = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_CHARS_MAX)]


class Document(Strict):
    text: Text


class RerankRequest(Strict):
    model: ModelName
    query: Text
    documents: Annotated[
        list[Annotated[Document, short_for(lambda text: {"text": text})]], Field(min_length=1, max_length=DOCUMENTS_MAX)
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None


@routes.post("/v1/rerank", USUAL)
async def rerank(request: web.Request, body: RerankRequest) -> Json:
    """Rerank documents with the cross-encoder or an embedding model, in the same way as passages before an answer."""
    services, trace, tenant_id = request.app[SERVICES], request[TRACE], request[PRINCIPAL].tenant_id
    texts = [document.text for document in body.documents]
    with services.admission.turn(tenant_id), trace.span("rerank", model=body.model, candidates=len(texts)):
        scores = await _scores(services, services.aliases.model_of(body.model), body.query, texts, salt=str(tenant_id))
        tokens = await services.embedders.default.count_all([body.query, *texts])
    trace.finish()
    services.telemetry.record(TurnRecord(trace, tenant_id, "completed", "rerank", body.model))
    best = np.argsort(-scores, kind="stable")[: body.top_n]
    return {
        "object": "list",
        "model": body.model,
        "results": [_result(body, int(index), float(scores[index])) for index in best],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def _scores(
    services: Services, model: str, query: str, texts: Sequence[str], *, salt: str
) -> NDArray[np.float64]:
    """From 0 to 1, one for each text; `salt` names the tenant. Raises ApiError 404."""
    embedders, reranker = services.embedders, services.reranker
    if reranker is not None and model == reranker.name:
        logits = await reranker.score(query, texts, math.inf)
        return np.asarray(1 / (1 + np.exp(-logits)), np.float64)
    if model not in embedders.names:
        names = [*embedders.names, *([reranker.name] if reranker else [])]
        message = f"The model '{model}' cannot rerank. Models that can: {', '.join(names)}."
        raise ApiError(404, message, param="model", code="model_not_found")
    embedder = await embedders.get(model)
    asked, passages = await embedder.embed_query(query, salt=salt), await embedder.embed_windows(texts)
    cosines = window_similarity(asked.tokens, [Windows(each.windows, each.scales) for each in passages])
    return np.clip(cosines, 0.0, 1.0)  # what points away from the query is as far from it as can be


def _result(body: RerankRequest, index: int, score: float) -> dict[str, Any]:
    result: dict[str, Any] = {"index": index, "relevance_score": score}
    return {**result, "document": {"text": body.documents[index].text}} if body.return_documents else result
