"""The models of retrieval that the configuration names: embedders and reranker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from inference.bundled import EMBEDDER
from inference.embedding.cross_encoder import CrossEncoder
from inference.embedding.registry import Embedders
from inference.llama import model_name
from inference.provisioning.catalogue import find
from worker.config import Config
from worker.engines.engine_config import load_for
from worker.home import Home


def embedder_files(config: Config) -> list[Path]:
    """The default first. The bundled embedder is always included: stores that were made with it stay readable.

    Raises StartError.
    """
    models = Home(config.home).models
    named = [Path(name.strip()) for name in (config.embedders or "").split(",") if name.strip()]
    default = load_for("--embedder", partial(find, folder=models), config.embedder) if config.embedder else EMBEDDER
    further = [load_for("--embedders", partial(find, folder=models), name) for name in named]
    files = list(dict.fromkeys([default, *further]))
    has_bundled = model_name(EMBEDDER) in map(model_name, files)
    return files if has_bundled else [*files, EMBEDDER]


@asynccontextmanager
async def open_embedders(config: Config) -> AsyncIterator[Embedders]:
    default, *further = await asyncio.to_thread(embedder_files, config)
    load = partial(Embedders.load, further=further)
    embedders = await asyncio.to_thread(load_for, "--embedder, --embedders", load, default)
    try:
        yield embedders
    finally:
        await embedders.close()


@asynccontextmanager
async def open_reranker(config: Config) -> AsyncIterator[CrossEncoder | None]:
    if config.reranker is None:
        yield None
        return
    models = Home(config.home).models
    path = await asyncio.to_thread(load_for, "--reranker", partial(find, folder=models), config.reranker)
    reranker = await asyncio.to_thread(load_for, "--reranker", CrossEncoder.load, path)
    try:
        yield reranker
    finally:
        await asyncio.to_thread(reranker.close)
