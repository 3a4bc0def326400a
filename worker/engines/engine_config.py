"""Derives from the settings how the engine should run, what may be reduced when memory is short, the token that an
engine on a network shares with its workers, and the models of retrieval: embedders and reranker.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from inference.adapter import Adapter, adapters_in
from inference.attention import AUTO, WINDOW
from inference.bundled import EMBEDDER
from inference.config import EngineConfig
from inference.embedding.cross_encoder import CrossEncoder
from inference.embedding.registry import Embedders
from inference.errors import AdapterNotLoaded, InvalidTemplate, ModelNotLoaded
from inference.llama import FileVersion, model_name, version_of
from inference.provisioning.calibration import Calibrations
from inference.provisioning.catalogue import SMOL_CHAT, find
from inference.provisioning.machine import ADDRESS_LIMIT, addresses_free, free_below_limits
from worker.config import Config
from worker.errors import StartError
from worker.home import Home

P = ParamSpec("P")
T = TypeVar("T")

LOOKUP, NO_DRAFTS = Path("lookup"), Path("none")  # in place of a draft model's name
MB = 10**6
MEMORY_BYTES_MIN = 250 * MB  # of an idle worker and its database
ADDRESS_BYTES_MIN = 1000 * MB  # an idle worker with the smallest model maps 1.2 GB, most of it heaps of threads
TOKEN_SHAPE = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")  # valid in a header, and long enough that nobody guesses it


def engine_config(config: Config) -> EngineConfig:
    """Includes what was measured on this machine. Raises ModelNotLoaded when there is no such model."""
    home = Home(config.home)
    models = home.models
    model = find(config.model, models)
    drafter = config.draft or (LOOKUP if model.name == SMOL_CHAT.file_name else NO_DRAFTS)
    megabytes = None if config.parked_mb is None else config.parked_mb * 2**20
    wished = {
        "parallel": config.streams,
        "resident": config.resident,
        "context": config.context or None,
        "parked_bytes_max": megabytes,
        "kv_type": None if config.kv_type == AUTO else config.kv_type,
        "windowed": None if config.kv_windows == AUTO else config.kv_windows == WINDOW,
    }
    fixed: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
    engine = EngineConfig(
        model_path=model,
        adapters=_adapters(config.lora, models),
        projector_path=find(config.mmproj, models) if config.mmproj else None,
        draft_path=None if drafter in (LOOKUP, NO_DRAFTS) else find(drafter, models),
        lookup=drafter == LOOKUP,
        predictions=config.draft != NO_DRAFTS,
        threads=config.threads,
        kv_layout=config.kv_layout,
        flash_attention=config.flash_attention,
        gpu_layers=config.gpu_layers,
        kv_place=config.kv_place,
        gpu_split=config.gpu_split,
        load_mode=config.load_mode,
        queue_max=config.queue,
        disk_folder=home.kv,
        disk_bytes_max=config.kv_disk_mb * 2**20,
        adjustable=frozenset(wished) - frozenset(fixed),
        memory_bytes_max=(config.memory_mb or 0) * 10**6,
        beside_bytes=_beside(config),
        **fixed,
    )
    return Calibrations(home.calibrations).applied(engine)


def check_memory() -> None:
    """Whether a worker and its database find room at all. Without addresses for threads, the C library aborts the
    process, and in a control group without memory the kernel kills it: neither says why. Models are counted when they
    are loaded. Raises StartError."""
    free, limit = free_below_limits()
    addresses = addresses_free()
    if free is not None and free < MEMORY_BYTES_MIN:
        raise StartError(
            f"{free // MB} MB of memory are free{limit}, and a worker takes {MEMORY_BYTES_MIN // MB} besides its "
            "model: raise the limit, or free some memory"
        )
    if addresses is not None and addresses < ADDRESS_BYTES_MIN:
        raise StartError(
            f"{addresses // MB} MB are free{ADDRESS_LIMIT}, and a worker takes {ADDRESS_BYTES_MIN // MB} besides its "
            "model: raise the limit"
        )


def is_fetched(config: Config) -> bool:
    """Whether the weights of the model are not here, and a start fetches them."""
    if config.weights is None or str(config.model or SMOL_CHAT.name) != SMOL_CHAT.name:
        return False
    return not SMOL_CHAT.is_current(Home(config.home).models / SMOL_CHAT.file_name)


def versions(config: Config) -> tuple[FileVersion, ...]:
    """The contents that an engine would compute with now, the model's first. Raises ModelNotLoaded."""
    models = Home(config.home).models
    drafter = None if config.draft in (LOOKUP, NO_DRAFTS) else config.draft
    beside = [find(name, models) for name in (config.mmproj, drafter) if name]
    adapters = [adapter.path for adapter in _adapters(config.lora, models)]
    try:
        return tuple(map(version_of, (find(config.model, models), *beside, *adapters)))
    except OSError as error:
        raise ModelNotLoaded(f"{error.filename} cannot be read: {error.strerror}") from error


