"""How much of a chat model goes to the GPU: all of it, or the layers that fit beside their share of the KV cache."""

from __future__ import annotations

from contextlib import closing

from inference.config import EngineConfig
from inference.footprint import Footprint
from inference.llama import LlamaModel, devices, has_gpu

SHARE = 0.95  # of what is free now; the rest is for whoever else draws or computes there
RESERVE_BYTES = 300 * 10**6  # the driver's own, and intermediate results, which flash attention keeps small


def gpu_layers(config: EngineConfig) -> int:
    """Layers to offload, -1 for all: what was configured, or what fits. Raises ModelNotLoaded."""
    if config.gpu_layers >= 0 or not has_gpu():
        return config.gpu_layers
    free = sum(device.free_bytes for device in devices() if device.is_gpu)
    with closing(LlamaModel.load(config.model_path, weights=False)) as model:
        layers, _, _ = model.kv_shape
        return layers_that_fit(Footprint.of(model, config), layers, free)


def layers_that_fit(need: Footprint, layers: int, free_bytes: int) -> int:
    """-1 when all of a model's layers fit into so much memory."""
    room = free_bytes * SHARE - RESERVE_BYTES - need.draft
    each = (need.weights + need.kv_cache) / (layers + 1)  # llama.cpp counts the output as one more layer
    fitting = max(0, int(room / each))
    return -1 if fitting > layers else fitting
