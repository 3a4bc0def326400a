"""POST /v1/embeddings: unit vectors of texts by one of the embedding models of this worker."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from aiohttp import web
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from worker.errors import ApiError
from worker.reply import reply
from worker.request_keys import PRINCIPAL, TRACE
from worker.runs.record import TurnRecord
from worker.services import SERVICES

TEXTS_MAX = 256  # about ten seconds of embedding on one core
TEXT_CHARS_MAX = 32_768

Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]


class EmbeddingsRequest(BaseModel):
    """The request body. Token arrays are not taken: their ids belong to another model's vocabulary."""

    model_config = ConfigDict(strict=True, extra="forbid")

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=TEXTS_MAX)]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: Annotated[str, Field(max_length=64)] | None = None

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


def routes() -> list[web.RouteDef]:
    return [web.post("/v1/embeddings", create)]


async def create(request: web.Request) -> web.Response:
    services, trace = request.app[SERVICES], request[TRACE]
    tenant_id = request[PRINCIPAL].tenant_id
    body = EmbeddingsRequest.model_validate_json(await request.read())
    dimensions = services.embedders.dimensions(body.model)
    if body.dimensions not in (None, dimensions):
        raise ApiError(400, f"This model always has {dimensions} dimensions.", param="dimensions")
    with services.admission.turn(tenant_id):
        with trace.span("embed", model=body.model, texts=len(body.texts)):
            embedder = await services.embedders.get(body.model)
            vectors = await embedder.embed(body.texts)
        tokens = sum(embedder.count(text) for text in body.texts)
    trace.finish()
    services.telemetry.record(TurnRecord(trace, tenant_id, "completed", "embeddings", embedder.name))
    return reply(
        {
            "object": "list",
            "model": embedder.name,
            "data": [
                {"object": "embedding", "index": index, "embedding": _encode(vector, body.encoding_format)}
                for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def _encode(vector: NDArray[np.float32], encoding: str) -> Any:
    """Base64 holds little-endian float32; the official clients ask for it by default."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
