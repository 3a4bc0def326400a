"""How much of a chat model goes to the GPU: all of it, or the layers that fit beside their share of the KV cache."""

from __future__ import annotations

from contextlib import closing

from inference.config import EngineConfig
from inference.llama import LlamaModel, has_gpu
from inference.provisioning import room
from inference.provisioning.memory import Footprint
from inference.provisioning.proportions import Proportions

ALL_LAYERS = -1


def gpu_layers(config: EngineConfig) -> int:
    """Layers to offload, -1 for all: what was configured, or what fits. Raises ModelNotLoaded."""
    if config.gpu_layers >= 0 or not has_gpu():
        return config.gpu_layers
    with closing(LlamaModel.load(config.model_path, weights=False)) as model:
        proportions = Proportions.of(model)
    need = Footprint.of(proportions, config.offloaded, gpu=True)
    return layers_that_fit(need, proportions.layers, room.here(config).gpu)


def layers_that_fit(need: Footprint, layers: int, gpu_bytes: float) -> int:
    """-1 when all of a model's layers fit into so much memory."""
    left = gpu_bytes - need.draft - need.working
    each = (need.weights + need.kv_cache) / (layers + 1)  # llama.cpp counts the output as one more layer
    fitting = max(0, int(left / each))
    return ALL_LAYERS if fitting > layers else fitting


def are_all(offloaded: int, layers: int) -> bool:
    return offloaded == ALL_LAYERS or offloaded > layers


def split(need: Footprint, layers: int, offloaded: int) -> tuple[float, float]:
    """Bytes on the host and on the GPU with so many of a model's layers there; draft and steps go with the first."""
    if not offloaded:
        return float(need.total + need.parked_max), 0.0
    share = 1.0 if are_all(offloaded, layers) else offloaded / (layers + 1)
    divided = need.weights + need.kv_cache
    return need.parked_max + (1 - share) * divided, share * divided + need.working + need.draft
