"""Weights that several models of this process share: loaded once, and freed after the last of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from inference.attention import AUTO
from inference.llama.weights import ONE_WAY, FileVersion, LlamaModel, Progress, version_of
from inference.weight_placement import Split


class _Key(NamedTuple):
    """What makes weights in memory the same; a file that was replaced is another one. Models that differ in their
    adapters, streams or context need the same weights, and so may one that replaces another."""

    file: FileVersion
    gpu_layers: int
    split: Split
    load_mode: str


@dataclass(slots=True)
class _Shared:
    users: int = 0
    weights: LlamaModel | None = None
    loading: Lock = field(default_factory=Lock)  # held meanwhile: who needs the same ones waits, nobody else


_lock = Lock()  # of the table; never held for long
_shared: dict[_Key, _Shared] = {}


def load_weights(
    path: Path,
    *,
    gpu_layers: int = 0,
    split: Split = ONE_WAY,
    load_mode: str = AUTO,
    progress: Progress | None = None,
) -> LlamaModel:
    """`LlamaModel.load`, unless another model of this process has loaded the same: weights are loaded once, and freed
    after the last of their models. Each caller closes what it got."""
    if not path.is_file():  # told by `load`, as all that is wrong with a file
        return LlamaModel.load(path)
    key = _Key(version_of(path), gpu_layers, split, load_mode)
    with _lock:
        shared = _shared.setdefault(key, _Shared())
        shared.users += 1
    try:
        with shared.loading:
            if shared.weights is None:
                shared.weights = LlamaModel.load(
                    path, gpu_layers=gpu_layers, split=split, load_mode=load_mode, progress=progress
                )
            elif progress is not None:
                progress(1.0)
    except BaseException:
        _release(key)
        raise
    held = shared.weights
    return LlamaModel(held.handle, path, held.file_version, on_gpu=held.on_gpu, free=partial(_release, key))


def are_loaded(path: Path) -> bool:
    """Whether a model that uses the weights of this file would take no more memory for them."""
    loaded = [key.file for key, shared in list(_shared.items()) if shared.weights is not None]
    return path.is_file() and version_of(path) in loaded


def _release(key: _Key, _: object = None) -> None:
    with _lock:
        shared = _shared[key]
        shared.users -= 1
        if shared.users:
            return
        del _shared[key]
    if shared.weights is not None:
        shared.weights.close()
