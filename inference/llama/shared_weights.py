"""Weights that several models of this process compute with: loaded once, and freed after the last of them.

Models that differ in their adapters, streams or context need the same weights, and so may one that replaces another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from inference.attention import AUTO
from inference.llama.weights import ONE_WAY, LlamaModel, Progress
from inference.weight_placement import Split


class _Key(NamedTuple):
    """What makes weights in memory the same; a file that was replaced is another one."""

    path: Path
    changed_ns: int
    gpu_layers: int
    split: Split
    load_mode: str


@dataclass(slots=True)
class _Shared:
    weights: LlamaModel
    users: int = 0


# Held while weights are loaded: who needs the same ones then waits for them instead of loading them again.
_lock = Lock()
_shared: dict[_Key, _Shared] = {}


def load_weights(
    path: Path,
    *,
    gpu_layers: int = 0,
    split: Split = ONE_WAY,
    load_mode: str = AUTO,
    progress: Progress | None = None,
) -> LlamaModel:
    """`LlamaModel.load`, unless another model has loaded the same. Each caller closes what it got."""
    if not path.is_file():  # told by `load`, as all that is wrong with a file
        return LlamaModel.load(path)
    real = path.resolve()
    key = _Key(real, real.stat().st_mtime_ns, gpu_layers, split, load_mode)
    with _lock:
        shared = _shared.get(key)
        if shared is None:
            weights = LlamaModel.load(path, gpu_layers=gpu_layers, split=split, load_mode=load_mode, progress=progress)
            shared = _shared[key] = _Shared(weights)
        elif progress is not None:
            progress(1.0)
        shared.users += 1
        return LlamaModel(shared.weights.handle, path, on_gpu=shared.weights.on_gpu, free=partial(_release, key))


def are_loaded(path: Path) -> bool:
    """Whether a model that uses the weights of this file would take no more memory for them."""
    real = path.resolve()
    return any(key.path == real for key in list(_shared))


def _release(key: _Key, _: object) -> None:
    with _lock:
        shared = _shared[key]
        shared.users -= 1
        if not shared.users:
            del _shared[key]
            shared.weights.close()
