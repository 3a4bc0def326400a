"""Computes the response to an embeddings request: unit vectors of its inputs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import orjson
from numpy.typing import NDArray

from inference.embedding.embedder import Embedder
from inference.trace import Trace
from worker.errors import ApiError
from worker.lifecycle.process import TimeSlice
from worker.runs.record import TurnRecord
from worker.services import Services
from worker.wire.text_inputs import EmbeddingsRequest

BATCH_TEXTS = 8  # embedded at a time in the background: about a fifth of a second on one core


def check_inputs(services: Services, body: EmbeddingsRequest) -> EmbeddingsRequest:
    """The request with the model's own name. Raises UnknownEmbedder, and ApiError 400 for a number of dimensions that
    the model does not have."""
    model = services.aliases.model_of(body.model)
    dimensions = services.embedders.dimensions(model)
    if body.dimensions not in (None, dimensions):
        raise ApiError(400, f"This model always has {dimensions} dimensions.", param="dimensions")
    return body.model_copy(update={"model": model})


async def embed_inputs(
    services: Services, tenant_id: UUID, trace: Trace, body: EmbeddingsRequest, time_slice: TimeSlice | None = None
) -> dict[str, Any]:
    """The answer to a request that was `check_inputs`, its vectors as JSON. `time_slice`: nobody waits for it. Raises
    ForeignTokens, EmbedderNotLoaded."""
    with trace.span("embed", model=body.model, texts=len(body.inputs)):
        embedder = await services.embedders.get(body.model)
        texts = await embedder.texts(body.inputs)
        vectors = await (embedder.embed(texts) if time_slice is None else _in_bites(embedder, texts, time_slice))
    tokens = await embedder.count_embedded(texts)
    trace.finish()
    services.telemetry.record(TurnRecord(trace, tenant_id, "completed", "embeddings", embedder.name))
    return {
        "object": "list",
        "model": embedder.name,
        "data": await asyncio.to_thread(_data, vectors, body.encoding_format),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def _in_bites(embedder: Embedder, texts: Sequence[str], time_slice: TimeSlice) -> NDArray[np.float32]:
    parts = []
    for begin in range(0, len(texts), BATCH_TEXTS):
        parts.append(await embedder.embed(texts[begin : begin + BATCH_TEXTS]))
        await time_slice.yield_if_due()
    return np.concatenate(parts)


def _data(vectors: NDArray[np.float32], encoding: str | None) -> list[Any]:
    """Each entry is written as JSON by itself: all numbers of two thousand vectors at once would be 62 MB of objects,
    and would keep the event loop from the interpreter for a twentieth of a second."""
    return [
        orjson.Fragment(orjson.dumps({"object": "embedding", "index": index, "embedding": _encode(vector, encoding)}))
        for index, vector in enumerate(vectors)
    ]


def _encode(vector: NDArray[np.float32], encoding: str | None) -> Any:
    """Base64 holds little-endian float32; the official clients ask for it by default."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