def _adapters(setting: str | None, models: Path) -> tuple[Adapter, ...]:
    """Raises AdapterNotLoaded when there is no such file, there or in the folder of models."""
    found = []
    for adapter in adapters_in(setting or ""):
        path = Path(os.path.expanduser(adapter.path))
        file = next((each for each in (path, models / path) if each.is_file()), None)
        if file is None:
            raise AdapterNotLoaded(f"no adapter file at {path}: give a GGUF file or one of {models}")
        found.append(replace(adapter, path=file, file_bytes=file.stat().st_size))
    return tuple(found)


def load_for(setting: str, load: Callable[P, T], *what: P.args, **how: P.kwargs) -> T:
    """Load what a setting names. Raises StartError, which names the setting."""
    try:
        return load(*what, **how)
    except AdapterNotLoaded as error:
        raise StartError(f"{error} (--lora)") from error
    except (ModelNotLoaded, InvalidTemplate) as error:
        raise StartError(f"{error} ({setting})") from error


def found(setting: str, name: Path | None, config: Config) -> Path:
    """The file of a model that a setting names. Raises StartError, which names the setting."""
    return load_for(setting, find, name, Home(config.home).models)


def _beside(config: Config) -> int:
    """Bytes of the models loaded beside the chat model (its projector too), except the bundled embedder; a missing file
    is reported elsewhere."""
    models, bytes_ = Home(config.home).models, 0
    for name in (config.embedder, config.reranker, config.mmproj):
        with suppress(ModelNotLoaded):
            bytes_ += find(name, models).stat().st_size if name else 0
    return bytes_


def read_token(config: Config) -> str | None:
    """Raises StartError if it cannot be read or used."""
    token = config.engine_token
    if token is None and config.token_file is not None:
        try:
            token = Path(os.path.expanduser(config.token_file)).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise StartError(f"{config.token_file} cannot be read: {reason} (--token-file)") from error
    if token is not None and not TOKEN_SHAPE.fullmatch(token):
        raise StartError(
            "the token of the engines must be 16 to 512 letters, digits or ._~+/=- "
            "(--token-file, FIRSTTOKEN_ENGINE_TOKEN); make one with: openssl rand -hex 32"
        )
    return token


def embedder_files(config: Config) -> list[Path]:
    """The default first. The bundled embedder is always included: stores that were made with it stay readable.

    Raises StartError.
    """
    named = [Path(name.strip()) for name in (config.embedders or "").split(",") if name.strip()]
    default = found("--embedder", config.embedder, config) if config.embedder else EMBEDDER
    further = [found("--embedders", name, config) for name in named]
    files = list(dict.fromkeys([default, *further]))
    has_bundled = model_name(EMBEDDER) in map(model_name, files)
    return files if has_bundled else [*files, EMBEDDER]


@asynccontextmanager
async def open_embedders(config: Config) -> AsyncIterator[Embedders]:
    default, *further = await asyncio.to_thread(embedder_files, config)
    embedders = await asyncio.to_thread(load_for, "--embedder, --embedders", Embedders.load, default, further=further)
    try:
        yield embedders
    finally:
        await embedders.close()


@asynccontextmanager
async def open_reranker(config: Config) -> AsyncIterator[CrossEncoder | None]:
    if config.reranker is None:
        yield None
        return
    path = await asyncio.to_thread(found, "--reranker", config.reranker, config)
    reranker = await asyncio.to_thread(load_for, "--reranker", CrossEncoder.load, path)
    try:
        yield reranker
    finally:
        await asyncio.to_thread(reranker.close)
